"""``ellp compress`` and ``ellp inspect``: one model."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ellp.cli.arguments import AllowPickle, Base, Model, RemoteCode
from ellp.errors import InputError
from ellp.options import How, Method, Refine
from ellp.presets import Preset


def compress(
    model: Model,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="folder to write")] = None,
    bytes: Annotated[
        str | None, typer.Option("--bytes", help="code token tables in this share of float16's bytes: 1/8, 0.0625")
    ] = None,
    size: Annotated[str | None, typer.Option(help="the same as a size: 3MB, 800kB")] = None,
    coder: Annotated[How, typer.Option(help="how tables are coded; auto takes what errs least")] = "auto",
    keep: Annotated[float | None, typer.Option(help="share of the chosen layers' parameters to keep")] = None,
    tapered: Annotated[bool, typer.Option("--tapered", help="with --keep: longer rows for tokens that matter")] = False,
    preset: Annotated[Preset | None, typer.Option(help="the paper's rate for this architecture")] = None,
    rank: Annotated[int | None, typer.Option(help="one rank for every chosen layer")] = None,
    layers: Annotated[
        str, typer.Option(help="embeddings, linear, all, or names with * (comma between)")
    ] = "embeddings",
    p: Annotated[float, typer.Option("--p", help="the norm: 1 is robust, 2 is the SVD; 0 to inf")] = 1.0,
    method: Annotated[Method, typer.Option(help="how the ellipsoid is found")] = "lewis",
    refine: Annotated[Refine | None, typer.Option(help="lower the l_p error further")] = None,
    tol: Annotated[float, typer.Option(help="how far above ideal the proved distortion may be")] = 0.05,
    uniform: Annotated[bool, typer.Option("--uniform", help="the same share in every layer")] = False,
    calibrate: Annotated[
        Path | None, typer.Option(help="texts, one a line: fit linear layers to their outputs")
    ] = None,
    importance: Annotated[
        str | None, typer.Option(help="token weights: auto, uniform, prior, words:en, text:FILE, mixtures, powers")
    ] = None,
    sensitivity: Annotated[
        bool | None, typer.Option(help="weigh directions by what the output reacts to; on where it can run")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="texts like those the model will see: a file or folder, no labels")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16; kept if left out")] = None,
    base: Base = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: RemoteCode = False,
    no_tokenizer: Annotated[bool, typer.Option("--no-tokenizer", help="the model has no tokenizer")] = False,
    seed: Annotated[int, typer.Option(help="seed of the row sample")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace an existing model folder")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Compress a transformers model into a folder that reloads like any other (after import ellp)."""
    from ellp.recipe import Source, compress_folder
    from ellp.show import LayerProgress, compress_summary

    names = [name.strip() for name in layers.split(",") if name.strip()]
    settings = {"keep": keep, "rank": rank, "layers": names[0] if len(names) == 1 else names, "p": p}
    settings |= {"bytes": share(bytes), "size": byte_count(size), "coder": coder, "tapered": tapered}
    settings |= {"method": method, "tol": tol, "refine": refine, "uniform": uniform, "seed": seed}
    source = Source(model, base, dtype, allow_pickle, trust_remote_code, not no_tokenizer)
    command = shlex.join(["ellp", *sys.argv[1:]])
    with LayerProgress(quiet=as_json) as progress:
        record = compress_folder(
            source,
            output,
            settings,
            preset=preset,
            calibrate=calibrate,
            importance=importance,
            sensitive=sensitivity,
            text=text,
            force=force,
            command=command,
            progress=progress,
        )
    typer.echo(json.dumps(record) if as_json else compress_summary(record))


def share(given: str | None) -> float | None:
    """A share written as 1/8, 0.125 or 12.5%.

    >>> share("1/8"), share("12.5%")
    (0.125, 0.125)
    """
    if given is None:
        return None
    top, slash, bottom = given.strip().removesuffix("%").partition("/")
    try:
        value = float(top) / float(bottom if slash else 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"need a share such as 1/8 or 0.125, got {given!r}: write a number or a fraction") from None
    return value / 100 if given.strip().endswith("%") else value


def byte_count(given: str | None) -> int | None:
    """A size written as 3MB, 800kB or 500000.

    >>> byte_count("3MB"), byte_count("1.5 kB")
    (3000000, 1500)
    """
    if given is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMgG]?)[bB]?\s*", given)
    try:
        return int(float(found[1]) * 1000 ** " kmg".index(found[2].lower() or " "))  # type: ignore[index]
    except (TypeError, ValueError):
        raise InputError(f"need a size such as 3MB or 800kB, got {given!r}: write a number and a unit") from None


def inspect(
    model: Model,
    keep: Annotated[float, typer.Option(help="the share at which p = 1 and the SVD are compared")] = 0.25,
    layers: Annotated[str | None, typer.Option(help="names with * (comma between); all if left out")] = None,
    base: Base = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: RemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Every weight matrix: size, spectrum, outlier rows, and whether robustness helps it (measured)."""
    from ellp.inspection import inspect as look
    from ellp.recipe import Source
    from ellp.show import LayerProgress
    from ellp.show_inspection import summary
    from ellp.texts import token_names

    patterns = None if layers is None else [name.strip() for name in layers.split(",")]
    with LayerProgress(quiet=as_json) as progress:
        bundle = Source(model, base, None, allow_pickle, trust_remote_code, tokenizer_required=False).open()
        found = look(bundle.model, token_names(bundle), keep, patterns, progress=progress.share)
    typer.echo(json.dumps(found.record()) if as_json else summary(found))
