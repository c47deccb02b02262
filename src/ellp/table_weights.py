"""What the token table of an opened model weighs: what was asked for, and what is chosen where nothing was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ellp.bundle.beside import has_tokenizer
from ellp.bundle.model import Bundle
from ellp.errors import InputError, first_line
from ellp.folder import read_json
from ellp.importance import Vocabulary, parse
from ellp.importance.spec import sources
from ellp.plans import Layers, Progress
from ellp.selection import select
from ellp.texts import labelled_batches, tokenizer_of
from ellp.weighing import Weighing, weigh


def has_token_table(model: Any, layers: Layers) -> bool:
    """Whether the layers chosen include the token table."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return False
    names = [layer.name for layer in select(model, layers) if layer.skipped is None]
    return any(model.get_submodule(name) is table or model.get_submodule(name).weight is table.weight for name in names)


def weighed(
    bundle: Bundle,
    importance: str | None,
    sensitive: bool | None,
    text: Path | None,
    *,
    usual: bool,
    seed: int = 0,
    too_large: str | None = None,
    progress: Progress | None = None,
) -> Weighing:
    """What the token table's rows and directions weigh. What is not asked for is chosen if ``usual``, and is nothing
    otherwise; what was chosen and cannot be had is left out, and the record says so. A model that is ``too_large`` for
    memory, for the reason given, is not run."""
    asked = importance is not None or sensitive or text is not None
    if not (asked or usual):
        return Weighing(None, None, {"importance": "uniform", "sensitivity": None})
    if not (usual or has_token_table(bundle.model, "embeddings")):
        raise InputError("need a model with a token table to weigh, got one without: leave --importance out")
    usual = usual or text is not None
    importance = importance or ("auto" if usual else "uniform")
    sensitive = sensitive if usual else bool(sensitive)
    tokenizer, missing = _tokenizer_for(bundle)
    if missing is not None:
        if sensitive or text is not None:
            raise InputError(f"need the model's tokenizer to weigh its tokens, got {missing}: restore its files")
        if importance == "auto":
            facts = {"importance": "uniform", "reason": missing, "sensitivity": None, "sensitivity_missing": missing}
            return Weighing(None, None, {"asked": importance, **facts})
        sensitive = False
    skipped = {"sensitivity_missing": too_large} if too_large and sensitive is None else {}
    if too_large:
        if sensitive or {source.name for source in sources(parse(importance))} & {"sensitivity", "fisher"}:
            raise InputError(
                f"need to run the model for its sensitivity, got too little memory ({too_large}): pass "
                "--no-sensitivity and another --importance"
            )
        sensitive = False
    found = weigh(
        bundle.model,
        tokenizer,
        importance=importance,
        sensitive=sensitive,
        text=text,
        data=lambda place: labelled_batches(bundle, Path(place)),
        pooling=pooling_of(bundle.folder),
        seed=seed,
        progress=progress,
    )
    return replace(found, record=found.record | skipped)


def _tokenizer_for(bundle: Bundle) -> tuple[Any, str | None]:
    """The tokenizer of a model's token table; or None, and why there is none."""
    model: Any = bundle.model
    if not has_tokenizer(bundle):
        return None, "no tokenizer beside the model"
    try:
        tokenizer = tokenizer_of(bundle)
        Vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0])
    except (OSError, ValueError, ImportError) as error:
        return None, f"no tokenizer that fits the table ({first_line(error)})"
    return tokenizer, None


def pooling_of(folder: Path | None) -> str | None:
    """How sentence-transformers uses the hidden states of a model in this folder; None where it does not say."""
    if folder is None or not (folder / "1_Pooling" / "config.json").is_file():
        return None
    facts = read_json(folder / "1_Pooling" / "config.json")
    named = {"mean": "mean", "cls": "first", "lasttoken": "last"}
    flags = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first", "pooling_mode_lasttoken": "last"}
    chosen = [word for flag, word in flags.items() if facts.get(flag) is True]
    return named.get(str(facts.get("pooling_mode"))) or (chosen[0] if chosen else None)
