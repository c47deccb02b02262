"""Which piece of work comes next: every model is described first, and processes stay with the model they have open."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ellp.sweep.grid import Cell, Entry, Variant


@dataclass(frozen=True)
class Unit:
    """A piece of work for one process: a variant of a model on some tasks; without a variant, the model itself."""

    entry: Entry
    variant: Variant | None
    tasks: tuple[str, ...]
    attempts: int = 0


class Schedule:
    """The work that is left. ``known`` are the keys of models that are described already."""

    def __init__(self, entries: Iterable[Entry], cells: Iterable[Cell], known: Iterable[str]) -> None:
        self.queues: dict[str, deque[Unit]] = {}
        self.blocked: set[str] = set()
        by_key = {entry.key: entry for entry in entries}
        by_variant: dict[tuple[str, Variant], list[str]] = {}
        for cell in cells:
            by_variant.setdefault((cell.model, cell.variant), []).append(cell.task)
        for (key, variant), tasks in by_variant.items():
            self.queues.setdefault(key, deque()).append(Unit(by_key[key], variant, tuple(tasks)))
        for key in self.queues.keys() - set(known):
            self.queues[key].appendleft(Unit(by_key[key], None, by_key[key].tasks))

    def take(self, last: str | None, busy: Iterable[str]) -> Unit | None:
        """The next unit for a process that has the model ``last`` open, while others work on those in ``busy``."""
        open_keys = [key for key in self.queues if key not in self.blocked]
        if not open_keys:
            return None
        crowd = Counter(busy)
        key = last if last in open_keys else min(open_keys, key=lambda key: crowd[key])
        unit = self.queues[key].popleft()
        if unit.variant is None:
            self.blocked.add(key)  # until it is described
        if not self.queues[key] and key not in self.blocked:
            del self.queues[key]
        return unit

    def described(self, key: str) -> None:
        """The units of a model may begin."""
        self.blocked.discard(key)
        if not self.queues.get(key, True):
            del self.queues[key]

    def again(self, unit: Unit, tasks: tuple[str, ...]) -> None:
        """Put back what is left of a unit whose process died."""
        self.blocked.discard(unit.entry.key)
        queue = self.queues.setdefault(unit.entry.key, deque())
        queue.appendleft(replace(unit, tasks=tasks, attempts=unit.attempts + 1))

    def drop(self, key: str) -> list[Unit]:
        """Give up on a model; the units that will not be done."""
        self.blocked.discard(key)
        return list(self.queues.pop(key, ()))
