"""From a model and what the user says about it to what the rows and directions of its token table weigh."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ellp import cache
from ellp.errors import EllpError, InputError, first_line
from ellp.importance import Vocabulary, choose, parse, token_importance
from ellp.importance.counts import texts_in
from ellp.importance.spec import Source, sources
from ellp.importance.words import FIRST, forget_words, has_word_lists, made_texts
from ellp.layers import kind_of
from ellp.sensitivity import Batch, Sensitivity, metric_from, row_importance, sensitivity

TEXTS = 2048  # at most; fewer where these agree
ENOUGH = 0.9  # cosine of the metrics of two halves: that of their sum and the truth is then about 0.97
BATCH = 32
LONGEST = 128  # tokens of a text
DIRECTIONS = 4  # of each text's output: a further one costs less than half of what a further text does
LAM = 0.2
TEMPER, TEXT_TEMPER = (
    0.5,
    0.7,
)  # between the rows' chances (1), best for text just like that foretold, and all alike (0),
# best for any: the user's own text foretells more than public frequencies do

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Weighing:
    """``importance`` (n) of the rows and ``metric`` (d x d) of the directions of the token table, None where all weigh
    alike; ``record`` says in words and numbers where they come from."""

    importance: Tensor | None
    metric: Tensor | None
    record: dict[str, Any]


def weigh(
    model: Any,
    tokenizer: Any,
    *,
    importance: str = "auto",
    sensitive: bool | None = None,
    text: Path | None = None,
    data: Callable[[str], Iterable[Batch]] | None = None,
    pooling: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weighing:
    """What the rows and directions of a model's token table weigh.

    ``sensitive`` asks for the metric; None takes it where the model can run, and says in the record where it could
    not. ``text`` is unlabelled text like that the model will see; without it texts are made. ``data`` turns the
    argument of ``fisher:`` into batches with labels.
    """
    table = model.get_input_embeddings()
    vocabulary = Vocabulary(tokenizer, table.weight.shape[0])
    choice = choose(importance, vocabulary, text)
    if importance.strip() == "auto":
        choice = replace(choice, spec=f"({choice.spec})^{TEMPER if text is None else TEXT_TEMPER:g}")
    record: dict[str, Any] = {"asked": importance, "importance": choice.spec, "reason": choice.reason}
    record["sensitivity"] = None
    record["text"] = None if text is None else text.name
    found: list[Sensitivity] = []

    def reactions() -> Sensitivity:
        if not found:
            texts = _texts(vocabulary, text, seed, progress)
            forget_words()
            found.append(measured(model, tokenizer, texts, pooling=pooling, seed=seed, progress=progress))
        return found[0]

    def by_reaction() -> Tensor:
        base = choose("auto", vocabulary, text).spec
        return row_importance(reactions(), token_importance(base, vocabulary, vocabulary.size) / vocabulary.size)

    given: dict[str, Callable[[], Tensor]] = {"sensitivity": by_reaction}
    for source in sources(parse(choice.spec)):
        if source.name == "fisher":
            given[str(source)] = lambda source=source: _fisher(model, table, source, data, progress)  # type: ignore[misc]
    weights = token_importance(choice.spec, vocabulary, vocabulary.size, given=given, progress=progress)
    metric = None
    if sensitive is not False:
        try:
            metric = metric_from(reactions().metric, LAM)
            record["sensitivity"] = _facts(reactions(), text)
        except (EllpError, RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            if sensitive:
                raise
            record["sensitivity"], record["sensitivity_missing"] = None, first_line(error)
    forget_words()
    return Weighing(None if choice.spec == "uniform" else weights, metric, record)


def _facts(found: Sensitivity, text: Path | None) -> dict[str, Any]:
    return {
        "texts": "made from word frequencies" if text is None else text.name,
        "gradients": found.count,
        "agreement": round(found.agreement, 4),
        "lam": LAM,
    }


def measured(
    model: Any,
    tokenizer: Any,
    texts: list[str],
    *,
    directions: int = DIRECTIONS,
    pooling: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sensitivity:
    """:func:`ellp.sensitivity.sensitivity` on texts; from the disk if the same was measured before."""
    settings = (directions, pooling, ENOUGH, seed, BATCH, LONGEST)
    key = cache.key_of(model, settings, texts)
    kept = cache.read(key)
    names = [field.name for field in fields(Sensitivity)]
    if kept is not None and set(kept) == set(names):
        metric, rows, squares, seen, count, agreement = (kept[name] for name in names)
        return Sensitivity(metric.double(), rows, squares, seen, int(count), float(agreement))
    batches = text_batches(model, tokenizer, texts, seed)
    found = sensitivity(
        model, batches, directions=directions, pooling=pooling, enough=ENOUGH, seed=seed, progress=progress
    )
    cache.write(key, {name: torch.as_tensor(value) for name, value in zip(names, astuple(found), strict=True)})
    return found


def text_batches(model: Any, tokenizer: Any, texts: list[str], seed: int = 0) -> list[Batch]:
    """Batches of texts of like length, in random order, with what a model's forward takes: so many texts that what
    their tokens leave behind for the way back is no larger than the token table."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    known = {*inspect.signature(model.forward).parameters, "special_tokens_mask"}
    places = getattr(model.config, "max_position_embeddings", None) or LONGEST
    cut = {"truncation": True, "max_length": min(LONGEST, tokenizer.model_max_length, max(2, places - 2))}
    lengths = [len(ids) for ids in tokenizer(texts, **cut)["input_ids"]]
    table: Tensor = model.get_input_embeddings().weight
    room = table.numel() // held_by_a_token(model)
    order = [index for index in sorted(range(len(texts)), key=lambda index: lengths[index]) if lengths[index]]
    batches: list[Batch] = []
    while order:
        longest = lengths[order[min(BATCH, len(order)) - 1]]
        count = max(1, min(BATCH, room // longest))
        part, order = [texts[index] for index in order[:count]], order[count:]
        batch = tokenizer(part, padding=True, return_special_tokens_mask=True, return_tensors="pt", **cut)
        batches.append({name: values for name, values in batch.items() if name in known})
    random.Random(seed).shuffle(batches)
    return batches


def held_by_a_token(model: Any) -> int:
    """About how many numbers one token leaves behind for the way back: inputs and outputs of every linear layer."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    layers = [one for one in model.modules() if kind_of(one) in ("linear", "conv1d") and one is not head]
    return max(1, sum(sum(one.weight.shape) for one in layers))


def _texts(vocabulary: Vocabulary, text: Path | None, seed: int, progress: Progress | None) -> list[str]:
    """A sample of the user's texts, or made ones: words by frequency, else tokens by frequency."""
    if text is not None:
        return _sample(texts_in(text, progress), seed)
    found = [source for source in sources(parse(choose("auto", vocabulary).spec)) if source.name == "words"]
    if found and has_word_lists():
        return made_texts(_languages(found[0]), TEXTS, seed)
    return _from_tokens(vocabulary, seed)


def _languages(source: Source) -> dict[str, float]:
    return dict.fromkeys((source.argument or "").split(","), 1.0)


def _sample(texts: Iterable[str], seed: int) -> list[str]:
    """So many of the texts, each with the same chance, in one reading."""
    chance, kept = random.Random(seed), []
    for number, one in enumerate(texts):
        if number < TEXTS:
            kept.append(one)
        elif (place := chance.randrange(number + 1)) < TEXTS:
            kept[place] = one
    if not kept:
        raise InputError("need texts to see what the output reacts to, got none: one text a line")
    return kept


def _from_tokens(vocabulary: Vocabulary, seed: int) -> list[str]:
    """Texts of tokens drawn by the prior."""
    shares = token_importance("prior", vocabulary, vocabulary.size)
    shares = shares.masked_fill(vocabulary.special | vocabulary.unused, 0.0)
    generator = torch.Generator().manual_seed(seed)
    lengths = 1 + torch.empty(TEXTS).exponential_(FIRST, generator=generator).long().clamp(max=LONGEST)
    drawn = torch.multinomial(shares, int(lengths.sum()), replacement=True, generator=generator)
    return [vocabulary.tokenizer.decode(part.tolist()) for part in torch.split(drawn, lengths.tolist())]


def _fisher(
    model: Any,
    table: Any,
    source: Source,
    data: Callable[[str], Iterable[Batch]] | None,
    progress: Progress | None,
) -> Tensor:
    from ellp.importance import fisher_rows

    if data is None:
        raise InputError(f"need labelled texts for {source}, got no way to read them: pass data=")
    name = next(name for name, module in model.named_modules() if module is table)
    return fisher_rows(model, name, data(source.argument or ""), progress)
