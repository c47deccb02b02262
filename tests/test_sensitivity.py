"""The sensitivity of outputs: known metrics, finite differences on every architecture, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers")

from tiny_models import MODELS, build, questions

from ellp import InputError
from ellp.sensitivity import PLACES, Sensitivity, metric_from, row_importance, sensitivity

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!ellp)")


class Line(nn.Module):
    """Scores that are linear in the sum of a text's embeddings: ``J = W`` for every token, whatever the text."""

    def __init__(self, classes: int, width: int = 4) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, width), nn.Linear(width, classes, bias=False)
        self.config = SimpleNamespace(is_encoder_decoder=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head((self.table(input_ids) * attention_mask[..., None]).sum(1))}


def text(*ids: int, hidden: int = 0, special: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """One text, its last ``hidden`` tokens padding."""
    mask = torch.ones(1, len(ids), dtype=torch.long)
    mask[:, len(ids) - hidden :] = 0
    marked = torch.tensor([[int(one in special) for one in ids]])
    return {"input_ids": torch.tensor([ids]), "attention_mask": mask, "special_tokens_mask": marked}


def test_one_score_has_a_known_metric() -> None:
    torch.manual_seed(0)
    model = Line(1)
    w = model.head.weight[0].detach().double()
    found = sensitivity(model, [text(1, 2, 2, 5, hidden=1, special=(1,)), text(3)])
    assert torch.allclose(found.metric, torch.outer(w, w), rtol=1e-5, atol=1e-7)
    assert found.count == 3  # 1 is special, 5 is padding
    assert torch.allclose(found.rows, torch.tensor([0, 1, 2, 1, 0, 0, 0]).double() * (w @ w), rtol=1e-5)
    assert torch.equal(found.seen, torch.tensor([0.0, 1, 2, 1, 0, 0, 0]).double())
    assert torch.allclose(found.squares, found.seen * (w @ w) ** 2, rtol=1e-5)
    assert found.agreement == pytest.approx(1.0)


def test_classes_count_by_their_differences() -> None:
    torch.manual_seed(0)
    model = Line(3)
    with torch.no_grad():
        model.head.weight += 100 * torch.ones(3, 1) @ torch.randn(1, 4)  # moves all scores alike
    found = sensitivity(model, [text(1)] * 400, directions=4, seed=1)
    weight = model.head.weight.detach().double()
    centred = weight - weight.mean(0)
    assert torch.allclose(found.metric, centred.T @ centred, atol=0.1 * float((centred.T @ centred).norm()))
    assert float(found.metric.trace()) < 0.01 * float(weight.square().sum())


def move(model: Any, scale: float, generator: torch.Generator) -> Any:
    """Adds noise to every embedding that is looked up; a handle to stop it."""
    table = model.get_input_embeddings()

    def hook(layer: Any, inputs: Any, output: Tensor) -> Tensor:
        return output + scale * torch.randn(output.shape, generator=generator, dtype=output.dtype)

    layers = [part for part in model.modules() if isinstance(part, nn.Embedding) and part.weight is table.weight]
    return [layer.register_forward_hook(hook) for layer in layers]


def change(model: Any, asked: dict[str, Tensor], scale: float, draws: int) -> Iterator[Tensor]:
    """How far the output moves, in its own measure, over the noise's variance: ``E sum |g|^2`` on average."""
    generator = torch.Generator().manual_seed(0)
    mask = asked.get("decoder_attention_mask" if "decoder_input_ids" in asked else "attention_mask")

    def output() -> Any:
        with torch.no_grad():
            return model(**asked)

    dense = output()
    for _ in range(draws):
        handles = move(model, scale, generator)
        moved = output()
        for handle in handles:
            handle.remove()
        if "logits" not in dense:
            vectors = [nn.functional.normalize(mean(one.last_hidden_state, mask), dim=-1) for one in (dense, moved)]
            yield (vectors[0] - vectors[1]).square().sum() / scale**2
        elif dense.logits.ndim == 2:
            moves = moved.logits - dense.logits
            yield (moves - moves.mean(-1, keepdim=True)).square().sum() / scale**2
        else:
            one, other = dense.logits.log_softmax(-1), moved.logits.log_softmax(-1)
            kl = (one.exp() * (one - other)).sum(-1)
            shown = torch.ones_like(kl) if mask is None else mask
            yield (2 * PLACES * (kl * shown).sum(1) / shown.sum(1)).sum() / scale**2


def mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    assert mask is not None
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_foretell_how_far_the_output_moves(name: str) -> None:
    """For a small error of variance s^2 in every embedding the output moves by ``s^2 E sum |g|^2``: squared distance of
    vectors and scores, twice the divergence of predictions."""
    model = build(name).double()
    asked = questions(model)
    asked["attention_mask"] = torch.ones_like(asked["input_ids"])
    if "decoder_input_ids" in asked:
        asked["decoder_attention_mask"] = torch.ones_like(asked["decoder_input_ids"])
    found = sensitivity(model, [asked] * 20, directions=4)
    foretold = float(found.rows.sum()) / 20
    moved = [float(one) for one in change(model, asked, 1e-3, 40)]
    noise = torch.tensor(moved).std() / len(moved) ** 0.5
    assert foretold == pytest.approx(sum(moved) / len(moved), rel=0.15, abs=3 * float(noise))
    assert float(found.metric.trace()) == pytest.approx(4 * float(found.rows.sum()) / found.count, rel=1e-5)
    assert float(torch.linalg.eigvalsh(found.metric)[0]) > -1e-6 * float(found.metric.trace())
    assert found.count == 20 * 4 * (18 + 10 * ("decoder_input_ids" in asked))


def test_padding_is_nothing_wherever_it_stands() -> None:
    model = build("bert").double()
    ids = torch.arange(10, 16)[None]
    plain = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padded = {
        "input_ids": torch.cat([ids, torch.full((1, 3), 99)], 1),
        "attention_mask": torch.cat([torch.ones_like(ids), torch.zeros(1, 3, dtype=torch.long)], 1),
    }
    one, other = (sensitivity(model, [batch]) for batch in (plain, padded))
    assert torch.allclose(one.metric, other.metric, rtol=1e-4)
    assert torch.allclose(one.rows, other.rows, rtol=1e-4)
    assert float(other.seen[99]) == 0


def test_the_seed_decides_and_nothing_of_the_model_changes() -> None:
    model = build("gpt2").train()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    asked = questions(model)
    one, same, other = (sensitivity(model, [asked, asked], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.metric, same.metric) and not torch.equal(one.metric, other.metric)
    assert model.training and all(part.requires_grad and part.grad is None for part in model.parameters())
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    assert not model.get_input_embeddings()._forward_hooks and not model.lm_head._forward_pre_hooks
    assert torch.get_float32_matmul_precision() == "highest"


def test_reading_stops_when_halves_agree() -> None:
    torch.manual_seed(0)
    model = Line(1)
    heard: list[int] = []
    found = sensitivity(model, [text(1, 2)] * 40, enough=0.99, progress=lambda _, done, total: heard.append(done))
    assert found.count == 4  # a single score's metric is known after two texts
    assert heard == [0, 1, 40]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_measured(dtype: torch.dtype) -> None:
    whole, half = build("bert-classifier"), build("bert-classifier").to(dtype)
    asked = questions(whole)
    one, other = (sensitivity(model, [asked] * 20).metric for model in (whole, half))
    assert float((one * other).sum() / one.norm() / other.norm()) > 0.99


def test_poolings_differ_and_decoders_use_their_last_token() -> None:
    decoder = build("gpt2").transformer
    asked = {"input_ids": torch.arange(10, 16)[None], "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    usual, last, first = (sensitivity(decoder, [asked], pooling=pooling) for pooling in (None, "last", "first"))
    assert torch.equal(usual.rows, last.rows)
    assert float(first.rows[10]) > 0 and float(first.rows[11:].abs().max()) == 0  # it has seen nothing else
    assert bool((usual.rows[10:16] > 0).all())


def test_what_cannot_be_measured_is_refused() -> None:
    model = build("bert")
    with pytest.raises(InputError, match="token table"):
        sensitivity(nn.Linear(3, 3), [])
    with pytest.raises(InputError, match="pooling"):
        sensitivity(model, [], pooling="max")
    with pytest.raises(InputError, match="direction"):
        sensitivity(model, [], directions=0)
    with pytest.raises(InputError, match="no token"):
        sensitivity(model, [])
    dead = Line(1)
    nn.init.zeros_(dead.head.weight)
    with pytest.raises(InputError, match="zero"):
        sensitivity(dead, [text(1)])
    nn.init.constant_(dead.head.weight, float("nan"))
    with pytest.raises(InputError, match="finite gradients"):
        sensitivity(dead, [text(1)])


def test_a_metric_is_made_definite() -> None:
    flat = torch.outer(torch.tensor([2.0, 0.0, 1.0]), torch.tensor([2.0, 0.0, 1.0]))
    found = metric_from(flat)
    assert float(torch.linalg.eigvalsh(found)[0]) == pytest.approx(0.2 / 1.2)
    assert float(found.diagonal().mean()) == pytest.approx(1.0)
    with pytest.raises(InputError, match="positive trace"):
        metric_from(torch.zeros(2, 2))


# Rows -----------------------------------------------------------------------------------------------------------------


def reactions(means: Tensor, counts: Tensor, spread: float, seed: int = 0) -> Sensitivity:
    """What would have been measured of tokens with these mean reactions, each seen so often."""
    generator = torch.Generator().manual_seed(seed)
    rows, squares = torch.zeros(len(means)), torch.zeros(len(means))
    for token, (centre, count) in enumerate(zip(means.tolist(), counts.tolist(), strict=True)):
        drawn = centre * (1 + spread * (torch.rand(int(count), generator=generator) * 2 - 1))
        rows[token], squares[token] = drawn.sum(), drawn.square().sum()
    return Sensitivity(torch.eye(2).double(), rows.double(), squares.double(), counts.double(), int(counts.sum()), 1.0)


def test_the_power_of_frequency_is_measured() -> None:
    shares = 1 / (torch.arange(200) + 20.0).double()
    counts = (shares * 4000).round()
    found = row_importance(reactions(shares**-0.3, counts, 0.5), shares)
    slope = (found[0] / found[150]).log() / (shares[0] / shares[150]).log()
    assert float(slope) == pytest.approx(0.7, abs=0.03)


def test_a_token_departs_from_its_prediction_as_far_as_its_count_allows() -> None:
    shares = torch.full((300,), 1 / 300).double()
    means = 1 + 0.5 * torch.randn(300, generator=torch.Generator().manual_seed(1)).clamp(-1.5, 1.5)
    often, once = torch.full((300,), 400.0), torch.full((300,), 3.0)
    once[0] = 0.0
    sure = row_importance(reactions(means, often, 1.0), shares)
    unsure = row_importance(reactions(means, once, 1.0), shares)
    error = [(found / found.mean() - means / means.mean()).norm() for found in (sure, unsure)]
    raw = reactions(means, once, 1.0)
    alone = raw.rows / raw.seen.clamp(min=1)
    assert error[0] < 0.1 * means.std() * 300**0.5
    assert error[1] < (alone / alone.mean() - means / means.mean()).norm()
    assert float(unsure[0] / unsure.mean()) == pytest.approx(1.0, abs=0.1)  # never seen: as predicted
    alike = row_importance(reactions(torch.ones(300), once, 1.0), shares)
    assert float(alike.std() / alike.mean()) < 0.1  # all differences were chance
