"""Write a table of any size: correlated columns, and rows with heavy-tailed lengths as embeddings have.

    python examples/make_table.py table.npy --rows 12500000 --columns 128      # 6.4 GB
    python examples/make_table.py table.npy --bytes 6GB --columns 128

The rows depend on the seed and their place alone, and never more than a few megabytes of them are in memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

BLOCK = 16384  # rows drawn together
CONDITION = 1000.0  # of the columns
TAIL = 1.5  # exponent of the Pareto tail of the rows' lengths


def blocks(rows: int, columns: int, seed: int):
    """The table in blocks of rows (float32)."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    mix = (np.geomspace(1.0, 1.0 / CONDITION, columns)[:, None] * turn).astype(np.float32)
    for first in range(0, rows, BLOCK):
        own = np.random.default_rng([seed, first])
        count = min(BLOCK, rows - first)
        table = own.standard_normal((count, columns), dtype=np.float32) @ mix
        yield table * ((1.0 - own.random((count, 1))) ** (-1.0 / TAIL)).astype(np.float32)


def make_table(path: Path, rows: int, columns: int, seed: int = 0) -> None:
    """Write the table as a ``.npy`` file."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks(rows, columns, seed):
            file.write(block.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--bytes", help="in place of --rows, as in 6GB")
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = options.rows
    if (rows is None) == (options.bytes is None):
        parser.error("need one of --rows and --bytes")
    if rows is None:
        from ellp.scale.budget import parse_memory

        rows = parse_memory(options.bytes) // (4 * options.columns)
    make_table(options.path, rows, options.columns, options.seed)
    print(f"{options.path}: {rows} x {options.columns}, {options.path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
