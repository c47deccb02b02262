"""Rows: blocks of a matrix in ordinary units, never a change to the caller's numbers."""

import math
from dataclasses import replace

import laws
import pytest
import torch
from torch import Tensor

from ellp import InputError
from ellp.rows import ORDINARY, Rows, first_bad_row, read_rows


def together(rows: Rows) -> Tensor:
    """All blocks of the transformed rows, in the caller's units."""
    return torch.cat([block for _, block in rows.transformed()]).double() * rows.scale


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 512, 1000])
def test_blocks_cover_every_row_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ellp.rows.CPU_BLOCK", 1)
    A = laws.draw(count, 2)
    rows = read_rows(A, None, None)
    assert rows.block == 256
    spans = [span for span, _ in rows.blocks()]
    assert [i for span in spans for i in range(count)[span]] == list(range(count))
    assert torch.equal(together(rows), A)


@laws.each_dtype
@pytest.mark.parametrize("t", [2.0**-14, 1.0, 2.0**10])
def test_rows_are_the_matrix_times_the_metric(dtype: torch.dtype, t: float) -> None:
    A = (t * laws.draw(40, 3)).to(dtype)
    S = laws.metric_factor(3)
    rows = read_rows(A, None, S)
    assert rows.work == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(together(rows), A.double() @ S, rtol=1e-5, atol=1e-6 * t)
    basis = laws.rotation(3)[:, :2]
    torch.testing.assert_close(together(rows.restricted(basis)), A.double() @ S @ basis, rtol=1e-5, atol=1e-6 * t)


@pytest.mark.parametrize("t", [1e-300, 1e-30, ORDINARY / 2, 4 * ORDINARY, 1e30, 1e300])
def test_entries_are_brought_to_ordinary_size(t: float) -> None:
    A = t * laws.chances(10, 3)
    rows = read_rows(A, None, None)
    largest = max(float(block.abs().max()) for _, block in rows.blocks())
    assert 1 / ORDINARY <= largest <= ORDINARY
    assert math.frexp(rows.scale)[0] == 0.5, "a power of two loses no digit"
    assert torch.equal(together(rows), A)


def test_importances_keep_their_unit() -> None:
    c = laws.importances(30)
    rows = read_rows(laws.draw(30, 2), c, None)
    assert float(rows.weight.mean()) == pytest.approx(1.0)
    torch.testing.assert_close(rows.weight * rows.unit, c)


def test_unmeasured_undoes_the_metric() -> None:
    S, right = laws.metric_factor(4), laws.draw(2, 4)
    rows = read_rows(laws.draw(9, 4), None, S)
    torch.testing.assert_close(rows.unmeasured(right @ S), right)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (7, 2), (39, 1)])
def test_the_first_bad_row_is_named(bad: float, row: int, column: int) -> None:
    A = laws.draw(40, 3)
    A[row, column] = bad
    A[min(row + 1, 39)] = math.nan if row < 39 else A[39]
    kind = "NaN" if math.isnan(bad) else "infinity"
    assert first_bad_row(A) == f"{kind} in row {row}, column {column}"
    with pytest.raises(InputError, match=f"{kind} in row {row}, column {column}"):
        read_rows(A, None, None)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 6.0])
def test_a_sample_estimates_the_cost_without_bias(p: float) -> None:
    """Horvitz-Thompson: the mean over samples of the sampled cost is the cost of all rows."""
    A, c = laws.rows_of("heavy"), laws.importances(80)
    rows = read_rows(A, c, None)
    x = laws.draw(6, 4, seed=3)
    truth = laws.cost(A, x, p, rows.weight)
    drawn = [rows.sample(30, p, seed) for seed in range(400)]
    values = torch.stack([laws.cost(A[sample.index], x, p, sample.weight) for sample in drawn])
    noise = values.std(dim=0) / math.sqrt(len(drawn))
    assert bool(((values.mean(dim=0) - truth).abs() <= 5 * noise + 1e-12 * truth).all())
    assert 15 <= sum(sample.count for sample in drawn) / len(drawn) <= 31


def test_a_sample_never_draws_what_has_no_weight() -> None:
    A, c = laws.draw(200, 3), laws.importances(200)
    rows = read_rows(A, c, None)
    sample = rows.sample(100, 1.0, seed=0)
    ignored = {tuple(row.tolist()) for row in A[c == 0]}
    assert not ignored & {tuple(row.tolist()) for row in together(sample)}
    assert sample.count > 50


def test_precise_reads_in_float64() -> None:
    rows = read_rows(laws.draw(5, 2).float(), None, None)
    assert {block.dtype for _, block in rows.precise().blocks()} == {torch.float64}
    assert replace(rows, work=torch.float32) == rows
