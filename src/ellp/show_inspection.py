"""An inspection as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ellp.inspection import Inspection, Matrix

HEADS = ("layer", "kind", "shape", "share", "break-even", "eff. rank", "90 %", "99 %", "cond.", "max/med", "top 1 %")
LEGEND = (
    "break-even: largest rank that saves parameters. eff. rank: exp of the entropy of the squared singular values.\n"
    "90 %, 99 %: ranks holding that much of the squared sum. cond.: largest over smallest singular value.\n"
    "max/med: longest over median row. top 1 %: share of the squared sum in the longest 1 % of rows."
)


def summary(inspection: Inspection) -> str:
    """Every matrix in a line, the longest rows of embeddings, and the verdicts that were measured."""
    matrices = inspection.matrices
    held = sum(matrix.parameters for matrix in matrices)
    share = f" ({held / inspection.parameters:.1%})" if inspection.parameters else ""
    parts = [
        f"{len(matrices)} matrices hold {held:,} of the model's {inspection.parameters:,} parameters{share}",
        columns([HEADS, *(_line(matrix) for matrix in matrices)], left=3),
        LEGEND,
        "\n".join(_longest(matrix) for matrix in matrices if matrix.kind == "embedding"),
        _verdicts(inspection),
    ]
    others = [(matrix.name, ", ".join(matrix.tied)) for matrix in matrices if matrix.tied]
    if others:
        parts.append("tied\n" + _indented(columns([(name, f"= {tied}") for name, tied in others], left=2)))
    if inspection.skipped:
        parts.append("passed over\n" + _indented(columns(inspection.skipped, left=2)))
    return "\n\n".join(part for part in parts if part)


def columns(lines: Sequence[Sequence[str]], left: int) -> str:
    """Cells in aligned columns, the first ``left`` of them to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _line(matrix: Matrix) -> tuple[str, ...]:
    spectrum, lengths = matrix.spectrum, matrix.lengths
    return (
        matrix.name,
        matrix.kind,
        _shape(matrix),
        f"{matrix.share:.1%}",
        str(matrix.break_even),
        f"{spectrum.effective_rank:.1f}",
        str(spectrum.rank_90),
        str(spectrum.rank_99),
        f"{spectrum.condition:.3g}",
        f"{lengths.longest_over_median:.2f}",
        f"{lengths.top_share:.1%}",
    )


def _shape(matrix: Matrix) -> str:
    return f"{matrix.shape[0]} x {matrix.shape[1]}"


def _longest(matrix: Matrix) -> str:
    rows = (
        f"{row.index if row.token is None else repr(row.token)} ({row.ratio:.2f})" for row in matrix.lengths.longest
    )
    zero = f"; {matrix.lengths.zero_rows} rows are zero" if matrix.lengths.zero_rows else ""
    return f"longest rows of {matrix.name}, over the median: {', '.join(rows)}{zero}"


def _verdicts(inspection: Inspection) -> str:
    measured = [
        (matrix.name, f"rank {matrix.robustness.rank}", matrix.robustness.verdict)
        for matrix in inspection.matrices
        if matrix.robustness is not None
    ]
    head = (
        f"p = 1 against the SVD at {inspection.keep:.3g} of the parameters, on {len(measured)} of "
        f"{len(inspection.matrices)} matrices (differences up to {inspection.threshold:.0%} count as none)"
    )
    lines = [head, _indented(columns(measured, left=3))] if measured else [head]
    reasons: dict[str, list[str]] = {}
    for matrix in inspection.matrices:
        if matrix.unmeasured is not None:
            reasons.setdefault(matrix.unmeasured, []).append(matrix.name)
    for reason, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"  not measured: {shown} ({reason})")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
