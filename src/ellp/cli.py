"""The command line: one short function per verb. Each parses, validates, makes one call and shows the result."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ellp.errors import EllpError, InputError
from ellp.options import Method, Refine
from ellp.presets import Preset

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


UsageError = typer.BadParameter.__mro__[1]  # typer carries click within it, or beside it, depending on the version


@app.callback(invoke_without_command=True)
def ellp(context: typer.Context) -> None:
    """Shrink big tables and layers of neural networks by robust low-rank factorization."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def factor(
    source: Annotated[str, typer.Argument(metavar="IN", help="IN.npy or IN.safetensors[:tensor]")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the factors (.safetensors)")],
    rank: Annotated[int | None, typer.Option(help="inner dimension of the factors")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the parameters to keep, in place of --rank")] = None,
    p: Annotated[float, typer.Option("--p", help="the norm: 1 is robust, 2 is the SVD; 0 to inf")] = 1.0,
    method: Annotated[Method, typer.Option(help="how the ellipsoid is found")] = "lewis",
    importance: Annotated[Path | None, typer.Option(help="C.npy: one nonnegative number per row")] = None,
    metric: Annotated[Path | None, typer.Option(help="H.npy: d x d weights of error directions")] = None,
    refine: Annotated[Refine | None, typer.Option(help="lower the l_p error further")] = None,
    tol: Annotated[float, typer.Option(help="how far above ideal the proved distortion may be")] = 0.05,
    seed: Annotated[int, typer.Option(help="seed of the row sample or the sketch")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace an existing output")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Factor one matrix and write left, right, sigma and axes with a certificate."""
    from ellp import store
    from ellp.factoring import factorize
    from ellp.show import Passes, factor_record, factor_summary

    store.refuse_existing(output, force)
    matrix, weights, directions = (
        None if part is None else store.read_matrix(str(part)) for part in (source, importance, metric)
    )
    if matrix is None or matrix.ndim != 2:
        raise InputError(f"need a matrix in {source}, got shape {None if matrix is None else tuple(matrix.shape)}")
    inner = choose_rank(matrix.shape, rank, keep)
    with Passes(quiet=as_json) as passes:
        problem = partial(factorize, matrix, inner, p, weights, directions)
        found = problem(method, tol, refine, seed, progress=passes)
        passes.say("the SVD, for comparison")
        baseline = found if method == "svd" else problem("svd")
        passes.say("writing")
        record = factor_record(source, str(output), matrix.shape, matrix.dtype.itemsize, found, baseline, method)
        parts = {name: store.to_tensor(getattr(found, name)) for name in ("left", "right", "sigma", "axes")}
        record["bytes_written"] = store.write_tensors(output, parts, record)
    typer.echo(json.dumps(record) if as_json else factor_summary(record))


Model = Annotated[str, typer.Argument(metavar="MODEL", help="a folder, a hub id, a PEFT adapter folder, or demo")]
Base = Annotated[str | None, typer.Option(help="where an adapter's base model is")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="read pickled weights (weights only) if need be")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with the model")]


@app.command()
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
            force=force,
            command=command,
            progress=progress,
        )
    typer.echo(json.dumps(record) if as_json else compress_summary(record))


@app.command()
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
    from ellp.show_inspection import summary

    patterns = None if layers is None else [name.strip() for name in layers.split(",")]
    bundle = Source(model, base, None, allow_pickle, trust_remote_code, tokenizer_required=False).open()
    found = look(bundle.model, token_names(bundle), keep, patterns)
    typer.echo(json.dumps(found.record()) if as_json else summary(found))


@app.command()
def evaluate(
    model: Model,
    task: Annotated[str, typer.Option(help="cola, mrpc, sst2, stsb, ..., or sts (cosine, no training); comma between")],
    data: Annotated[Path, typer.Option(help="a file, or a folder with TASK/dev.tsv: sentence1, sentence2, label")],
    against: Annotated[str | None, typer.Option(help="the dense model to compare with")] = None,
    base: Base = None,
    limit: Annotated[int | None, typer.Option(help="use the first so many examples")] = None,
    batch: Annotated[int, typer.Option(help="examples in a batch")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Score a model on labelled texts, and the drop from a dense model with its 95 % interval."""
    from ellp.evaluation import evaluate as measure
    from ellp.evaluation import summary
    from ellp.recipe import Source
    from ellp.show import LayerProgress

    names = [name.strip() for name in task.split(",")]
    source, dense = (
        None if name is None else Source(name, base if (Path(name) / "adapter_config.json").is_file() else None)
        for name in (model, against)
    )
    assert source is not None
    with LayerProgress(quiet=as_json) as progress:
        record = measure(source, names, data, against=dense, limit=limit, batch=batch, progress=progress)
    typer.echo(json.dumps(record) if as_json else summary(record))


def choose_rank(shape: tuple[int, ...], rank: int | None, keep: float | None) -> int:
    """The rank asked for, or the largest whose two factors hold at most ``keep`` of the matrix's numbers."""
    if (rank is None) == (keep is None):
        raise InputError("need exactly one of --rank and --keep: pass --keep 0.5 to keep half of the parameters")
    if rank is not None:
        return rank
    from ellp.budget import rank_for

    return rank_for(shape, keep or 0.0)


def main() -> None:
    """Run the command line; a failure the user can mend is one line on stderr and exit code 2."""
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        if not isinstance(error, (EllpError, OSError, UsageError)):
            raise
        sys.stderr.write(f"ellp: {one_line(error)}\n")
        raise SystemExit(2) from None


def one_line(error: Exception) -> str:
    """What went wrong and what to do, on a single line."""
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    advice = f" (see '{command} --help')" if command else ""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(text.split()) + advice
