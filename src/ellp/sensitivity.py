"""What a model's output reacts to: gradients of random projections of it, with respect to the token embeddings.

Let ``x`` be the embedding of a token in a text, ``J = dy/dx`` for the output y of the dense model, and ``g = J^T r``
with random r, ``E[r r^T] = I``. Then ``E[g g^T] = E[J^T J]``, and to first order an error e of a token's row moves the
output by ``E|J e|^2 = e H e^T`` with ``H = E[g g^T]`` over texts and tokens. No labels are needed; and no data, where
texts are made.

What the output is depends on the model:

* class or regression scores: the scores, less their mean, which changes no answer;
* scores of all tokens, as a language model's: the logarithm of the probability of a token drawn from the model's own
  prediction, at a few random places. H is then Fisher's information, the second-order term of the change of prediction;
* scores of places (where an answer starts and ends): the scores, less their mean over the text;
* hidden states only: their mean over the text, brought to length one; for a decoder that of the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ellp.errors import InputError
from ellp.importance.fisher import only
from ellp.memory import tidy

Progress = Callable[[str, int, int], None]
Batch = Mapping[str, Tensor]
POOLINGS = ("mean", "first", "last")
PLACES = 4  # in a text, at which the predictions of a language model are looked at


@dataclass(frozen=True)
class Sensitivity:
    """What was found, in float64 on the CPU.

    ``metric`` (d x d) is ``E[g g^T]`` over ``count`` gradients. ``seen`` (n) is how often each token occurred; ``rows``
    and ``squares`` are the sums, over these occurrences, of the mean ``|g|^2`` of its directions, and of its square.
    ``agreement`` is the cosine between the metrics of one half of the batches and of the other: near 1, more text would
    change little.
    """

    metric: Tensor
    rows: Tensor
    squares: Tensor
    seen: Tensor
    count: int
    agreement: float


def metric_from(metric: Tensor, lam: float = 0.2) -> Tensor:
    """``(H / mean(diag H) + lam I) / (1 + lam)``: positive definite, with a mean diagonal of one.

    >>> import torch
    >>> metric_from(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), lam=1.0).diagonal()
    tensor([1.2500, 0.7500], dtype=torch.float64)
    """
    found = metric.double()
    mean = float(found.diagonal().mean())
    if not (mean > 0 and lam > 0):
        raise InputError(f"need a metric with a positive trace and lam above 0, got {mean:.3g} and {lam}: check both")
    identity = torch.eye(len(found), dtype=torch.float64, device=found.device)
    return ((found + found.T) / (2 * mean) + lam * identity) / (1 + lam)


def sensitivity(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    directions: int = 1,
    pooling: str | None = None,
    enough: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sensitivity:
    """How the output of a transformers model reacts to the rows of its token table, on some texts.

    A batch is a tokenizer's output, padded on either side; positions that ``attention_mask`` hides are left out, and
    those that ``special_tokens_mask`` marks count for ``rows`` but not for ``metric``. ``directions`` is the number of
    random projections of each text's output. Batches are read until the two halves' ``agreement`` is ``enough``.
    ``pooling`` says which hidden states a model without a head is used by: mean, first or last.
    """
    if pooling not in (None, *POOLINGS):
        raise InputError(f"need a pooling out of {', '.join(POOLINGS)}, got {pooling!r}: leave it out if unsure")
    if directions < 1:
        raise InputError(f"need at least one direction, got {directions}: 1 will do, with enough texts")
    table = _table(model)
    sums, device = _Sums(*table.weight.shape), table.weight.device
    generator = torch.Generator().manual_seed(seed)
    batches = batches if isinstance(batches, Sequence) else list(batches)
    with only(model, None), _looks(model, table) as looks, torch.enable_grad():
        for number, batch in enumerate(batches):
            if progress is not None:
                progress("what the output reacts to", number, len(batches))
            asked = _asked(model, batch, device)
            places = _places(asked, generator)
            with _at_places(model, places), _fast(device):
                found = model(**{name: part for name, part in asked.items() if name != "special_tokens_mask"})
            leaves = [leaf for _, leaf in looks]
            drawn = []
            for turn in range(directions):
                projection = _projection(found, model, asked, pooling or _usual(model), generator)
                with _fast(device):
                    more = turn + 1 < directions
                    drawn.append(torch.autograd.grad(projection, leaves, retain_graph=more, allow_unused=True))
            for (ids, _), *slopes in zip(looks, *drawn, strict=True):
                if slopes[0] is not None:
                    sums.add(number % 2, ids, torch.stack(slopes), asked)
            looks.clear()
            if number % 2 and enough < 1 and sums.agreement() >= enough:
                break
    if progress is not None:
        progress("", len(batches), len(batches))
    tidy(table.weight.numel())
    return sums.result()


def _table(model: nn.Module) -> Any:
    """The token table, dense."""
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        table = None
    if not isinstance(table, nn.Embedding):
        raise InputError(f"need a transformers model with a token table, got {type(model).__name__}: pass another")
    return table


class _Sums:
    """Running sums; the metric's are kept apart for even and odd batches, to see what chance still does to it."""

    def __init__(self, count: int, width: int) -> None:
        self.rows, self.squares, self.seen = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
        self.halves = torch.zeros(2, width, width, dtype=torch.float64)
        self.counts = [0, 0]

    def add(self, half: int, ids: Tensor, slopes: Tensor, asked: Batch) -> None:
        """Gradients for one look into the table, a first dimension of them: one for each direction."""
        mask = _mask_of(asked, ids)
        g, ids = slopes[:, mask].float(), ids[mask].cpu()
        sizes = g.square().sum(2).mean(0).double().cpu()
        if not bool(torch.isfinite(sizes).all()):
            raise InputError("need finite gradients, got NaN or infinity: load the model with --dtype float32")
        self.rows.index_add_(0, ids, sizes)
        self.squares.index_add_(0, ids, sizes.square())
        self.seen.index_add_(0, ids, torch.ones_like(sizes))
        special = asked.get("special_tokens_mask")
        if special is not None and special.shape == mask.shape:
            g = g[:, ~special[mask].bool()]
        g = g.flatten(0, 1)
        self.halves[half] += (g.T @ g).double().cpu()
        self.counts[half] += len(g)

    def agreement(self) -> float:
        one, other = self.halves.flatten(1)
        sizes = float(one.norm() * other.norm())
        return float(one @ other) / sizes if sizes else 0.0

    def result(self) -> Sensitivity:
        count = sum(self.counts)
        if not count or float(self.halves.sum(0).trace()) == 0:
            told = "no token: pass some texts" if not count else "gradients of zero: it does not depend on them"
            raise InputError(f"need an output that reacts to the tokens of some texts, got {told}")
        return Sensitivity(self.halves.sum(0) / count, self.rows, self.squares, self.seen, count, self.agreement())


@contextmanager
def _fast(device: torch.device) -> Iterator[None]:
    """On a GPU, products in whatever precision is fastest: chance disturbs the sums a hundred times more.

    On a CPU such products keep code and scratch space for every shape they have met, which is more than the model; and
    attention is taken as plain products, because the fused kernel loses time on short texts.
    """
    if device.type == "cpu":
        with sdpa_kernel([SDPBackend.MATH]):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# Running the model ----------------------------------------------------------------------------------------------------


@contextmanager
def _looks(model: nn.Module, table: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Ids and outputs of every look into the token table, under any name. An output is cut off from the table and asks
    for gradients, so that everything a model does to it afterwards (scales, positions, projections) is included."""
    found: list[tuple[Tensor, Tensor]] = []

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        found.append((inputs[0], leaf))
        return leaf * 1  # a leaf must not be changed in place, and some models do

    layers = [
        module for module in model.modules() if isinstance(module, nn.Embedding) and module.weight is table.weight
    ]
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(hook).remove)
        yield found


def _asked(model: Any, batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch on the model's device, with inputs for a decoder that has none: the text itself, as if copied."""
    asked = {name: part.to(device) for name, part in batch.items()}
    config = getattr(model, "config", None)
    decoder = getattr(config, "is_encoder_decoder", False) and hasattr(model, "get_decoder")
    if decoder and "decoder_input_ids" not in asked:
        asked["decoder_input_ids"] = asked["input_ids"]
        if "attention_mask" in asked:
            asked["decoder_attention_mask"] = asked["attention_mask"]
    return asked


def _mask_of(asked: Batch, ids: Tensor) -> Tensor:
    """Which ids are of the text and not padding."""
    for name, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if name in asked and mask in asked:
            if asked[name].shape == ids.shape and torch.equal(asked[name], ids):
                return asked[mask].bool()
            if asked[name].T.shape == ids.shape and torch.equal(asked[name].T, ids):  # XLNet counts places first
                return asked[mask].T.bool()
    return torch.ones_like(ids, dtype=torch.bool)


def _last_mask(asked: Batch) -> Tensor:
    """Which positions of the last stack's sequence are of the text."""
    name = "decoder_input_ids" if "decoder_input_ids" in asked else "input_ids"
    mask = asked.get(name.replace("input_ids", "attention_mask"))
    return torch.ones_like(asked[name], dtype=torch.bool) if mask is None else mask.bool()


def _places(asked: Batch, generator: torch.Generator) -> Tensor:
    """A few random places in every text of a batch, with repetition in short ones."""
    mask = _last_mask(asked)
    return torch.multinomial(mask.float().cpu(), PLACES, replacement=True, generator=generator).to(mask.device)


@contextmanager
def _at_places(model: Any, places: Tensor) -> Iterator[None]:
    """Scores of all tokens are computed at these places only: a vocabulary's worth at every place would fill memory."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None

    def narrow(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = inputs[0]
        if hidden.ndim != 3 or hidden.shape[0] != places.shape[0] or hidden.shape[1] <= int(places.max()):
            return inputs
        return (hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[2])), *inputs[1:])

    if head is None:
        yield
        return
    handle = head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


# What of the output is looked at --------------------------------------------------------------------------------------


def _projection(found: Any, model: Any, asked: Batch, pooling: str, generator: torch.Generator) -> Tensor:
    """A random projection of every text's output, summed over texts."""
    if "start_logits" in found:
        mask = _last_mask(asked)
        ends = torch.stack([found["start_logits"], found["end_logits"]], -1).float()
        return (ends * _centred(_signs(ends, generator), mask[..., None])).sum()
    if "logits" in found:
        scores: Tensor = found["logits"].float()
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if scores.ndim == 3 and head is not None and scores.shape[-1] == head.weight.shape[0]:
            return _log_probability(scores, generator)
        signs = _signs(scores, generator)
        signs = signs - signs.mean(-1, keepdim=True) * (scores.shape[-1] > 1)
        return (scores * signs * (_last_mask(asked)[..., None] if scores.ndim == 3 else 1)).sum()
    if "last_hidden_state" in found:
        vectors = nn.functional.normalize(
            _pooled(found["last_hidden_state"].float(), _last_mask(asked), pooling), dim=-1
        )
        return (vectors * _signs(vectors, generator)).sum()
    raise InputError(
        f"need logits or hidden states, got {', '.join(found)} from {type(model).__name__}: pass another head"
    )


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent signs: the random direction of least variance."""
    return (torch.randint(2, like.shape, generator=generator) * 2.0 - 1).to(like.device)


def _centred(signs: Tensor, mask: Tensor) -> Tensor:
    """Without their mean over what the mask shows, and zero elsewhere."""
    return (signs - (signs * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)) * mask


def _log_probability(scores: Tensor, generator: torch.Generator) -> Tensor:
    """Of tokens drawn from the predictions themselves: its gradients have Fisher's information as second moment."""
    logs = scores.log_softmax(-1)
    chances = logs.detach().exp().flatten(0, 1).cpu()
    drawn = torch.multinomial(chances, 1, generator=generator).to(scores.device)
    return logs.flatten(0, 1).gather(1, drawn).sum()


def _pooled(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    if pooling == "mean":
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    order = torch.arange(mask.shape[1], device=mask.device)
    at = torch.where(mask, order, -1).amax(1) if pooling == "last" else torch.where(mask, order, len(order)).amin(1)
    return hidden[torch.arange(len(hidden), device=mask.device), at]


def _usual(model: Any) -> str:
    """Mean for encoders; the last token for decoders, the only one that has seen the whole text."""
    config = getattr(model, "config", None)
    alone = not getattr(config, "is_encoder_decoder", False)
    return "last" if alone and _is_causal(model) else "mean"


def _is_causal(model: Any) -> bool:
    """Whether a model is one of those that transformers also has with a causal head, and not as an encoder."""
    from transformers.models.auto import modeling_auto as auto

    kind = getattr(getattr(model, "config", None), "model_type", None)
    causal = kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return causal and (
        kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or bool(getattr(model.config, "is_decoder", False))
    )


# Rows -----------------------------------------------------------------------------------------------------------------


def row_importance(found: Sensitivity, shares: Tensor) -> Tensor:
    """``share x E|g|^2`` for every token: how often it comes, times how strongly the output reacts to it each time.

    A token seen a few times tells little of its own, one not seen nothing. So reactions are first predicted from the
    shares (``log |g|^2`` is about linear in ``log share``: rarer words say more), and each token's own mean moves away
    from its prediction as far as its count allows: by empirical Bayes, the weight of the prediction is that of
    ``variance within tokens / variance between tokens`` further occurrences.
    """
    seen = found.seen > 0
    mean = found.rows[seen] / found.seen[seen]
    predicted = _line(shares.log(), seen & (found.rows > 0), found)
    relative = mean / predicted[seen]
    count = found.seen[seen]
    repeated = count > 1
    spread = (found.squares[seen] / predicted[seen].square() - count * relative.square())[repeated].clamp(min=0).sum()
    within = float(spread / (count[repeated] - 1).sum()) if bool(repeated.any()) else 1.0
    centre = float((count * relative).sum() / count.sum())
    between = float((count * (relative - centre).square()).sum() - (len(count) - 1) * within)
    between = max(0.0, between / float(count.sum() - count.square().sum() / count.sum())) if len(count) > 1 else 0.0
    strength = within / between if between else float("inf")
    reaction = predicted * centre
    if strength < float("inf"):
        reaction[seen] = (found.rows[seen] + strength * reaction[seen]) / (count + strength)
    return shares * reaction


def _line(logs: Tensor, seen: Tensor, found: Sensitivity) -> Tensor:
    """Reactions as a straight line through the logarithms of those seen, each as heavy as its count."""
    weight = found.seen[seen]
    x, y = logs[seen], (found.rows[seen] / found.seen[seen]).log()
    x0, y0 = (weight * x).sum() / weight.sum(), (weight * y).sum() / weight.sum()
    spread = float((weight * (x - x0).square()).sum())
    slope = float((weight * (x - x0) * (y - y0)).sum()) / spread if spread > 0 else 0.0
    # Not beyond the shares that were seen: a line says nothing there
    return (y0 + slope * (logs.clamp(x.min(), x.max()) - x0)).exp()
