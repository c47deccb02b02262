"""A model folder in, a compressed model folder out: everything ``ellp compress`` does, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ellp.bundle import open_bundle
from ellp.bundle.beside import copy_side_files
from ellp.bundle.model import Bundle
from ellp.bundle.weights import weight_bytes
from ellp.card import model_card
from ellp.errors import InputError
from ellp.folder import check_target, replacing_folder
from ellp.importance import parse
from ellp.memory import room
from ellp.plans import Options, Progress
from ellp.presets import default_name, share_kept
from ellp.quiet import quiet
from ellp.record import bytes_in_memory, parameters, record_of
from ellp.surgery import compress
from ellp.table_weights import has_token_table, weighed
from ellp.texts import batches_of, read_texts


@dataclass(frozen=True)
class Source:
    """The model to compress, and what may be done to read it."""

    name: str
    base: str | None = None
    dtype: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    tokenizer_required: bool = True

    def open(self) -> Bundle:
        return open_bundle(
            self.name,
            base=self.base,
            dtype=self.dtype,
            allow_pickle=self.allow_pickle,
            trust_remote_code=self.trust_remote_code,
            tokenizer_required=self.tokenizer_required,
        )


def compress_folder(
    source: Source,
    output: Path | None,
    settings: dict[str, Any],
    *,
    preset: str | None = None,
    calibrate: Path | None = None,
    importance: str | None = None,
    sensitive: bool | None = None,
    text: Path | None = None,
    force: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compress a model and write it with its tokenizer, recipe and model card; the record of what was done.

    ``settings`` are those of :class:`ellp.Options`; a ``preset`` sets ``keep`` and, without ``output``, the folder.
    ``importance``, ``sensitive`` and ``text`` are those of :func:`ellp.weighing.weigh`; what is left out is chosen for
    the token table, except in the paper's presets, where all rows and directions weigh alike.
    """
    budgets = [settings.get(name) for name in ("keep", "rank", "bytes", "size")]
    if (preset is None) == all(budget is None for budget in budgets):
        raise InputError(
            "need one of --bytes, --size, --keep, --rank and --preset: --bytes 1/8 codes the token table in an eighth "
            "of float16"
        )
    if output is None and preset is None:
        raise InputError("need a folder for the result, got none: pass -o DIR")
    options = Options(**settings) if preset is None else Options(**{**settings, "keep": 0.5})
    texts = None if calibrate is None else read_texts(calibrate)
    if importance is not None:
        parse(importance)
    if text is not None and not text.exists():
        raise InputError(f"need a text file or a folder of them, got {text}: check the path")
    if output is not None:
        check_target(output, force=force)
    space = room()
    bundle = source.open()
    model: Any = bundle.model
    size = bytes_in_memory(model)
    too_large = f"the model takes {size / 1e9:.1f} GB and {space / 1e9:.1f} GB are free" if size > space else None
    if preset is not None:
        options = replace(options, keep=share_kept(model.config.model_type, preset))
    target = output or Path(default_name(bundle.name, preset or ""))
    check_target(target, force=force, source=bundle.folder)

    before = parameters(model)
    if too_large and texts is not None:
        raise InputError(
            f"need to run the model to calibrate it, got too little memory ({too_large}): leave --calibrate out"
        )
    batches = None if texts is None else list(batches_of(bundle, texts))
    usual = preset is None and has_token_table(model, options.layers)
    weights = weighed(
        bundle, importance, sensitive, text, usual=usual, seed=options.seed, too_large=too_large, progress=progress
    )
    plan = compress(
        model,
        options,
        calibrate=batches,
        importance=weights.importance,
        metric=weights.metric,
        progress=progress,
        shelf=target.absolute().parent if too_large else None,
    )
    if not plan.chosen:
        reasons = "; ".join(f"{layer.name}: {layer.skipped}" for layer in plan.layers[:3])
        raise InputError(f"need something to compress, got a plan in which every layer stays dense ({reasons})")
    from ellp.hf import EllpConfig, attach

    attach(model, EllpConfig.of(options, preset, weights.record), plan)
    with replacing_folder(target, force=force, source=bundle.folder) as draft:
        with quiet():
            model.save_pretrained(draft)
        copy_side_files(bundle, draft)
        record = record_of(bundle, target, plan, before, preset, calibrate, command)
        record["weighing"] = weights.record
        record["bytes_after"] = weight_bytes(draft)
        record["sentence_transformers"] = (draft / "modules.json").is_file()
        (draft / "README.md").write_text(model_card(record), encoding="utf-8")
    return record
