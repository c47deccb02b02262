"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def ellp(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ellp.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    np.save(tmp_path / "table.npy", generator.standard_normal((300, 20)).astype(np.float32))
    np.save(tmp_path / "weights.npy", generator.random(300))
    np.save(tmp_path / "metric.npy", np.diag(np.arange(1.0, 21.0)))
    return tmp_path


def test_factor_writes_what_it_says(folder: Path) -> None:
    run = ellp("factor", "table.npy", "--keep", "0.5", "-o", "out.safetensors", cwd=folder)
    assert run.returncode == 0, run.stderr
    assert "distortion" in run.stdout and "SVD" in run.stdout and "out.safetensors" in run.stdout
    factors = load_file(folder / "out.safetensors")
    table = np.load(folder / "table.npy")
    assert factors["left"].shape == (300, 9) and factors["right"].shape == (9, 20)
    assert factors["left"].size + factors["right"].size <= 0.5 * table.size
    exact = np.abs(table - factors["left"] @ factors["right"]).sum()
    with safe_open(folder / "out.safetensors", "np") as file:
        facts = json.loads(file.metadata()["ellp"])
    assert facts["certificate"]["error"] == pytest.approx(exact, rel=1e-5)


def test_json_is_one_object_and_nothing_else(folder: Path) -> None:
    options = ["--rank", "4", "--p", "1.5", "--importance", "weights.npy", "--metric", "metric.npy", "--refine", "rows"]
    run = ellp("factor", "table.npy", *options, "-o", "out.safetensors", "--json", cwd=folder)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["rank"] == 4 and record["p"] == 1.5
    assert record["certificate"]["lower"] <= record["certificate"]["error"] <= record["certificate"]["upper"]
    assert record["bytes_written"] == (folder / "out.safetensors").stat().st_size


BAD = {
    "neither rank nor keep": ["table.npy"],
    "both": ["table.npy", "--rank", "3", "--keep", "0.5"],
    "rank zero": ["table.npy", "--rank", "0"],
    "rank no number": ["table.npy", "--rank", "many"],
    "keep above one": ["table.npy", "--keep", "1.5"],
    "keep too small": ["table.npy", "--keep", "0.001"],
    "unknown method": ["table.npy", "--rank", "3", "--method", "magic"],
    "p negative": ["table.npy", "--rank", "3", "--p", "-1"],
    "p no number": ["table.npy", "--rank", "3", "--p", "nan"],
    "no such file": ["nothing.npy", "--rank", "3"],
    "importance of another length": ["table.npy", "--rank", "3", "--importance", "short.npy"],
    "a vector": ["short.npy", "--rank", "1"],
    "with NaN": ["nan.npy", "--rank", "3"],
    "loewner at p = 0.5": ["table.npy", "--rank", "3", "--method", "loewner", "--p", "0.5"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_code_2(folder: Path, arguments: list[str]) -> None:
    np.save(folder / "short.npy", np.ones(7))
    np.save(folder / "nan.npy", np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]]))
    run = ellp("factor", *arguments, "-o", "out.safetensors", cwd=folder)
    assert run.returncode == 2
    assert run.stderr.startswith("ellp: ") and run.stderr.count("\n") == 1, run.stderr
    assert run.stdout == ""
    assert not (folder / "out.safetensors").exists()


@pytest.mark.parametrize("p", ["0", "0.5", "2", "60", "inf"])
def test_every_power_has_a_summary(folder: Path, p: str) -> None:
    run = ellp("factor", "table.npy", "--rank", "4", "--p", p, "-o", "out.safetensors", cwd=folder)
    assert run.returncode == 0, run.stderr
    assert f"(p = {p})" in run.stdout and "SVD's" in run.stdout


def test_the_input_is_never_overwritten(folder: Path) -> None:
    save_file({"table": np.load(folder / "table.npy")}, folder / "table.safetensors")
    before = (folder / "table.safetensors").read_bytes()
    run = ellp("factor", "table.safetensors:table", "--rank", "4", "--force", "-o", "./table.safetensors", cwd=folder)
    assert run.returncode == 2 and "input" in run.stderr
    assert (folder / "table.safetensors").read_bytes() == before


def test_an_existing_output_is_kept_unless_forced(folder: Path) -> None:
    (folder / "out.safetensors").write_text("mine")
    run = ellp("factor", "table.npy", "--rank", "3", "-o", "out.safetensors", cwd=folder)
    assert run.returncode == 2 and "--force" in run.stderr
    assert (folder / "out.safetensors").read_text() == "mine"
    assert ellp("factor", "table.npy", "--rank", "3", "-o", "out.safetensors", "--force", cwd=folder).returncode == 0
    assert load_file(folder / "out.safetensors")["left"].shape == (300, 3)


def test_help_does_not_wait_for_torch(folder: Path) -> None:
    code = "import sys; from ellp import cli; cli.app(['--help'], standalone_mode=False); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip().endswith("False"), run.stdout + run.stderr
