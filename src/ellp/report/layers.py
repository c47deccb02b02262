"""What a record knows about each layer: its spectra, the certificates of its ellipsoids, its longest rows by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ellp.report.curves import key_of, power, series_order
from ellp.report.read import Cell, Run
from ellp.report.wording import share

LONG = 3.0  # times the median: shorter rows give a robust norm little to be robust against


@dataclass(frozen=True)
class Outlier:
    row: int
    token: str
    length: float
    times: float


@dataclass(frozen=True)
class Certified:
    """A setting's evidence: the distortion proved, its ideal, and the errors measured on the factors."""

    method: str
    setting: str
    rank: str
    distortion: str
    ideal: str
    steps: str
    l1: str
    l2: str


@dataclass(frozen=True)
class Layer:
    """A layer, once for all models in which it is the same. A spectrum is a list of (rank, length over the longest)."""

    name: str
    rows: int
    columns: int
    models: tuple[str, ...]
    spectra: Mapping[str, tuple[tuple[float, float], ...]]
    ranks: tuple[int, ...]
    outliers: tuple[Outlier, ...]
    certificates: tuple[Certified, ...]

    @property
    def about_rows(self) -> str:
        """What the longest rows mean for a robust norm, in a sentence."""
        if not self.outliers:
            return ""
        longest = max(outlier.times for outlier in self.outliers)
        if longest < LONG:
            far = f"the longest has {longest:.1f} times the median length"
            return f"No row is far out: {far}, so a robust norm has little to resist."
        return f"The longest row has {longest:.1f} times the median length."


def layers(run: Run) -> list[Layer]:
    """Every layer of every model; the same layer in several models (adapters of one base) is told once."""
    alike: dict[str, tuple[Mapping[str, Any], list[str], list[str]]] = {}
    for model in run.models:
        for layer in model.get("layers") or ():
            names = alike.setdefault(json.dumps(layer, sort_keys=True, default=str), (layer, [], []))
            names[1].append(str(model.get("name") or model.get("key")))
            names[2].append(str(model.get("key")))
    return [_layer(layer, names, keys, run) for layer, names, keys in alike.values()]


def together(run: Run) -> list[Certified]:
    """The certificates of several layers changed at once: of each setting the weakest proof and the errors of all."""
    return list(_certificates([cell for cell in run.cells if len(cell.names) > 1], None))


def _layer(layer: Mapping[str, Any], names: list[str], keys: list[str], run: Run) -> Layer:
    name, rows, columns = str(layer.get("name") or ""), int(layer.get("rows") or 0), int(layer.get("columns") or 0)
    cells = [cell for cell in run.cells if cell.model in keys and cell.names == (name,)]
    return Layer(
        name,
        rows,
        columns,
        tuple(names),
        _spectra(layer.get("spectrum") or {}),
        tuple(sorted({cell.rank for cell in cells if cell.rank is not None})),
        tuple(_outliers(layer.get("outliers") or ())),
        tuple(_certificates(cells, min(rows, columns))),
    )


def _spectra(found: Mapping[str, Any]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Each p's axes, the longest being 1; the record has ranks beside all of them, or beside each."""
    spectra = {}
    for name, values in found.items():
        if name == "ranks" or values is None:
            continue
        own = isinstance(values, Mapping)
        lengths = [float(value) for value in (values.get("sigma") or values.get("values") or () if own else values)]
        ranks = (values.get("ranks") if own else found.get("ranks")) or range(1, len(lengths) + 1)
        longest = max((length for length in lengths if math.isfinite(length)), default=0.0)
        pairs = [(float(rank), length / longest) for rank, length in zip(ranks, lengths, strict=False) if longest > 0]
        spectra[_norm(name)] = tuple((rank, length) for rank, length in pairs if math.isfinite(length) and length > 0)
    return {name: pairs for name, pairs in spectra.items() if pairs}


def _norm(name: str) -> str:
    try:
        return f"p = {power(float(name))}"
    except ValueError:
        return name


def _outliers(found: Iterable[Mapping[str, Any]]) -> Iterable[Outlier]:
    for row in found:
        token = row.get("token")
        shown = "–" if token is None else visible(str(token))
        length, times = (float("nan" if row.get(name) is None else row[name]) for name in ("length", "times_median"))
        yield Outlier(int(row.get("row") or 0), shown, length, times)


def visible(token: str) -> str:
    """A token in one line: what cannot be seen is written as Python escapes it.

    >>> visible("a" + chr(10)), visible(" ")
    ('a\\\\n', "' '")
    """
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in token)
    return repr(shown) if shown != shown.strip() or not shown else shown


def _certificates(cells: list[Cell], width: int | None) -> Iterable[Certified]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if cell.certificate:
            groups.setdefault((key_of(cell), cell.keep, cell.rank), []).append(cell)
    for key, keep, rank in sorted(groups, key=lambda found: (series_order(found[0]), -(found[1] or 0))):
        group = groups[key, keep, rank]
        p = 2.0 if key.method in ("svd", "fwsvd") else key.p
        yield Certified(
            key.label,
            "" if keep is None else f"keep {keep:.4g}",
            "–" if rank is None else str(rank),
            _range([cell.certificate or {} for cell in group], "distortion", _short),
            "–" if p is None or width is None or math.isinf(p) else _short(width ** abs(1 - p / 2)),
            _range([cell.certificate or {} for cell in group], "steps", lambda steps: f"{steps:.0f}"),
            _range([cell.relative_error for cell in group], "l1", share),
            _range([cell.relative_error for cell in group], "l2", share),
        )


def _range(found: Iterable[Mapping[str, float]], name: str, shown: Any) -> str:
    """A number, or two where models differ."""
    values = [facts[name] for facts in found if name in facts]
    ends = list(dict.fromkeys(str(shown(value)) for value in (min(values), max(values)))) if values else ["–"]
    return " to ".join(ends)


def _short(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.4g}"
