"""Runs over small tables cut into many parts, in processes of their own that may be killed at any moment."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from ellp.scale import parts, passes
from ellp.scale.factor import Found, Job, Place, factorize_file

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ellp.scale.stream", "ellp.scale.factor"])
ROWS, COLUMNS = 5000, 12


def made_table(path: Path, rows: int = ROWS, columns: int = COLUMNS, dtype: str = "float32") -> np.ndarray:
    """A table with rows of heavy-tailed lengths."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((rows, columns)) @ rng.standard_normal((columns, columns))
    table = (table * rng.pareto(1.5, (rows, 1))).astype(dtype)
    np.save(path, table)
    return table


class KillMe:
    """A watch that ends the process, as the kernel would for lack of memory, at the n-th news it gets."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _news(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, name: str, rows: int, done: int) -> None:
        self._news()

    def advance(self, rows: int) -> None:
        self._news()

    def reached(self, distortion: float) -> None:
        self._news()

    def say(self, text: str) -> None: ...


class Count:
    """A watch that counts news, and rows."""

    def __init__(self) -> None:
        self.news = self.rows = 0

    def begin(self, name: str, rows: int, done: int) -> None:
        self.news += 1

    def advance(self, rows: int) -> None:
        self.news += 1
        self.rows += rows

    def reached(self, distortion: float) -> None:
        self.news += 1

    def say(self, text: str) -> None: ...


def small_parts() -> None:
    """20 parts of 256 rows, and a checkpoint after each of them."""
    parts.PART, parts.FAN, passes.PATIENCE = 1, 4, 0.0


def run(table: Path, output: Path, watch: Any = None, **options: Any) -> Found:
    """A factorization in this process."""
    place = Place(output, options.pop("memory", None), options.pop("force", False), dask=options.pop("dask", None))
    return factorize_file(table, Job(**{"rank": 5, "tol": 1e-3, **options}), place, watch)


def target(table: Path, output: Path, kill_at: int, options: dict[str, Any]) -> None:
    small_parts()
    run(table, output, KillMe(kill_at), **options)


def start(table: Path, output: Path, kill_at: int = 0, **options: Any) -> Any:
    """The same in a process of its own."""
    process = CONTEXT.Process(target=target, args=(table, output, kill_at, options))
    process.start()
    return process
