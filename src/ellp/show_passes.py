"""Passes over a table, as the command line shows them while they run."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class RowSpeed(TextColumn):
    """Rows a second."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "")


class PassProgress:
    """A progress line: the pass, a bar, rows a second, the time left, and the distortion proved so far."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), RowSpeed(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.task = self.progress.add_task("start", total=None)
        self.name, self.proved, self.quiet = "start", "", quiet

    def __enter__(self) -> PassProgress:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def begin(self, name: str, rows: int, done: int) -> None:
        self.name = name
        self.progress.reset(self.task, total=rows, completed=done, description=f"{name}{self.proved}")

    def advance(self, rows: int) -> None:
        self.progress.advance(self.task, rows)

    def reached(self, distortion: float) -> None:
        self.proved = f", distortion {distortion:.4g} proved"
        self.progress.update(self.task, description=f"{self.name}{self.proved}")

    def say(self, text: str) -> None:
        if not self.quiet:
            self.progress.console.print(text, highlight=False)
