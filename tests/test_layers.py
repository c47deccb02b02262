"""A factorized layer computes what the dense layer with the product of its factors would."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ellp import InputError
from ellp.layers import (
    FactorizedEmbedding,
    FactorizedLinear,
    FactorizedTiedHead,
    Projection,
    empty_factors,
    factorized_class,
    kind_of,
    obstacle,
    replace_weight,
)

RANK = 5


class Conv1D(nn.Module):
    """The transposed linear layer of GPT-2."""

    def __init__(self, out: int, into: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(into, out))
        self.bias = nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Scaled(nn.Embedding):
    """An embedding that multiplies what its parent looks up, as Bart's and Gemma's do."""

    def __init__(self, *sizes: int, scale: float, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.scale


class Stubborn(nn.Embedding):
    """An embedding that looks its rows up by itself."""

    def forward(self, input: Tensor) -> Tensor:
        return self.weight[input]


class Renamed(nn.Linear):
    """A subclass without a forward of its own."""


LAYERS = {
    "embedding": lambda: nn.Embedding(50, 12),
    "embedding with padding": lambda: nn.Embedding(50, 12, padding_idx=3),
    "sparse embedding": lambda: nn.Embedding(50, 12, sparse=True),
    "embedding scaled by frequency": lambda: nn.Embedding(50, 12, scale_grad_by_freq=True),
    "scaled embedding": lambda: Scaled(50, 12, scale=3.0, padding_idx=0),
    "linear": lambda: nn.Linear(12, 20),
    "linear without bias": lambda: nn.Linear(12, 20, bias=False),
    "linear subclass": lambda: Renamed(12, 20),
    "conv1d": lambda: Conv1D(20, 12),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def asked(layer: nn.Module) -> Tensor:
    torch.manual_seed(1)
    if isinstance(layer, nn.Embedding):
        return torch.randint(0, 50, (4, 6))
    return torch.randn(4, 6, 12).to(layer.weight.dtype)


def pair(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """A dense layer whose weight is the product of the factorized layer's factors, and that layer."""
    torch.manual_seed(0)
    dense = LAYERS[name]().to(dtype)
    rows, columns = dense.weight.shape
    left, right = torch.randn(rows, RANK, dtype=dtype), torch.randn(RANK, columns, dtype=dtype)
    if getattr(dense, "padding_idx", None) is not None:
        left[dense.padding_idx] = 0
    dense.weight = nn.Parameter(left @ right)
    small = copy.deepcopy(dense)
    replace_weight(small, kind_of(small) or "", nn.Parameter(left), Projection(right))
    return dense, small


@each_layer
def test_the_output_is_that_of_the_product(name: str) -> None:
    dense, small = pair(name)
    torch.testing.assert_close(small(asked(dense)), dense(asked(dense)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@each_layer
def test_narrow_types_stay_narrow(name: str, dtype: torch.dtype) -> None:
    _, exact = pair(name)
    narrow = copy.deepcopy(exact).to(dtype)
    found = narrow(asked(narrow))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact(asked(exact)), rtol=0.1, atol=0.5)


@each_layer
def test_gradients_reach_both_factors(name: str) -> None:
    dense, small = pair(name)
    for layer in (dense, small):
        layer(asked(layer)).square().sum().backward()
    grad = dense.weight.grad.to_dense()
    if name != "embedding scaled by frequency":  # the scaling is of the looked-up table's gradient alone
        torch.testing.assert_close(small.proj.weight.grad, small.weight.detach().T @ grad)
    torch.testing.assert_close(small.weight.grad.to_dense(), grad @ small.proj.weight.detach().T)
    if getattr(dense, "bias", None) is not None:
        torch.testing.assert_close(small.bias.grad, dense.bias.grad)


def test_sparse_gradients_stay_sparse() -> None:
    _, small = pair("sparse embedding")
    small(torch.tensor([1, 4, 4])).sum().backward()
    assert small.weight.grad.is_sparse and not small.proj.weight.grad.is_sparse
    assert set(small.weight.grad.coalesce().indices().flatten().tolist()) == {1, 4}
    torch.optim.SparseAdam([small.weight]).step()


def test_the_padding_row_gets_no_gradient() -> None:
    _, small = pair("embedding with padding")
    small(torch.tensor([3, 3, 5])).sum().backward()
    assert not small.weight.grad[3].any() and small.weight.grad[5].any()


@each_layer
def test_it_is_still_an_instance_of_the_dense_class(name: str) -> None:
    dense, small = pair(name)
    assert isinstance(small, type(dense))
    assert kind_of(dense) is not None and kind_of(small) is None
    assert type(small) is factorized_class(type(dense), kind_of(dense) or "")
    assert next(iter(small.state_dict())) == "weight" and "proj.weight" in small.state_dict()
    assert not any(isinstance(inner, nn.Linear) for inner in small.children())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
@each_layer
def test_it_can_be_copied_and_pickled(name: str, copied: Any) -> None:
    _, small = pair(name)
    again = copied(small)
    assert type(again) is type(small) and again.weight is not small.weight
    assert torch.equal(again(asked(small)), small(asked(small)))
    with torch.no_grad():
        again.weight.zero_()
    assert small.weight.any()


def test_a_scaled_embedding_keeps_its_scale_and_name() -> None:
    dense, small = pair("scaled embedding")
    assert small.scale == 3.0 and type(small).__name__ == "FactorizedScaled"
    plain = F.embedding(torch.tensor([7]), dense.weight)
    torch.testing.assert_close(small(torch.tensor([7])), plain * 3)


# Tied heads -----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 12)
        self.head = nn.Linear(12, 50)
        self.head.weight = self.table.weight

    def forward(self, input: Tensor) -> Tensor:
        return self.head(self.table(input))


def tied() -> tuple[Tied, Tied]:
    torch.manual_seed(0)
    dense = Tied().double()
    left, right = torch.randn(50, RANK).double(), torch.randn(RANK, 12).double()
    dense.table.weight = dense.head.weight = nn.Parameter(left @ right)
    small = copy.deepcopy(dense)
    weight, proj = nn.Parameter(left), Projection(right)
    replace_weight(small.table, "embedding", weight, proj)
    replace_weight(small.head, "head", weight, proj, owner=False)
    return dense, small


def test_a_tied_head_multiplies_by_the_transposed_table() -> None:
    dense, small = tied()
    ids = torch.tensor([[1, 2, 49]])
    torch.testing.assert_close(small(ids), dense(ids))
    assert isinstance(small.head, FactorizedTiedHead) and isinstance(small.head, nn.Linear)


def test_the_shared_projection_has_one_name() -> None:
    _, small = tied()
    assert [name for name, _ in small.named_parameters()] == ["table.weight", "table.proj.weight", "head.bias"]
    assert "head.proj.weight" not in small.state_dict()


def test_a_copied_pair_is_tied_to_itself() -> None:
    _, small = tied()
    for again in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert again.head.weight is again.table.weight and again.head.proj is again.table.proj
        assert again.head.proj is not small.head.proj


def test_casting_keeps_the_tie() -> None:
    _, small = tied()
    small.to(torch.bfloat16)
    assert small.head.weight is small.table.weight and small.head.proj is small.table.proj
    assert small(torch.tensor([1])).dtype == torch.bfloat16


def test_both_uses_add_to_the_gradient() -> None:
    dense, small = tied()
    for model in (dense, small):
        model(torch.tensor([3, 4])).square().sum().backward()
    torch.testing.assert_close(small.table.weight.grad, dense.table.weight.grad @ small.table.proj.weight.detach().T)


# What cannot be replaced ----------------------------------------------------------------------------------------------


def test_a_table_that_renormalises_itself_is_refused() -> None:
    layer = nn.Embedding(50, 12, max_norm=1.0)
    assert "max_norm" in (obstacle(layer) or "")
    with pytest.raises(InputError, match="max_norm"):
        replace_weight(layer, "embedding", *empty_factors(50, 12, 3, layer.weight))
    assert type(layer) is nn.Embedding and layer.weight.shape == (50, 12)


def test_a_layer_with_a_forward_of_its_own_is_refused() -> None:
    layer = Stubborn(50, 12)
    with pytest.raises(InputError, match="Stubborn"):
        replace_weight(layer, "embedding", *empty_factors(50, 12, 3, layer.weight))
    assert obstacle(Scaled(50, 12, scale=2.0)) is None and obstacle(Renamed(3, 4)) is None


def test_a_subclass_of_a_layer_with_a_forward_of_its_own_is_refused() -> None:
    class Quiet(Stubborn):
        """Inherits the lookup."""

    assert "its own way" in (obstacle(Quiet(50, 12)) or "")


def test_a_forward_that_only_mentions_its_parent_is_refused() -> None:
    class Sideways(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            assert super().extra_repr()
            return input @ self.weight.T * math.pi

    assert "its own way" in (obstacle(Sideways(12, 20)) or "")


def test_a_decorated_forward_is_seen_through() -> None:
    def logged(forward: Any) -> Any:
        @functools.wraps(forward)
        def wrapper(*inputs: Any) -> Any:
            return forward(*inputs)

        return wrapper

    class Polite(nn.Linear):
        @logged
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    class Rude(nn.Linear):
        forward = logged(lambda self, input: input @ self.weight.T)

    assert obstacle(Polite(12, 20)) is None
    assert "its own way" in (obstacle(Rude(12, 20)) or "")


def test_a_forward_set_on_the_layer_itself_is_refused() -> None:
    layer = nn.Linear(12, 20)
    layer.forward = lambda input: input  # type: ignore[method-assign]
    assert "its own way" in (obstacle(layer) or "")


def test_a_weight_computed_from_others_is_refused() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(12, 20))
    assert "computed" in (obstacle(layer) or "")


def test_the_output_layer_of_attention_is_refused() -> None:
    assert "attention" in (obstacle(nn.MultiheadAttention(12, 2).out_proj) or "")


def test_other_layers_have_no_kind() -> None:
    for layer in (nn.LayerNorm(4), nn.Conv1d(3, 4, 2), nn.EmbeddingBag(5, 4), nn.Bilinear(3, 4, 5)):
        assert kind_of(layer) is None


@pytest.mark.parametrize("trainable", [True, False])
def test_empty_factors_follow_the_weight_they_stand_for(trainable: bool) -> None:
    like = nn.Parameter(torch.empty(50, 12, dtype=torch.bfloat16, device="meta"), requires_grad=trainable)
    left, proj = empty_factors(50, 12, 4, like)
    assert left.shape == (50, 4) and proj.weight.shape == (4, 12)
    for factor in (left, proj.weight):
        assert factor.is_meta and factor.dtype == torch.bfloat16 and factor.requires_grad == trainable


def test_the_projection_is_called_and_so_can_be_hooked() -> None:
    called = []
    for name in LAYERS:
        _, small = pair(name)
        small.proj.register_forward_pre_hook(lambda *_, name=name: called.append(name))
        small(asked(small))
    assert called == list(LAYERS)


def test_the_printed_layer_names_its_sizes() -> None:
    assert "Projection(5, 12)" in repr(pair("embedding")[1])
    assert isinstance(pair("linear")[1], FactorizedLinear) and isinstance(pair("embedding")[1], FactorizedEmbedding)
