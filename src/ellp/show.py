"""What the command line shows: progress on stderr, a short result on stdout, the same facts as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ellp.budget import break_even


class LayerProgress:
    """A progress line for a model: the layer at work, a bar and the time left."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.task = self.progress.add_task("reading the model", total=None)

    def __enter__(self) -> LayerProgress:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __call__(self, layer: str, done: int, total: int) -> None:
        self.progress.update(self.task, description=layer or "writing", completed=done, total=total)

    def share(self, layer: str, number: int, done: float) -> None:
        """The same for work that tells how large a part of it is done."""
        self.progress.update(self.task, description=layer, completed=done, total=1)


def compress_summary(record: Mapping[str, Any]) -> str:
    """A compression in a few lines for a person."""
    layers = record["layers"]
    chosen = [layer for layer in layers if layer["rank"] is not None or layer["coded"]]
    width = max(len(layer["name"]) for layer in layers)
    lines = []
    for layer in layers if len(layers) <= 12 else chosen[:10]:
        shape = f"{layer['rows']} x {layer['columns']}"
        if layer["coded"]:
            lines.append(f"{layer['name']:{width}}  {shape:>13}  {code_line(layer)}")
        elif layer["rank"] is None:
            lines.append(f"{layer['name']:{width}}  {shape:>13}  dense: {layer['skipped']}")
        else:
            share = layer["parameters_after"] / layer["parameters_before"]
            proof = f"distortion {layer['distortion']:.4g} proved"
            lines.append(f"{layer['name']:{width}}  {shape:>13}  rank {layer['rank']:<4} {share:>6.1%}  {proof}")
    if len(layers) > 12:
        lines.append(
            f"... {len(chosen)} layers factored, {len(layers) - len(chosen)} left dense (all in the model card)"
        )
    before, after = record["parameters_before"], record["parameters_after"]
    lines += [
        f"parameters  {before:,} -> {after:,} ({after / before:.1%} of the model)",
        *weighing_lines(record.get("weighing") or {}),
        f"on disk     {size(record['bytes_before'])} -> {size(record['bytes_after'])}, dtype {record['dtype']}",
        f"written to  {record['output']}  (model card: {record['output']}/README.md)",
        f"load with   import ellp; transformers.{record['auto_class']}.from_pretrained({record['output']!r})",
    ]
    return "\n".join(lines)


def weighing_lines(facts: Mapping[str, Any]) -> list[str]:
    """What rows and directions weighed, and why not more."""
    if not facts.get("asked") and not facts.get("reason"):
        return []
    lines = [f"importance  {facts['importance']}" + (f" ({facts['reason']})" if facts.get("reason") else "")]
    found, missing = facts.get("sensitivity"), facts.get("sensitivity_missing")
    if found:
        lines.append(f"sensitivity of the output measured on texts {found['texts']}")
    elif missing:
        lines.append(f"sensitivity not measured: {missing}")
    return lines


def code_line(layer: Mapping[str, Any]) -> str:
    """A coded table in a few words: how, in how many bytes, at what error."""
    coded = layer["coded"]
    share = coded["bytes"] / (2 * layer["parameters_before"])
    return f"{coded['chosen']['coder']}, {size(coded['bytes'])} ({share:.2%} of float16), error {coded['error']:.2%}"


def factor_summary(record: Mapping[str, Any]) -> str:
    """A factorization in a few lines for a person."""
    proof, rank = {name: float(value) for name, value in record["certificate"].items()}, record["rank"]
    rows, columns = record["shape"]
    passes = "1 pass" if proof["steps"] == 1 else f"{proof['steps']:.0f} passes"
    before, after = record["bytes_before"], record["factor_bytes"]
    lines = [
        f"{rows} x {columns}  ->  {rows} x {rank}  and  {rank} x {columns}",
        f"size         {size(before)} -> {size(after)}  ({after / before:.1%} of the parameters)",
        f"certificate  distortion {proof['distortion']:.4g} proved in {passes} (p = {float(record['p']):g})",
        f"error        {proof['error']:.6g}{_against(proof['error'], record['svd_error'])}",
        f"             proved to lie between {proof['lower']:.4g} and {proof['upper']:.4g}",
        f"read         {record['reads']} times{_speed(record['rows_per_second'])}",
        f"written to   {record['output']}  ({size(record['bytes_written'])} with sigma and axes)",
    ]
    if rank > break_even((rows, columns)):
        lines.insert(
            2, f"warning      the factors are larger than the matrix: keep it, or rank <= {break_even((rows, columns))}"
        )
    return "\n".join(lines)


def code_summary(record: Mapping[str, Any]) -> str:
    """A coded table in a few lines for a person."""
    (rows, columns), chosen, used = record["shape"], record["chosen"], record["bytes"]
    whole = record["bytes_in_float16"]
    return "\n".join(
        [
            f"{rows} x {columns}  ->  {size(used)} of the {size(record['bytes_asked'])} asked for",
            f"size         {size(whole)} in float16 -> {size(used)}  ({used / whole:.1%})",
            f"code         {record['kind']}, {chosen['coder']}",
            f"error        {record['error']:.3%} of the rows' weighted square around their mean",
            f"read         {record['reads']} times{_speed(record['rows_per_second'])}",
            f"written to   {record['output']}  ({size(record['bytes_written'])})",
            f"read it by   ellp.scale.coded_file.open_coded({record['output']!r}).rows(ids)",
        ]
    )


def _speed(rows_per_second: float | None) -> str:
    return "" if rows_per_second is None else f", {rows_per_second:,.0f} rows a second"


def _against(error: float, found: float | str | None) -> str:
    if found is None:
        return ""
    baseline = float(found)
    if baseline == 0:
        return ": exact, as the SVD" if error == 0 else ": the SVD is exact here"
    if not math.isfinite(error / baseline):
        return ": too large a number to compare with the SVD's"
    change = error / baseline - 1
    if abs(change) < 5e-5:
        return ": the same as the SVD's"
    return f": {abs(change):.2%} {'above' if change > 0 else 'below'} the SVD's"


def size(count: float) -> str:
    """A number of bytes for a person."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
