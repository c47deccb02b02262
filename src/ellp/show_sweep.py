"""What the command line shows of a sweep: progress with the time left, then drops by variant and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ellp.sweep.verdict import mean_drops, variant_key


class SweepProgress:
    """A progress line for a sweep: the cell finished last, a bar, how many of how many, and the time left."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        hidden = quiet or not console.is_terminal
        self.progress = Progress(
            *columns, console=console, transient=True, disable=hidden, speed_estimate_period=600, refresh_per_second=4
        )
        self.task = self.progress.add_task("opening models", total=None)

    def __enter__(self) -> SweepProgress:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __call__(self, last: str, done: int, total: int) -> None:
        if self.progress.tasks[0].total is None:  # cells of earlier runs say nothing about the speed of this one
            self.progress.reset(self.task, total=total, completed=done, description=last)
        else:
            self.progress.update(self.task, completed=done, description=last)


def sweep_summary(record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], place: str) -> str:
    """Drops by variant and task, failures, and the verdict, in a few lines for a person."""
    good = [cell for cell in cells if "error" not in cell]
    bad = [cell for cell in cells if "error" in cell]
    lines = [*_table(good), ""] if good else []
    lines += [f"{len(bad)} of {len(cells)} cells failed; --retry measures them again:"] if bad else []
    lines += [f"  {cell['id']}: {cell['error']}" for cell in bad[:5]]
    lines += [f"  ... and {len(bad) - 5} more" for _ in bad[5:6]]
    said = record.get("verdict")
    lines += [said["text"], ""] if said else []
    return "\n".join([*lines, f"{len(good)} cells in {place} (ellp report {place} makes a page of them)"])


def _table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per variant: what it takes, and the drop on each model and task with the half-width of its interval."""
    columns = list(dict.fromkeys((str(cell["model"]), str(cell["task"])) for cell in cells))
    heads = [
        task if model == task or len({m for m, _ in columns}) == 1 else f"{model}/{task}" for model, task in columns
    ]
    rows: dict[tuple[Any, ...], dict[tuple[str, str], Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(variant_key(cell), {})[str(cell["model"]), str(cell["task"])] = cell
    means = mean_drops(cells)
    wide = max(14, *(len(head) + 1 for head in heads))
    lines = [f"{'drop in points':26} {'bytes':>6}" + "".join(f"{head:>{wide}}" for head in heads) + f"{'mean':>8}"]
    for key, found in rows.items():
        first = next(iter(found.values()))
        shown = "".join(_drop(found.get(column), wide) for column in columns)
        mean = f"{means[key]:+8.2f}" if key in means and len(columns) > 1 else ""
        lines.append(f"{variant_label(first):26} {first['bytes_share']:6.3f}{shown}{mean}")
    return lines


def _drop(cell: Mapping[str, Any] | None, wide: int) -> str:
    if cell is None:
        return " " * wide
    spread = f"{cell['drop']:+.2f} ±{(cell['drop_high'] - cell['drop_low']) / 2:.1f}"
    return f"{spread:>{wide}}"


def variant_label(cell: Mapping[str, Any]) -> str:
    """A variant's name for a person.

    >>> variant_label({"method": "lp", "p": 1.0, "importance": "prior", "keep": 0.5, "bytes_asked": None})
    'lp p=1 prior keep 0.5'
    """
    parts = [str(cell["method"])]
    parts += [f"p={float(cell['p']):g}"] if cell["method"] == "lp" else []
    parts += [str(cell["importance"])] if cell["importance"] not in (None, "uniform", "fisher") else []
    parts += [f"keep {cell['keep']:g}"] if cell["keep"] is not None else []
    parts += [f"bytes {cell['bytes_asked']:g}"] if cell["bytes_asked"] is not None else []
    return " ".join(parts)
