"""A swapped layer answers as the factorized layer does, tied heads follow, and nothing stays behind."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from torch import Tensor

import ellp
from ellp.selection import select
from ellp.sweep.methods import METHODS, Approximation
from ellp.sweep.problem import Problem
from ellp.sweep.swap import sizes, swapped

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "name", ["bert-classifier", "bert-masked", "gpt2", "llama-tied", "t5", "bart", "xlnet-classifier"]
)
def test_it_answers_as_the_compressed_model_does(name: str) -> None:
    model, other = tiny_models.build(name), tiny_models.build(name)
    plan = ellp.compress(other, keep=0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    dense = tiny_models.answer(model)
    matrices = {}
    for layer in plan.chosen:
        problem = Problem(model.get_submodule(layer.name).weight.detach(), 1.0)
        matrices[layer.name] = METHODS["lp"].approximate(problem, keep=0.5, share=None).matrix
    with swapped(model, matrices):
        inside = tiny_models.answer(model)
    wanted = tiny_models.answer(other)
    assert float((inside - wanted).abs().max()) < 0.02 * float((dense - wanted).abs().max())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(tiny_models.answer(model), dense)


def test_it_is_undone_after_a_failure() -> None:
    model = tiny_models.build("bert-masked")
    name = select(model, "embeddings")[0].name
    table = model.get_submodule(name).weight
    before = table.detach().clone()

    def fail() -> None:
        with swapped(model, {name: torch.zeros_like(table)}):
            assert not bool(table.any()) and not bool(model.get_output_embeddings().weight.any())
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert torch.equal(table, before)


def test_sizes_of_several_layers_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    dense: dict[str, Tensor] = {name: torch.randn(40, 20, generator=generator) for name in "ab"}
    found = {
        "a": Approximation(torch.zeros(40, 20), 100, rank=2, parameters=120),
        "b": Approximation(dense["b"], 200, rank=3, parameters=180),
    }
    facts = sizes(dense, found)
    assert facts["layer"] == "a,b" and facts["rank"] is None and facts["certificate"] is None
    assert (facts["parameters"], facts["bytes"]) == (300, 300)
    assert facts["rate"] == 1 - 300 / 1600 and facts["bytes_share"] == 300 / 3200
    total = sum(float(matrix.abs().sum()) for matrix in dense.values())
    assert facts["relative_error"]["l1"] == pytest.approx(float(dense["a"].abs().sum()) / total)
    squares = torch.stack([matrix.square().sum() for matrix in dense.values()])
    assert facts["relative_error"]["l2"] == pytest.approx(float((squares[0] / squares.sum()).sqrt()))
