"""Passes over a table: visited part by part, merged in one order, kept in a journal, and told to whoever watches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from ellp.errors import InputError
from ellp.rows import Merge, Sums, added
from ellp.scale.journal import Journal
from ellp.scale.ondisk import Stored, Task
from ellp.scale.parts import Part, Tree
from ellp.scale.threads import Workers

PATIENCE = 10.0  # seconds between checkpoints within a pass


class Watch(Protocol):
    """Somebody who looks on."""

    def begin(self, name: str, rows: int, done: int) -> None:
        """A pass begins, and so many rows of it were done by an earlier run."""

    def advance(self, rows: int) -> None:
        """So many rows more are done."""

    def reached(self, distortion: float) -> None:
        """This distortion is proved."""

    def say(self, text: str) -> None:
        """Something worth a line of its own."""


class Nobody:
    def begin(self, name: str, rows: int, done: int) -> None: ...
    def advance(self, rows: int) -> None: ...
    def reached(self, distortion: float) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass
class Passes:
    """What it takes to run a pass; ``names`` are the passes made so far, by this run or one that it goes on from."""

    parts: list[Part]
    workers: Workers
    journal: Journal
    stamp: dict[str, Any]
    watch: Watch = field(default_factory=Nobody)
    names: list[str] = field(default_factory=list)
    rows_read: int = 0
    seconds: float = 0.0

    @property
    def speed(self) -> float | None:
        """Rows a second, over all passes of this run."""
        return self.rows_read / self.seconds if self.seconds else None

    def run(self, task: Task, merge: Merge = added, name: str | None = None) -> Sums:
        """The sums over all parts; those of an earlier run that was stopped are not computed again."""
        self.names.append(name or f"pass {sum(made.startswith('pass') for made in self.names) + 1}")
        key = self.journal.key(self.stamp, task)
        found = self.journal.recall(key)
        if found is not None:
            return found
        begun = time.perf_counter()
        tree = self.journal.recall_tree(key)
        self.watch.begin(self.names[-1], self.parts[-1].last, self.parts[tree.done - 1].last if tree.done else 0)
        self._visit(task, merge, tree, key)
        if tree.done != len(self.parts):
            raise RuntimeError(f"{tree.done} of {len(self.parts)} parts came back")
        self._check_unchanged(task.stored)
        found = tree.total(merge)
        self.journal.keep(key, found)
        self.seconds += time.perf_counter() - begun
        return found

    def _visit(self, task: Task, merge: Merge, tree: Tree, key: str) -> None:
        last = time.monotonic()
        for sums, parts, level in self.workers.visit(task, self.parts, tree.done, merge):
            covered = self.parts[tree.done : tree.done + parts]
            tree.add(sums, merge, parts, level)
            rows = covered[-1].last - covered[0].first
            self.rows_read += rows
            self.watch.advance(rows)
            if time.monotonic() - last > PATIENCE and tree.done < len(self.parts):
                self.journal.keep_tree(key, tree)
                last = time.monotonic()

    def _check_unchanged(self, stored: Stored) -> None:
        if stored.stamp() != self.stamp:
            raise InputError(
                f"need a table that stays as it is, got {stored.source.name} changed while it was read: start again"
            )
