"""``ellp compress`` and ``ellp inspect``: one model."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ellp.cli.arguments import AllowPickle, Base, Model, RemoteCode
from ellp.options import Method, Refine
from ellp.presets import Preset


def compress(
    model: Model,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="folder to write")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the chosen layers' parameters to keep")] = None,
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
    from ellp.recipe import Source, token_names
    from ellp.show import LayerProgress
    from ellp.show_inspection import summary

    patterns = None if layers is None else [name.strip() for name in layers.split(",")]
    with LayerProgress(quiet=as_json) as progress:
        bundle = Source(model, base, None, allow_pickle, trust_remote_code, tokenizer_required=False).open()
        found = look(bundle.model, token_names(bundle), keep, patterns, progress=progress.share)
    typer.echo(json.dumps(found.record()) if as_json else summary(found))
