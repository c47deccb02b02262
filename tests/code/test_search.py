"""A code fits its bytes, errs less with more of them, and never more than rounding."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import tables
import torch
from laws import refused
from safetensors.torch import save
from torch import Tensor

from ellp.code.rounding import rounded_bytes
from ellp.code.search import Coded, code_table, decode_table

TABLE, IMPORTANCE, METRIC = tables.table(), tables.importances(700), tables.metric(48)
DENSE = 2 * TABLE.numel()  # in float16


@pytest.fixture(scope="module", params=["plain", "weighted"])
def codes(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, dict[float, Coded]]:
    """A table coded at several sizes, with what its rows and directions weigh."""
    given = (None, None) if request.param == "plain" else (IMPORTANCE, METRIC)
    weights = (torch.ones(700), torch.eye(48)) if request.param == "plain" else (IMPORTANCE, METRIC)
    return *weights, {share: code_table(TABLE, int(share * DENSE), *given) for share in (0.15, 0.25, 0.4, 0.7)}


def test_bytes_are_those_stored(codes: tuple[Tensor, Tensor, dict[float, Coded]]) -> None:
    for share, found in codes[2].items():
        stored = len(save({name: tensor.clone() for name, tensor in found.tensors.items()}))
        heads = stored - sum(tensor.numel() * tensor.element_size() for tensor in found.tensors.values())
        assert found.bytes == stored - heads <= int(share * DENSE)


def test_more_bytes_err_less(codes: tuple[Tensor, Tensor, dict[float, Coded]]) -> None:
    errors = [found.error for found in codes[2].values()]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.3 * errors[0]


def test_the_error_told_is_that_of_the_decoded_table(codes: tuple[Tensor, Tensor, dict[float, Coded]]) -> None:
    importance, metric, found = codes
    for coded in found.values():
        read = decode_table(coded, (700, 48))
        assert coded.error == pytest.approx(tables.weighted_error(TABLE, read, importance, metric), rel=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_never_worse_than_rounding_in_as_many_bytes(bits: int) -> None:
    size = rounded_bytes((700, 48), bits) + 4 * 48
    best = code_table(TABLE, size, IMPORTANCE, METRIC)
    plain = code_table(TABLE, size, IMPORTANCE, METRIC, how="rounding")
    assert plain.kind == "rounded" and plain.bits == bits
    assert best.error <= plain.error
    assert any(one.coder == "rounding" for one in best.tried)


def test_the_best_of_what_was_tried_is_taken() -> None:
    found = code_table(TABLE, DENSE // 4, IMPORTANCE)
    assert found.chosen.error == min(one.error for one in found.tried)
    assert {one.coder for one in found.tried} >= {"codebook", "scalar", "int8"}


@pytest.mark.parametrize("how", ["codebook", "scalar", "int8", "rounding"])
def test_a_coder_may_be_named(how: str) -> None:
    assert code_table(TABLE, DENSE // 2, how=how).chosen.coder == how  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_scaling_the_table_changes_no_choice(scale: float) -> None:
    once, again = code_table(TABLE, DENSE // 4, how="codebook"), code_table(scale * TABLE, DENSE // 4, how="codebook")
    assert again.error == pytest.approx(once.error, rel=0.05)


def test_a_few_very_long_rows_are_not_overlooked() -> None:
    """Of a table too large to be looked at whole, the rows that its error hangs on are."""
    table = tables.table(6000)
    table[5990:] *= 500
    found = code_table(table, table.numel() // 4)
    assert found.chosen.error == pytest.approx(found.error, rel=0.7)
    assert found.error < 0.01


def test_rows_that_weigh_nothing_may_be_anything() -> None:
    importance = torch.ones(700)
    importance[300:] = 0.0
    found = code_table(TABLE, DENSE // 4, importance)
    whole = code_table(TABLE, DENSE // 4)
    assert found.error < 0.5 * whole.error


def test_tables_of_zeros_or_of_one_row_are_exact() -> None:
    for made in (torch.zeros(300, 40), torch.ones(300, 40)):
        read = decode_table(code_table(made, 6000), (300, 40))
        assert torch.allclose(read, made, atol=1e-6)


def test_bytes_too_few_are_refused_with_how_many_it_takes() -> None:
    with refused("bytes", "700 x 48", "at least"):
        code_table(TABLE, 500)
    least = rounded_bytes((700, 48), 2) + 4 * 48
    with refused("bytes", f"{least:,}"):
        code_table(TABLE, least - 1, how="rounding")
    assert code_table(TABLE, least, how="rounding").bytes == least


PROGRAM = """
import hashlib, torch, tables
from safetensors.torch import save
from ellp.code.search import code_table
torch.set_num_threads(1)
found = code_table(tables.table(), 2 * 700 * 48 // 4, tables.importances(700), tables.metric(48))
print(hashlib.sha256(save(found.tensors)).hexdigest())
"""


def test_the_same_bytes_in_another_process() -> None:
    ours = code_table(TABLE, DENSE // 4, IMPORTANCE, METRIC)
    program = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{PROGRAM}"]
    theirs = subprocess.run(program, check=True, capture_output=True, text=True).stdout.strip()
    assert theirs == hashlib.sha256(save(ours.tensors)).hexdigest()
    again = code_table(TABLE, DENSE // 4, IMPORTANCE, METRIC, seed=1)
    assert hashlib.sha256(save(again.tensors)).hexdigest() != theirs
