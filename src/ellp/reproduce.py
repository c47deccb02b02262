"""The source paper's table and figure, measured: the drop of GLUE scores when only the embedding is compressed.

Tukan, Maalouf, Weksler and Feldman, *Compressed Deep Networks: Goodbye SVD, Hello Robust Low-Rank Approximation*, 2020,
`arXiv:2009.05647 <https://arxiv.org/abs/2009.05647>`_. Table 1 has their models RE-RoBERTa, RE-XLNet, RE-BERT and
RE-DistilBERT at the rates in :mod:`ellp.presets`; the figure has the drop against the rate, for l_1 and for the SVD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ellp.bundle import model_type_of
from ellp.errors import InputError
from ellp.folder import replacing
from ellp.presets import REMOVED, default_name, share_kept
from ellp.report.curves import Estimate, Panel, Series, key, panels, task_label
from ellp.report.figures import draw, rendered
from ellp.report.read import read_run
from ellp.sweep.grid import Entry, Grid
from ellp.sweep.run import sweep

SOURCE = "Tukan et al. 2020, arXiv:2009.05647"
FIGURE_KEEP = (0.95, 0.85, 0.72, 0.59, 0.4, 0.25, 0.1)
METHODS = ("svd", "lp")
OURS, THEIRS = key("lp", 1.0, None), key("svd", 2.0, None)

# Fine-tuned models with a task in the name. MNLI is left out: these heads do not say which output is which class.
HUB = {
    "roberta-base": ("CoLA", "MRPC", "QNLI", "RTE", "SST-2", "STS-B", "WNLI"),
    "xlnet-base-cased": ("CoLA", "MRPC", "RTE", "SST-2", "STS-B", "WNLI"),
    "bert-base-uncased": ("CoLA", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"),
    "distilbert-base-cased": ("CoLA", "MRPC", "QQP", "SST-2", "STS-B"),
}


@dataclass(frozen=True)
class Published:
    """The mean drop over GLUE's tasks that the paper reports, for its method and for the SVD."""

    ours: float
    svd: float


PUBLISHED = {("roberta", "re-small"): Published(0.63, 11.0)}
"""What the abstract states. The table's other values could not be checked against the paper itself, so none stands
here from memory."""


@dataclass(frozen=True)
class Row:
    """A model at one of the paper's rates: drops in points by task and in the mean, and the SVD's beside them."""

    name: str
    model_type: str
    rate: float
    drops: Mapping[str, Estimate | None]
    mean: Estimate | None
    svd_drops: Mapping[str, Estimate | None]
    svd_mean: Estimate | None
    published: Published | None


def hub_models() -> tuple[Entry, ...]:
    """The default: one model a task, from the Hugging Face hub."""
    return tuple(
        Entry(f"{base}:{task}", f"textattack/{base}-{name}", (task,), base)
        for base, names in HUB.items()
        for name in names
        for task in [name.lower().replace("-", "")]
    )


def measure_table1(entries: Sequence[Entry], folder: Path, data: Path | None, **options: Any) -> None:
    """Sweep every model at the rates the paper has for its kind; what the record has already is kept."""
    kinds: dict[str, list[Entry]] = {}
    for entry in entries:
        kinds.setdefault(model_type_of(entry.source, options.get("base")), []).append(entry)
    for kind in kinds:
        share_kept(kind, "re-base")  # complains of kinds the paper does not have, before any work
    for kind, some in kinds.items():
        keep = tuple(share_kept(kind, preset) for preset in REMOVED[kind])
        sweep(Grid(tuple(some), METHODS, keep=keep), folder, data, **options)


def measure_figure1(entries: Sequence[Entry], folder: Path, data: Path | None, **options: Any) -> None:
    """Sweep every model over the figure's rates."""
    sweep(Grid(tuple(entries), METHODS, keep=FIGURE_KEEP), folder, data, **options)


# The table ------------------------------------------------------------------------------------------------------------


def table1(folder: Path) -> list[Row]:
    """The rows that a record holds."""
    return [row for panel in _panels(folder) for row in _rows(panel)]


def _rows(panel: Panel) -> Iterable[Row]:
    kind = _kind(panel)
    for preset in REMOVED.get(kind, ()):
        keep = share_kept(kind, preset)
        ours, theirs = (_point(panel.find(one), keep) for one in (OURS, THEIRS))
        if ours is None or theirs is None:
            continue
        yield Row(
            default_name(panel.family or _shared_name(panel) or kind, preset),
            kind,
            round(1 - keep, 10),
            {task: ours.drop(task) for task in panel.tasks},
            ours.average,
            {task: theirs.drop(task) for task in panel.tasks},
            theirs.average,
            PUBLISHED.get((kind, preset)),
        )


def _shared_name(panel: Panel) -> str:
    """What the names of a panel's models have in common, if anything."""
    return "" if panel.name.endswith("one per task") else re.sub(r" \(\d+ models\)$", "", panel.name)


def _point(series: Series | None, keep: float) -> Any:
    return next((point for point in (series.points if series else ()) if point.keep == keep), None)


def _kind(panel: Panel) -> str:
    """The kind of a panel's models, from the name of their class."""
    name = str(next(iter(panel.models.values()), {}).get("architecture", "")).lower()
    return next((kind for kind in sorted(REMOVED, key=len, reverse=True) if name.startswith(kind)), "")


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown: l_1 over the SVD, the paper's means beside ours, what is not known left open."""
    if not rows:
        raise InputError("need a record with the paper's rates, got none of them: pass --models")
    tasks = list(dict.fromkeys(task for row in rows for task in row.drops))
    heads = ["model", "rate", "method", *(task_label(task) for task in tasks), "mean", "published mean"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        said = row.published
        for label, drops, mean, known in (
            (row.name, row.drops, row.mean, said and said.ours),
            ("", row.svd_drops, row.svd_mean, said and said.svd),
        ):
            method = "p = 1" if label else "SVD"
            cells = [label, f"{row.rate:.0%}" if label else "", method, *(_value(drops.get(task)) for task in tasks)]
            cells += [_spread(mean), "not available" if known is None else f"{known:g}"]
            lines.append("| " + " | ".join(cells) + " |")
    note = (
        f"Drops in points, without fine-tuning afterwards; the mean with its 95 % interval. Published: {SOURCE}, "
        "from its abstract, whose mean is over all tasks of GLUE; what could not be read there is not available."
    )
    return "\n".join([*lines, "", note])


def _value(drop: Estimate | None) -> str:
    return "–" if drop is None else f"{drop.value:.2f}"


def _spread(drop: Estimate | None) -> str:
    return "–" if drop is None else f"{drop.value:.2f} ({drop.low:.2f} to {drop.high:.2f})"


def write_table1(folder: Path) -> dict[str, Any]:
    """``table1.md`` and ``table1.json`` beside a record; the rows, ready for JSON."""
    rows = table1(folder)
    text = markdown(rows)
    facts = {"source": SOURCE, "rows": [asdict(row) for row in rows], "markdown": text}
    for name, content in (("table1.md", text), ("table1.json", json.dumps(facts, indent=1))):
        with replacing(folder / name) as draft:
            draft.write_text(content + "\n", encoding="utf-8")
    return facts | {"written": [str(folder / name) for name in ("table1.md", "table1.json")]}


# The figure -----------------------------------------------------------------------------------------------------------


def write_figure1(folder: Path) -> dict[str, Any]:
    """``figure1.png`` and ``figure1.svg`` (with the family's name if there are several) beside a record."""
    found = [(panel, draw(panel, "rate")) for panel in _panels(folder)]
    drawn = [(panel, figure) for panel, figure in found if figure is not None]
    if not drawn:
        raise InputError(f"need p = 1 or the SVD in {folder}, got neither: pass --models")
    written = []
    for panel, figure in drawn:
        stem = "figure1" if len(drawn) == 1 else f"figure1-{re.sub(r'[^A-Za-z0-9.]+', '-', panel.family or panel.name)}"
        for kind in ("png", "svg"):
            path = folder / f"{stem}.{kind}"
            with replacing(path) as draft:
                draft.write_bytes(rendered(figure, kind))
            written.append(str(path))
    return {"source": SOURCE, "panels": [panel.name for panel, _ in drawn], "written": written}


def _panels(folder: Path) -> list[Panel]:
    """The panels of a record, with the two methods that the paper compares and no other."""
    run = read_run(folder)
    cells = [cell for cell in run.cells if key(cell.method, cell.p, cell.importance) in (OURS, THEIRS)]
    return [panel for panel in panels(replace(run, cells=tuple(cells))) if panel.layers == "embeddings"]
