"""What a sweep measures: the cross product of its axes, each cell under a name that never changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ellp.errors import InputError
from ellp.importance.spec import parse
from ellp.sweep.methods import FISHER, METHODS, TASK_TEXT, UNIFORM, Method
from ellp.tasks.glue import OWN, TASKS, check_names


@dataclass(frozen=True)
class Entry:
    """One model of a sweep: its key in the record, where it comes from, and the tasks it is measured on."""

    key: str
    source: str
    tasks: tuple[str, ...]
    family: str = ""


@dataclass(frozen=True)
class Variant:
    """What is put in a layer's place: a method, its norm and importance, and the budget it has."""

    method: str
    p: float | None = None
    importance: str | None = None
    keep: float | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        """A short name that is readable, sorts well and is the same in every run.

        >>> Variant("lp", 1.0, "uniform", keep=0.72).name, Variant("int4").name
        ('lp-p1-uniform-keep0.72', 'int4')
        """
        axes = METHODS[self.method].axes
        parts = [self.method]
        parts += [f"p{self.p:g}"] if "p" in axes else []
        parts += [str(self.importance)] if "importance" in axes else []
        parts += [] if self.keep is None else [f"keep{self.keep:.6g}"]
        parts += [] if self.share is None else [f"bytes{self.share:.6g}"]
        return "-".join(parts)


@dataclass(frozen=True)
class Cell:
    """One measurement: a model with a variant in place of its layers, on a task."""

    model: str
    layers: str
    variant: Variant
    task: str

    @property
    def id(self) -> str:
        return f"{self.model}/{self.task}/{self.layers}/{self.variant.name}"

    def facts(self) -> dict[str, Any]:
        """What the record says about the cell before it is measured."""
        facts = asdict(self.variant)
        p = facts["p"]
        facts["p"] = p if p is None or math.isfinite(p) else str(p)
        facts["bytes_asked"] = facts.pop("share")
        return {
            "id": self.id,
            "model": self.model,
            "task": self.task,
            "layers": self.layers,
            "layer": self.layers,
            **facts,
        }


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep. ``keep`` are shares of the parameters, ``shares`` of the float16 bytes."""

    models: tuple[Entry, ...]
    methods: tuple[str, ...]
    p: tuple[float, ...] = (1.0,)
    importances: tuple[str, ...] = (UNIFORM,)
    keep: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    layers: str = "embeddings"

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise InputError(f"need a method out of {', '.join(METHODS)}, got {name!r}: pass one of these")
        for method in (METHODS[name] for name in self.methods):
            if method.budget == "keep" and not self.keep:
                raise InputError(f"need shares to keep for {method.name}, got none: pass --keep 0.5,0.25")
            if method.budget == "bytes" and not self.shares:
                raise InputError(f"need shares of the bytes for {method.name}, got none: pass --bytes 1/8,1/16")
        for value in (*self.keep, *self.shares):
            if not 0 < value <= 1:
                raise InputError(f"need shares above 0 and at most 1, got {value:g}: 0.25 keeps a quarter")
        for norm in self.p:
            if not norm >= 0:
                raise InputError(f"need p of 0 or more, got {norm}: 1 is robust, 2 is the SVD")
        if next(self.variants(), None) is None:
            raise InputError("need a method, a norm and an importance, got none of one of them: name at least one each")
        keys = [entry.key for entry in self.models]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise InputError(f"need models of different names, got {twice[0]!r} twice: write NAME=MODEL")

    def variants(self) -> Iterator[Variant]:
        """Every method with every p, importance and budget that it takes."""
        seen: set[Variant] = set()
        for name in self.methods:
            method = METHODS[name]
            for p in self.p if "p" in method.axes else (method.p,):
                for importance in self.importances if "importance" in method.axes else (method.importance,):
                    for variant in self._budgets(method, p, importance):
                        if variant not in seen:
                            seen.add(variant)
                            yield variant

    def _budgets(self, method: Method, p: float | None, importance: str | None) -> Iterator[Variant]:
        if method.budget == "keep":
            yield from (Variant(method.name, p, importance, keep=keep) for keep in self.keep)
        elif method.budget == "bytes":
            yield from (Variant(method.name, p, importance, share=share) for share in self.shares)
        else:
            yield Variant(method.name, p, importance)

    def cells(self) -> list[Cell]:
        """The cross product, model by model."""
        variants = list(self.variants())
        return [
            Cell(entry.key, self.layers, variant, task)
            for entry in self.models
            for variant in variants
            for task in entry.tasks
        ]

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task for entry in self.models for task in entry.tasks))

    @property
    def labelled(self) -> bool:
        """Whether a method learns importances from labelled examples."""
        named = {METHODS[name].importance for name in self.methods} | {*self.importances}
        return FISHER in named


def read_shares(text: str) -> tuple[float, ...]:
    """Shares as people write them.

    >>> read_shares("1/8, 0.25")
    (0.125, 0.25)
    """
    try:
        return tuple(float(Fraction(part.strip())) for part in text.split(",") if part.strip())
    except (ValueError, ZeroDivisionError):
        raise InputError(f"need shares such as 0.5,0.25 or 1/8,1/16, got {text!r}: correct it") from None


def read_norms(text: str) -> tuple[float, ...]:
    """Norms as people write them: ``1,1.5,inf``."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"need values of p such as 1,1.5, got {text!r}: correct it") from None


def read_models(given: Sequence[str], tasks: Sequence[str]) -> tuple[Entry, ...]:
    """Models as named on the command line: ``MODEL``, ``TASK=MODEL``, ``NAME=MODEL`` or ``NAME:TASK=MODEL``.

    A model with a task of its own is measured on that task, all others on ``tasks``. A folder that holds one model
    folder a task, under the tasks' names, stands for all of them.

    >>> read_models(["mrpc=fine/tuned", "big=some/model"], ["sst2"])[1]
    Entry(key='big', source='some/model', tasks=('sst2',), family='big')
    """
    if tasks:
        check_names(list(tasks))
    found: list[Entry] = []
    for text in given:
        label, _, source = text.rpartition("=") if not Path(text).exists() else ("", "", text)
        family, _, task = label.rpartition(":")
        if not family and task not in (*TASKS, OWN):
            family, task = task, ""
        if task:
            check_names([task])
            key = f"{family}:{task}" if family else task
            found.append(Entry(key, source, (task,), family))
        else:
            found += _of_folder(source, family, tasks)
    if not found:
        raise InputError("need at least one model, got none: pass a folder, a hub id, TASK=MODEL or demo")
    return tuple(found)


def _of_folder(source: str, family: str, tasks: Sequence[str]) -> Iterable[Entry]:
    folder = Path(source)
    name = family or folder.name or source
    inner = _tasks_in(folder)
    if inner:
        wanted = [task for task in inner if not tasks or task in tasks]
        if not wanted:
            raise InputError(f"need models for {', '.join(tasks)} in {source}, got {', '.join(inner)}: correct --task")
        prefix = f"{family}:" if family else ""
        return [Entry(f"{prefix}{task}", str(folder / task), (task,), family) for task in wanted]
    if not tasks:
        raise InputError(f"need a task for {source}, got none: pass --task, or TASK={source}")
    return [Entry(name.replace("/", "-"), source, tuple(tasks), family)]


def _tasks_in(folder: Path) -> list[str]:
    """The tasks that have a model folder of their own in a folder that is no model itself."""
    kinds = ("config.json", "adapter_config.json")
    if not folder.is_dir() or any((folder / kind).is_file() for kind in kinds):
        return []
    return [task for task in sorted(TASKS) if any((folder / task / kind).is_file() for kind in kinds)]


def read_importances(given: Sequence[str]) -> tuple[str, ...]:
    """Importances as people write them, commas between; a comma within ``words:en,de`` is part of it.

    >>> read_importances(["uniform,words:en,de", "0.5*prior+0.5*words"])
    ('uniform', 'words:en,de', '0.5*prior+0.5*words')
    """
    found: list[str] = []
    for part in (part.strip() for text in given for part in text.split(",")):
        if found and not _is_importance(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    for name in found:
        if name not in (UNIFORM, FISHER, TASK_TEXT):
            parse(name)
    return tuple(dict.fromkeys(found))


def _is_importance(text: str) -> bool:
    try:
        return text in (FISHER, TASK_TEXT) or bool(parse(text))
    except InputError:
        return False
