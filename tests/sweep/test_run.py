"""A whole sweep of tiny models: every cell once, whatever stops it, the same numbers however it is run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_sweeps import start, without_times, write_data, write_model, write_models
from typer.testing import CliRunner

from ellp import InputError
from ellp.cli import app
from ellp.sweep import bench
from ellp.sweep.grid import Grid, read_models
from ellp.sweep.methods import METHODS
from ellp.sweep.record import read_run
from ellp.sweep.run import sweep

KEEP = (0.6, 0.3)
METHODS_HERE = ("svd", "lp", "fwsvd", "int4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and an undisturbed run."""
    root = tmp_path_factory.mktemp("sweep")
    write_models(root / "models")
    write_data(root / "data")
    sweep(grid(root), root / "whole", root / "data")
    return root


def grid(root: Path, **changes: Any) -> Grid:
    models = read_models([str(root / "models")], [])
    return Grid(**({"models": models, "methods": METHODS_HERE, "keep": KEEP} | changes))


def cells_of(folder: Path) -> list[dict[str, Any]]:
    return without_times(read_run(folder).cells)


def test_the_record_has_what_it_should(made: Path) -> None:
    run = read_run(made / "whole")
    assert list(run.cells) == [cell.id for cell in grid(made).cells()]
    assert not [cell for cell in run.cells.values() if "error" in cell]
    facts = run.facts
    assert facts["tasks"] == ["mrpc", "stsb"] and facts["seed"] == 0 and facts["limit"] is None
    assert set(facts["machine"]) == {"cpu", "cores", "memory_gb", "device"} and "torch" in facts["versions"]
    for model in facts["models"]:
        (layer,) = model["layers"]
        assert (layer["rows"], layer["columns"], layer["bytes_fp16"]) == (149, 64, 2 * 149 * 64)
        assert layer["spectrum"]["ranks"][-1] == 64 and {"1", "2"} < set(layer["spectrum"])
        assert all(row["token"] and row["times_median"] >= 1 for row in layer["outliers"])
        assert model["dense"][model["key"]]["examples"] == 24
    for cell in run.cells.values():
        dense = run.model(cell["model"])["dense"][cell["task"]]["score"]  # type: ignore[index]
        assert cell["drop"] == pytest.approx(dense - cell["score"])
        assert cell["drop_low"] <= cell["drop"] + 1e-9 and cell["bytes_share"] < 1
        assert (cell["certificate"] is None) == (cell["method"] == "int4") == (cell["rank"] is None)
    assert any(abs(cell["drop"]) > 0.5 for cell in run.cells.values())  # the texts do get other answers
    tight = run.cells["mrpc/mrpc/embeddings/svd-keep0.6"]
    assert 0 < tight["relative_error"]["l2"] < 1 and tight["rate"] == pytest.approx(0.4, abs=0.02)


def test_no_text_gets_into_the_record(made: Path) -> None:
    texts = (made / "data" / "mrpc" / "dev.tsv").read_text().splitlines()[1:]
    record = (made / "whole" / "run.json").read_text() + (made / "whole" / "cells.jsonl").read_text()
    assert not any(text.split("\t")[0] in record for text in texts)


def test_comparisons_are_differences_of_drops(made: Path) -> None:
    run = read_run(made / "whole")
    found = {(row["task"], row["method"], row["keep"]): row for row in run.facts["comparisons"]}
    assert len(found) == 2 * 2 * 2 + 2 * 2  # tasks x (lp, fwsvd) x budgets, and the means over tasks
    for (task, method, keep), row in found.items():
        assert row["gain_low"] <= row["gain"] + 1e-9 and row["gain"] - 1e-9 <= row["gain_high"]
        if task != "mean":
            name = f"{task}/{task}/embeddings/{{}}-keep{keep:g}"
            drops = [
                run.cells[name.format(part)]["drop"] for part in ("svd", "lp-p1-uniform" if method == "lp" else method)
            ]
            assert row["gain"] == pytest.approx(drops[0] - drops[1])
    both = [found[task, "lp", 0.3]["gain"] for task in ("mrpc", "stsb")]
    assert found["mean", "lp", 0.3]["gain"] == pytest.approx(sum(both) / 2)
    assert run.facts["verdict"]["text"].startswith("The claim")


def test_norms_are_compared_under_the_same_importances(made: Path, tmp_path: Path) -> None:
    run = sweep(
        grid(made, methods=("svd", "lp"), p=(1.0, 2.0), importances=("prior",), keep=(0.3,)),
        tmp_path / "run",
        made / "data",
    )
    rows = {row["task"]: row for row in run.facts["comparisons"] if row["against"] == "p=2"}
    assert set(rows) == {"mrpc", "stsb", "mean"} and all(row["p"] == 1 for row in rows.values())
    drops = [run.cells[f"stsb/stsb/embeddings/lp-p{p}-prior-keep0.3"]["drop"] for p in (2, 1)]
    assert rows["stsb"]["gain"] == pytest.approx(drops[0] - drops[1])
    assert len(run.facts["comparisons"]) == 3 * 3  # tasks and mean: both norms against the SVD, and p = 1 against p = 2


def test_running_again_does_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (made / "whole" / "cells.jsonl").read_bytes()
    monkeypatch.setattr(bench.Bench, "open", lambda *_: pytest.fail("a model was opened"))
    sweep(grid(made), made / "whole", made / "data")
    assert (made / "whole" / "cells.jsonl").read_bytes() == before


def test_a_grid_may_grow(made: Path, tmp_path: Path) -> None:
    sweep(grid(made, methods=("svd",), keep=(0.3,)), tmp_path / "run", made / "data")
    sweep(grid(made, methods=("svd", "lp")), tmp_path / "run", made / "data", command="ellp sweep more")
    run = sweep(grid(made), tmp_path / "run", made / "data")
    assert [session["command"] for session in run.facts["sessions"]] == ["", "ellp sweep more", ""]
    assert cells_of(tmp_path / "run") == cells_of(made / "whole")
    kept = (tmp_path / "run" / "cells.jsonl").read_text().splitlines()
    assert len(kept) == len(read_run(tmp_path / "run").cells)  # no cell was measured twice


def test_stopped_after_any_cell_it_goes_on(made: Path, tmp_path: Path) -> None:
    total = len(grid(made).cells())

    class Stop(Exception):
        pass

    for at in (0, 1, total // 2):

        def stop(_: str, done: int, total: int, at: int = at) -> None:
            if done > at:
                raise Stop

        with pytest.raises(Stop):
            sweep(grid(made), tmp_path / "run", made / "data", progress=stop)
    seen: list[tuple[int, int]] = []
    sweep(grid(made), tmp_path / "run", made / "data", progress=lambda _, done, total: seen.append((done, total)))
    assert seen[0][0] == total // 2 + 1 and seen[-1] == (total, total)
    assert cells_of(tmp_path / "run") == cells_of(made / "whole")


def test_the_ellipsoid_of_tied_numbers_is_found_once(made: Path) -> None:
    names = [path.name for path in (made / "whole" / "cache").glob("ellipsoid-*")]
    assert len(names) == 2 * 3  # two tables, and p = 1, p = 2, p = 2 with Fisher weights


def test_a_failing_cell_is_recorded_and_tried_again_when_asked(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS["lp"]

    def breaks(problem: Any, keep: float | None, share: float | None) -> Any:
        if keep == 0.3:
            raise MemoryError("no room")
        return method.approximate(problem, keep=keep, share=share)

    monkeypatch.setitem(METHODS, "lp", type(method)(**{**vars(method), "approximate": breaks}))
    run = sweep(grid(made), tmp_path / "run", made / "data")
    errors = {name: cell["error"] for name, cell in run.cells.items() if "error" in cell}
    assert set(errors) == {f"{task}/{task}/embeddings/lp-p1-uniform-keep0.3" for task in ("mrpc", "stsb")}
    assert set(errors.values()) == {"MemoryError: no room"}
    rest = [cell for cell in without_times(run.cells) if "error" not in cell]
    assert rest == [cell for cell in cells_of(made / "whole") if cell["id"] not in errors]
    monkeypatch.setitem(METHODS, "lp", method)
    assert "error" in sweep(grid(made), tmp_path / "run", made / "data").cells[min(errors)]
    sweep(grid(made), tmp_path / "run", made / "data", again=True)
    assert cells_of(tmp_path / "run") == cells_of(made / "whole")


def test_budgets_that_leave_nothing_fail_in_words(made: Path, tmp_path: Path) -> None:
    run = sweep(grid(made, methods=("svd", "int8"), keep=(0.001,)), tmp_path / "run", made / "data")
    assert "room for rank 1" in run.cells["mrpc/mrpc/embeddings/svd-keep0.001"]["error"]
    assert "error" not in run.cells["mrpc/mrpc/embeddings/int8"]


def test_a_model_that_cannot_be_opened_fails_alone(made: Path, tmp_path: Path) -> None:
    models = read_models([f"mrpc={made / 'models' / 'mrpc'}", f"stsb={tmp_path / 'none'}"], [])
    run = sweep(grid(made, models=models, methods=("svd",)), tmp_path / "run", made / "data")
    assert {cell["model"]: cell.get("error", "")[:4] for cell in run.cells.values()} == {"mrpc": "", "stsb": "need"}


def test_a_task_that_cannot_be_read_fails_alone(made: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    (tmp_path / "data" / "stsb" / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na b\tc d\tmuch\n")
    models = read_models([f"both={made / 'models' / 'mrpc'}"], ["mrpc", "stsb"])
    run = sweep(grid(made, models=models, methods=("svd",)), tmp_path / "run", tmp_path / "data")
    errors = {cell["task"]: cell.get("error", "") for cell in run.cells.values()}
    assert errors["mrpc"] == "" and "need" in errors["stsb"]
    assert set(run.facts["models"][0]["dense"]) == {"mrpc"}


def test_comparisons_outlive_the_cache(made: Path, tmp_path: Path) -> None:
    run = sweep(grid(made, methods=("svd", "lp")), tmp_path / "run", made / "data")
    before = run.facts["comparisons"]
    shutil.rmtree(tmp_path / "run" / "cache")
    again = sweep(grid(made, methods=("svd", "lp"), keep=(*KEEP, 0.45)), tmp_path / "run", made / "data").facts[
        "comparisons"
    ]
    assert len(again) == len(before) + 3 and all(row in again for row in before)


def test_changed_weights_are_not_mixed_with_old_answers(made: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 2, seed=1)
    models = read_models([f"mrpc={tmp_path / 'model'}"], [])
    sweep(grid(made, models=models, methods=("svd",), keep=(0.6,)), tmp_path / "run", made / "data")
    (tmp_path / "model").rename(tmp_path / "old")
    write_model(tmp_path / "model", 2, seed=2)
    run = sweep(grid(made, models=models, methods=("svd",)), tmp_path / "run", made / "data")
    assert "other weights" in run.cells["mrpc/mrpc/embeddings/svd-keep0.3"]["error"]


def test_all_layers_can_be_swapped_together(made: Path, tmp_path: Path) -> None:
    run = sweep(grid(made, layers="all", methods=("lp", "int4"), keep=(0.5,)), tmp_path / "run", made / "data")
    cell = run.cells["mrpc/mrpc/all/lp-p1-uniform-keep0.5"]
    layers = run.facts["models"][0]["layers"]
    assert cell["layer"].split(",") == [layer["name"] for layer in layers] and len(layers) > 3
    assert cell["parameters"] <= 0.5 * sum(layer["parameters"] for layer in layers)


def test_importances_are_an_axis(made: Path, tmp_path: Path) -> None:
    chosen = grid(
        made,
        methods=("lp",),
        importances=("uniform", "prior", "fisher", "0.5*prior+0.5*sensitivity"),
        p=(2.0,),
        keep=(0.3,),
    )
    run = sweep(chosen, tmp_path / "run", made / "data")
    errors = [
        run.cells[f"stsb/stsb/embeddings/lp-p2-{name}-keep0.3"]["certificate"]["error"] for name in chosen.importances
    ]
    assert len(set(errors)) == 4
    whole = read_run(made / "whole").cells["stsb/stsb/embeddings/fwsvd-keep0.3"]
    assert run.cells["stsb/stsb/embeddings/lp-p2-fisher-keep0.3"]["score"] == whole["score"]
    (tmp_path / "linear").mkdir()
    dense = grid(made, methods=("lp",), importances=("prior",), layers="linear")
    failed = sweep(dense, tmp_path / "linear" / "run", made / "data")
    assert all("token table" in cell["error"] for cell in failed.cells.values())


@pytest.mark.parametrize("changes", [{"limit": 0}, {"batch": 0}, {"jobs": 0}, {"seed": -1}, {"data": Path("nowhere")}])
def test_bad_options_are_refused(made: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    options = {"data": made / "data"} | changes
    with pytest.raises(InputError, match="need"):
        sweep(grid(made), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_thread_count_is_as_before(made: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    sweep(grid(made, methods=("int8",)), tmp_path / "run", made / "data", jobs=1)
    assert torch.get_num_threads() == before


# The command ----------------------------------------------------------------------------------------------------------


def arguments(made: Path, folder: Path, *more: str) -> list[str]:
    keep, methods = ",".join(map(str, KEEP)), ",".join(METHODS_HERE)
    options = ["--keep", keep, "--method", methods, "--data", str(made / "data"), "-o", str(folder), *more]
    return ["sweep", str(made / "models"), *options]


def test_the_command_tells_drops_and_the_verdict(made: Path) -> None:
    done = CliRunner().invoke(app, arguments(made, made / "whole", "--jobs", "1"))
    assert done.exit_code == 0
    assert "lp p=1 keep 0.3" in done.stdout and "The claim" in done.stdout and "mean" in done.stdout
    record = json.loads(CliRunner().invoke(app, arguments(made, made / "whole", "--jobs", "1", "--json")).stdout)
    assert len(record["cells"]) == len(grid(made).cells()) and record["verdict"]["claim"]


def test_no_processes_are_none(made: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, arguments(made, tmp_path / "run", "--jobs", "0"))
    assert isinstance(done.exception, InputError) and "at least 1 process, got 0" in str(done.exception)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_record(made: Path, tmp_path: Path) -> None:
    draw = random.Random(os.getpid())
    folder, total = tmp_path / "run", len(grid(made).cells())
    whole = cells_of(made / "whole")
    for jobs, worker in (("1", False), ("2", False), ("2", True)):
        process = start(*arguments(made, folder, "--jobs", jobs))
        goal = _lines(folder) + draw.randint(0, 2)
        while process.poll() is None and (_lines(folder) < goal or not (folder / "cells.jsonl").exists()):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        victims = [process.pid, *_children(process.pid)]
        with contextlib.suppress(ProcessLookupError):  # it was faster, and is done
            os.kill(victims[-1] if worker else victims[0], signal.SIGKILL)
        _, told = process.communicate(timeout=300)
        assert b"Traceback" not in told
        for pid in victims:
            _gone(pid)
    if len(victims) > 1:
        assert process.returncode == 0  # the sweep survives the death of a worker
    sweep(grid(made), folder, made / "data")
    assert cells_of(folder) == whole
    assert len((folder / "cells.jsonl").read_text().splitlines()) == total  # none lost, none twice
    assert read_run(folder).facts["comparisons"] == read_run(made / "whole").facts["comparisons"]


def _lines(folder: Path) -> int:
    path = folder / "cells.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _children(pid: int) -> list[int]:
    """Worker processes, not multiprocessing's own helper."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"spawn_main" in command:
            found.append(int(path.parent.name))
    return found


def _gone(pid: int) -> None:
    """A worker does not outlive its parent."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")
