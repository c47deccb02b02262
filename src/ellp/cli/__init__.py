"""The command line: one short function per verb. Each parses, validates, makes one call and shows the result."""

from __future__ import annotations

import os
import sys

import typer

from ellp.cli.evaluate import evaluate
from ellp.cli.factor import factor
from ellp.cli.finetune import finetune
from ellp.cli.model import compress, inspect
from ellp.cli.report import report
from ellp.cli.reproduce import reproduce
from ellp.cli.sweep import sweep
from ellp.errors import EllpError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


UsageError = typer.BadParameter.__mro__[1]  # typer carries click within it, or beside it, depending on the version


@app.callback(invoke_without_command=True)
def ellp(context: typer.Context) -> None:
    """Shrink big tables and layers of neural networks by robust low-rank factorization."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for verb in (compress, inspect, evaluate, sweep, report, reproduce, finetune, factor):
    app.command()(verb)


def main() -> None:
    """Run the command line; a failure the user can mend is one line on stderr and exit code 2.

    Threads that wait for each other sleep: on cores shared with other work, spinning costs ten times the work itself.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read by OpenMP when torch is first imported
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        if not isinstance(error, (EllpError, OSError, UsageError)):
            raise
        sys.stderr.write(f"ellp: {one_line(error)}\n")
        raise SystemExit(2) from None


def one_line(error: Exception) -> str:
    """What went wrong and what to do, on a single line."""
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    advice = f" (see '{command} --help')" if command else ""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(text.split()) + advice
