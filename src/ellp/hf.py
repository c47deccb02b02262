"""The way into Hugging Face transformers: a quantizer plug-in, registered when transformers is imported.

``from_pretrained(..., quantization_config=EllpConfig(keep=0.25))`` compresses after the dense weights are loaded;
``save_pretrained`` writes an ordinary folder; plain ``from_pretrained`` swaps the factorized layers in before it loads
the weights, from the plan kept in ``config.json``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ellp.coded import CodedAxes, CodedEmbedding, empty_code
from ellp.errors import InputError, first_line
from ellp.importance.spec import parse
from ellp.layers import Projection, empty_factors
from ellp.plans import CodeFacts, LayerPlan, Options, Plan
from ellp.selection import select
from ellp.surgery import compress, install, install_empty_code

METHOD = "ellp"
FORMAT = 2  # 1 had factors only, and is still written where there is no code


class EllpConfig(QuantizationConfigMixin):
    """How a model is to be compressed, and, once it is, which layers were: written into ``config.json``.

    The options are those of :class:`ellp.Options`. ``importance``, ``sensitivity`` and ``text`` say what the rows of
    the token table weigh, as in :func:`ellp.weighing.weigh`, and ``weighing`` what came of it. ``factorized`` is the
    plan that a reload follows.
    """

    def __init__(
        self,
        keep: float | None = None,
        rank: int | None = None,
        bytes: float | None = None,
        size: int | None = None,
        coder: str = "auto",
        tapered: bool = False,
        layers: str | list[str] = "embeddings",
        p: float | str = 1.0,
        method: str = "lewis",
        tol: float = 0.05,
        refine: str | None = None,
        uniform: bool = False,
        seed: int = 0,
        preset: str | None = None,
        importance: str = "uniform",
        sensitivity: bool = False,
        text: str | None = None,
        weighing: dict[str, Any] | None = None,
        factorized: list[dict[str, Any]] | None = None,
        coded: list[dict[str, Any]] | None = None,
        format: int = 1,
        **unknown: Any,
    ) -> None:
        unknown.pop("quant_method", None)
        if unknown:
            raise InputError(
                f"need options that EllpConfig knows, got {', '.join(sorted(unknown))}: see help(EllpConfig)"
            )
        if format > FORMAT:
            raise InputError(f"need format {FORMAT} or older, got {format}: upgrade ellp")
        self.quant_method = METHOD  # type: ignore[assignment]
        self.keep, self.rank, self.layers, self.p = keep, rank, layers, p
        self.bytes, self.size, self.coder, self.tapered = bytes, size, coder, tapered
        self.method, self.tol, self.refine, self.uniform, self.seed = method, tol, refine, uniform, seed
        self.preset, self.factorized, self.coded, self.format = preset, factorized, coded, format
        self.importance, self.sensitivity, self.text, self.weighing = importance, sensitivity, text, weighing
        if factorized is None:
            self.options()  # refuses what cannot be done before a model is loaded
            parse(importance)

    def options(self) -> Options:
        """The options of a fresh compression."""
        return Options(
            keep=self.keep,
            rank=self.rank,
            bytes=self.bytes,
            size=self.size,
            coder=self.coder,  # type: ignore[arg-type]
            tapered=self.tapered,
            layers=self.layers,
            p=float(self.p),
            method=self.method,  # type: ignore[arg-type]
            tol=self.tol,
            refine=self.refine,  # type: ignore[arg-type]
            uniform=self.uniform,
            seed=self.seed,
        )

    @classmethod
    def of(cls, options: Options, preset: str | None = None, weighing: dict[str, Any] | None = None) -> EllpConfig:
        """The configuration of a compression with these options; ``weighing`` is the record of its weights."""
        settings = {**asdict(options), "p": options.p if math.isfinite(options.p) else str(options.p)}
        settings["layers"] = options.layers if isinstance(options.layers, str) else list(options.layers)
        facts = weighing or {}
        settings |= {"importance": facts.get("importance", "uniform"), "sensitivity": bool(facts.get("sensitivity"))}
        return cls(**settings, preset=preset, text=facts.get("text"), weighing=weighing)

    def filled(self, chosen: Iterable[LayerPlan]) -> EllpConfig:
        """This configuration with the layers that became factors or codes."""
        changed = list(chosen)
        self.factorized = [_entry(layer, {"rank": layer.rank}) for layer in changed if layer.rank is not None]
        codes = [(layer, layer.coded) for layer in changed if layer.coded is not None]
        self.coded = [
            _entry(layer, {"code": facts.kind, "settings": facts.settings, "layout": facts.layout, "mark": facts.mark})
            for layer, facts in codes
        ] or None
        self.format = FORMAT if self.coded else 1
        return self

    def to_diff_dict(self) -> dict[str, Any]:
        """Everything: transformers 4 asks for this when it prints a configuration, and has none to inherit."""
        return dict(self.to_dict())


def _entry(layer: LayerPlan, more: dict[str, Any]) -> dict[str, Any]:
    """What a reload has to know of one layer."""
    shape = {"name": layer.name, "kind": layer.kind, "rows": layer.rows, "columns": layer.columns}
    return shape | more | {"tied": [list(pair) for pair in layer.tied]}


class EllpQuantizer(HfQuantizer):
    """Compresses after loading dense weights, or makes room for factors before loading them."""

    requires_calibration = False
    quantization_config: EllpConfig

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        places = device_map.values() if isinstance(device_map, dict) else [device_map]
        if not self.pre_quantized and any(str(place) == "disk" for place in places):
            raise InputError("need the weights in memory to compress them, got a device_map with 'disk': leave it out")

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if self.pre_quantized:
            check_files(kwargs.get("checkpoint_files") or [], self.quantization_config)
            make_room(model, self.quantization_config)
        return model

    def update_missing_keys(self, model: nn.Module, missing_keys: list[str], prefix: str) -> list[str]:
        """Version 4's way to say that something is not there, which version 5 no longer asks for."""
        codes = [entry["name"] for entry in self.quantization_config.coded or []]
        absent = [key for key in missing_keys if key.rpartition(".")[0].removesuffix(".proj") in codes]
        if absent:
            raise _incomplete(absent)
        return missing_keys

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        if not self.pre_quantized:
            if any(parameter.is_meta for parameter in model.parameters()):
                raise InputError(
                    "need the weights in memory to compress them, got some offloaded: leave device_map out"
                )
            config = self.quantization_config
            attach(model, config, compress(model, config.options(), **weights_of(model, config)))
        settle(model)
        for module in model.modules():
            if isinstance(module, CodedEmbedding) and not module.weight.is_meta:
                module.check()
        return model

    def is_serializable(self, safe_serialization: bool | None = None) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return True


def weights_of(model: Any, config: EllpConfig) -> dict[str, Any]:
    """What a configuration asks the rows and directions of the token table to weigh, as arguments of compress."""
    if config.importance == "uniform" and not config.sensitivity:
        return {}
    from transformers import AutoTokenizer

    from ellp.weighing import weigh

    try:
        tokenizer = AutoTokenizer.from_pretrained(model.config._name_or_path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"need a tokenizer beside the model for importances, got none ({first_line(error)}): save it there, or "
            "leave importance and sensitivity out"
        ) from None
    text = None if config.text is None else Path(config.text)
    found = weigh(model, tokenizer, importance=config.importance, sensitive=config.sensitivity, text=text)
    config.weighing = found.record
    return {"importance": found.importance, "metric": found.metric}


def check_files(files: Iterable[str | Path], config: EllpConfig) -> None:
    """That a checkpoint has every tensor of its codes: what is missing would be filled with whatever memory holds."""
    wanted = {f"{entry['name']}.{tensor}" for entry in config.coded or [] for tensor in entry.get("layout") or ()}
    if not wanted:
        return
    found = {name for file in files for name in _names(Path(file))}
    if found & wanted and wanted - found:  # none at all: transformers has renamed them, and looks for them itself
        raise _incomplete(sorted(wanted - found))


def _names(file: Path) -> list[str]:
    """The tensors in a file."""
    try:
        with safe_open(file, "pt") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"need a whole safetensors file, got {file.name} ({first_line(error)}): copy it again"
        ) from None


def _incomplete(absent: list[str]) -> InputError:
    more = ", ..." * (len(absent) > 3)
    return InputError(f"need every tensor of a code, got none for {', '.join(absent[:3])}{more}: restore the weights")


def make_room(model: Any, config: EllpConfig) -> None:
    """Swap empty factorized layers into a model whose weights are about to be loaded.

    The folder may hold another architecture of the same base model, as when a masked language model becomes a
    classifier: names then gain or lose the base model's prefix, and layers that are not there are left out.
    """
    entries = [*(config.factorized or []), *(config.coded or [])]
    same = [type(model).__name__] == list(model.config.architectures or [])
    own = {entry["name"]: _name_here(model, entry["name"]) for entry in entries}
    done = []
    for entry in entries:
        name = own[entry["name"]]
        if name is None:
            continue
        (layer,) = select(model, [name])
        others = tuple((other, kind) for other, kind in layer.tied if other not in own.values())
        tied = tuple((other, kind) for other, kind in entry["tied"]) if same else others
        layer = replace(layer, name=name, kind=entry["kind"], tied=tied, skipped=None)
        like = model.get_submodule(name).weight
        if "code" in entry:
            facts = _facts(entry)
            layer = replace(layer, size=0, coded=facts)
            install_empty_code(model, layer, empty_code(facts.kind, facts.layout, like), facts)
        else:
            layer = replace(layer, rank=entry["rank"])
            install(model, layer, *empty_factors(layer.rows, layer.columns, entry["rank"], like))
        done.append(layer)
    model.config.quantization_config = config.filled(done)
    declare_aliases(model)


def _facts(entry: dict[str, Any]) -> CodeFacts:
    """What ``config.json`` says about a code."""
    settings = entry.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("bits"), int):
        raise InputError(f"need the settings of a code, got {settings!r}: restore config.json")
    return CodeFacts(str(entry["code"]), dict(settings), entry.get("layout") or {}, entry.get("mark"))


def _name_here(model: Any, name: str) -> str | None:
    """A layer's name in this architecture: with the base model's prefix, without it, or None if it is not there."""
    prefix = f"{model.base_model_prefix}."
    layers = dict(model.named_modules(remove_duplicate=False))
    return next((known for known in (name, name.removeprefix(prefix), prefix + name) if known in layers), None)


def declare_aliases(model: Any) -> None:
    """Tell transformers 4 that a table reached under several names has one projection, not several.

    Version 5 gives every name a module of its own, which only refers to the projection.
    """
    if not isinstance(getattr(model, "_tied_weights_keys", None), list):
        return
    seen: set[int] = set()
    aliases = []
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Projection, CodedAxes, CodedEmbedding)):
            if id(module) in seen:
                aliases += [f"{name}.{key}" for key in (*module._parameters, *module._buffers)]
            seen.add(id(module))
    model._tied_weights_keys = sorted({*model._tied_weights_keys, *aliases})


def attach(model: Any, config: EllpConfig, plan: Plan) -> None:
    """Mark a model compressed in memory, so that ``save_pretrained`` writes what a reload needs."""
    config.filled(plan.chosen)
    model.config.quantization_config = config
    model.hf_quantizer = EllpQuantizer(config, pre_quantized=True)
    declare_aliases(model)
    settle(model)


def settle(model: Any) -> None:
    """Factors are ordinary parameters: the model may be cast, trained and moved like any other."""
    model.is_quantized = False
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_is_quantized"):
            module.config._is_quantized = False


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config(METHOD)(EllpConfig)
if METHOD not in AUTO_QUANTIZER_MAPPING:
    register_quantizer(METHOD)(EllpQuantizer)
