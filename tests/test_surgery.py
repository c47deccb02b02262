"""What a plan promises is what compressing does: sizes, ranks, ties, types, and the best use of the budget."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ellp
from ellp import InputError, Options, Plan, compress, plan
from ellp.budget import break_even, rank_for
from ellp.layers import FactorizedEmbedding, FactorizedLinear, FactorizedTiedHead

WORDS, WIDTH = 300, 48


class Tied(nn.Module):
    """A token table, a layer, and an output head that shares the table."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, **options)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.table(ids))))


class Perceptron(nn.Module):
    """Three linear layers, whose first sees inputs in a few directions only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def of_low_rank(layer: nn.Module, rank: int) -> None:
    with torch.no_grad():
        layer.weight[:] = layer.weight[:, :rank] @ torch.randn(rank, layer.weight.shape[1])


def built(kind: type[nn.Module], **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(**options).eval()


def uneven() -> nn.Sequential:
    """One layer that is nearly of rank 4 beside one whose directions all count the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 256))
    of_low_rank(model[0], 4)
    model[0].weight.data += 1e-3 * torch.randn_like(model[0].weight)
    return model


def product(layer: nn.Module) -> Tensor:
    return layer.weight @ layer.proj.weight if hasattr(layer, "proj") else layer.weight


@torch.no_grad()
def squared_loss(dense: nn.Sequential, small: nn.Sequential) -> float:
    return sum(float((one.weight - product(other)).square().sum()) for one, other in zip(dense, small, strict=True))


# The plan is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"keep": 0.4, "layers": "all"}, {"rank": 6, "layers": "all"}, {"keep": 0.3}])
def test_what_is_planned_is_what_is_done(settings: dict[str, Any]) -> None:
    model = built(Tied)
    before = copy.deepcopy(model.state_dict())
    planned = plan(model, **settings)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    done = compress(model, planned)
    assert done == planned and all(layer.certificate is not None for layer in done.chosen)
    gone = sum(tensor.numel() for tensor in (before["table.weight"], before["hidden.weight"], before["hidden.bias"]))
    assert gone - sum(parameter.numel() for parameter in model.parameters()) == done.before - done.after
    if "keep" in settings:
        assert done.after <= settings["keep"] * done.before


def test_a_plan_reads_as_a_table() -> None:
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH, max_norm=1.0), nn.Linear(64, 96), nn.Linear(96, 5))
    lines = str(plan(model, keep=0.5, layers="all")).splitlines()
    assert "300 x 48" in lines[1] and "max_norm" in lines[1]
    assert "96 x 64" in lines[2] and "6,144 -> 3,040" in lines[2]
    assert "fewer than 32" in lines[3]
    assert lines[-1] == "21,024 -> 17,920 parameters (85.2%)"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rank": 60}, "rank 60 would grow it (break-even 41)"),
        ({"keep": 1.0}, "everything is kept"),
        ({"keep": 1e-3}, "rank 1 would keep"),
    ],
)
def test_a_layer_that_gains_nothing_stays_dense_and_says_why(settings: dict[str, Any], reason: str) -> None:
    model = built(Tied)
    (layer,) = compress(model, **settings).layers
    assert layer.rank is None and reason in (layer.skipped or "") and layer.after == layer.before
    assert type(model.table) is nn.Embedding


def test_progress_names_every_layer_and_ends() -> None:
    told: list[tuple[str, int, int]] = []
    done = compress(uneven(), keep=0.3, layers="linear", progress=lambda *facts: told.append(facts))
    assert [name for name, _, _ in told if name in ("0", "1")] == [layer.name for layer in done.layers]
    assert told[-1] == ("", 2, 2)


def test_a_model_is_compressed_once() -> None:
    model = built(Tied)
    compress(model, keep=0.3)
    with pytest.raises(InputError, match="need a layer to factor"):
        compress(model, keep=0.3)


# Which layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        ("embeddings", ["table"]),
        ("linear", ["hidden"]),
        ("all", ["table", "hidden"]),
        ("head", ["table"]),
        ("h*", ["table", "hidden"]),
        (["hidden", "table"], ["table", "hidden"]),
    ],
)
def test_layers_are_chosen_by_kind_or_name(layers: Any, chosen: list[str]) -> None:
    assert [layer.name for layer in plan(built(Tied), rank=5, layers=layers).chosen] == chosen


def test_an_unknown_layer_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"got 'attention': this model has head, hidden, table"):
        plan(built(Tied), keep=0.5, layers="attention")


def test_a_bare_layer_is_a_model_too() -> None:
    layer = nn.Embedding(WORDS, WIDTH)
    compress(layer, rank=5)
    assert isinstance(layer, FactorizedEmbedding) and layer.weight.shape == (WORDS, 5)


def test_attention_that_reads_weights_itself_is_left_alone() -> None:
    model = nn.TransformerEncoderLayer(64, 2, 128, batch_first=True).eval()
    done = compress(model, rank=8, layers="linear")
    assert {layer.name for layer in done.chosen} == {"linear1", "linear2"}
    assert model(torch.randn(2, 5, 64)).shape == (2, 5, 64)


# The budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.5, 0.8])
def test_a_spread_budget_loses_less_than_a_uniform_one(keep: float) -> None:
    dense = uneven()
    spread, uniform = copy.deepcopy(dense), copy.deepcopy(dense)
    done = compress(spread, keep=keep, layers="linear")
    other = compress(uniform, keep=keep, layers="linear", uniform=True)
    assert done.after <= keep * done.before and other.after <= keep * other.before
    assert squared_loss(dense, spread) < squared_loss(dense, uniform)


def test_a_uniform_rate_gives_every_layer_its_share() -> None:
    done = plan(built(Perceptron), keep=0.4, layers="linear", uniform=True)
    assert [layer.rank for layer in done.layers] == [
        rank_for((layer.rows, layer.columns), 0.4) for layer in done.layers
    ]


def test_the_same_layers_in_another_unit_get_the_same_ranks() -> None:
    one, other = uneven(), uneven()
    for layer in other:
        layer.weight.data *= 1e6
    ranks = [[layer.rank for layer in plan(model, keep=0.3, layers="linear").layers] for model in (one, other)]
    assert ranks[0] == ranks[1]


def test_a_spread_layer_is_never_larger_than_dense() -> None:
    for layer in plan(uneven(), keep=0.9, layers="linear").layers:
        assert layer.rank is None or 1 <= layer.rank <= break_even((layer.rows, layer.columns))


# What a layer was, it stays -------------------------------------------------------------------------------------------


def test_tied_layers_stay_tied_and_compute_the_same() -> None:
    model = built(Tied)
    of_low_rank(model.table, 5)
    ids = torch.randint(WORDS, (2, 7))
    expected = model(ids)
    (layer,) = compress(model, rank=5).chosen
    assert layer.tied == (("head", "head"),) and isinstance(model.head, FactorizedTiedHead)
    assert model.head.weight is model.table.weight and model.head.proj is model.table.proj
    torch.testing.assert_close(model(ids), expected, rtol=1e-4, atol=1e-4)


def test_what_stands_in_the_way_of_one_tied_layer_keeps_all_dense() -> None:
    with pytest.raises(InputError, match="table: max_norm"):
        compress(built(Tied, max_norm=1.0), keep=0.3)


@pytest.mark.parametrize("zero", [True, False])
def test_a_padding_row_of_zeros_stays_zero(zero: bool) -> None:
    layer = nn.Embedding(WORDS, WIDTH, padding_idx=3)
    if not zero:
        layer.weight.data[3] = 1.0
    compress(layer, rank=5)
    assert bool(product(layer)[3].any()) is not zero


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_type_and_what_is_trained_stay(dtype: torch.dtype) -> None:
    model = built(Tied).to(dtype)
    model.table.weight.requires_grad_(False)
    compress(model, rank=5, layers="all")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"table.weight", "table.proj.weight"}


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 4.0, float("inf")])
def test_every_norm_spreads_and_certifies(p: float) -> None:
    done = compress(uneven(), keep=0.3, layers="linear", p=p, tol=0.5)
    assert all(layer.certificate.lower <= layer.certificate.error * (1 + 1e-6) for layer in done.chosen)  # type: ignore[union-attr]


# Calibration ----------------------------------------------------------------------------------------------------------


def narrow_inputs(count: int, seed: int, size: int = 64) -> list[Tensor]:
    """Batches that lie near six directions."""
    across = torch.randn(6, 64, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, 6, generator=generator) @ across + 0.01 * torch.randn(size, 64, generator=generator) + 0.5
        for _ in range(count)
    ]


@pytest.mark.parametrize("training", [True, False])
def test_calibrated_layers_lose_less_on_inputs_like_those_seen(training: bool) -> None:
    dense = built(Perceptron).train(training)
    by_weight, by_output = copy.deepcopy(dense), copy.deepcopy(dense)
    compress(by_weight, rank=10, layers="first")
    done = compress(by_output, rank=10, layers="first", calibrate=narrow_inputs(30, seed=1))
    assert done.chosen[0].calibrated and by_output.training is training
    (unseen,) = narrow_inputs(1, seed=2, size=256)
    wanted = dense.first(unseen)
    errors = [float((model.first(unseen) - wanted).norm()) for model in (by_weight, by_output)]
    assert errors[1] < 0.1 * errors[0]


def test_calibration_leaves_no_hooks_and_no_gradients() -> None:
    model = built(Perceptron)
    compress(model, keep=0.5, layers="linear", calibrate=narrow_inputs(30, seed=1))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_that_the_texts_hardly_reach_is_fitted_to_its_weight() -> None:
    done = compress(built(Perceptron), rank=10, layers="linear", calibrate=narrow_inputs(1, seed=1, size=20))
    assert not any(layer.calibrated for layer in done.layers)


def test_a_planned_calibration_says_what_is_certified() -> None:
    texts = narrow_inputs(30, seed=1)
    planned = plan(built(Perceptron), rank=10, layers="first", calibrate=texts)
    assert planned.layers[0].calibrated and "(of its outputs)" in str(planned)


def test_calibration_needs_batches() -> None:
    with pytest.raises(InputError, match="calibration batch"):
        compress(built(Perceptron), keep=0.5, layers="linear", calibrate=[])


# What cannot be done --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "one of keep, rank, bytes and size"),
        ({"keep": 0.5, "rank": 3}, "at most one of keep and rank"),
        ({"keep": 0.0}, "share"),
        ({"keep": 1.5}, "share"),
        ({"keep": float("nan")}, "share"),
        ({"rank": 0}, "rank"),
        ({"keep": 1e-6, "layers": "all"}, "rank 1 in every layer"),
        ({"keep": 0.5, "p": -1.0}, "p of 0 or more"),
        ({"keep": 0.5, "method": "magic"}, "method"),
    ],
)
def test_what_cannot_be_done_is_said(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        compress(built(Tied), **settings)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("uniform", [True, False])
def test_a_broken_weight_is_named_before_anything_changes(value: float, uniform: bool) -> None:
    model = built(Perceptron)
    model.last.weight.data[2, 3] = value
    with pytest.raises(InputError, match=r"last: .* row 2, column 3"):
        compress(model, keep=0.5, layers="linear", uniform=uniform)
    assert not any(isinstance(layer, FactorizedLinear) for layer in model.children())


def test_a_plan_for_another_model_changes_nothing() -> None:
    planned = plan(built(Perceptron), rank=4, layers="linear")
    other = nn.ModuleDict({"first": nn.Linear(64, 96), "second": nn.Linear(50, 50), "last": nn.Linear(96, 40)})
    with pytest.raises(InputError, match=r"second .96 x 96. is not in it"):
        compress(other, planned)
    assert not any(isinstance(layer, FactorizedLinear) for layer in other.values())


def test_options_beside_a_plan_are_refused() -> None:
    model = built(Tied)
    for given in (plan(model, keep=0.5), Options(keep=0.5)):
        with pytest.raises(InputError, match="got a plan and keep"):
            compress(model, given, keep=0.3)


def test_an_empty_plan_is_kept_too() -> None:
    model = built(Tied)
    assert compress(model, Plan((), Options(rank=1))).layers == () and ellp.plan(model, keep=1.0).chosen == ()
