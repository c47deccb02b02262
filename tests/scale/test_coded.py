"""Tables on disk as codes: within the bytes, as good as from memory, read back row by row."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ellp import InputError
from ellp.code.search import code_table
from ellp.scale import coded
from ellp.scale.coded import CodeJob, code_file
from ellp.scale.coded_file import open_coded
from ellp.scale.factor import Place

ROWS, COLUMNS = 21_000, 24
SIZE = ROWS * COLUMNS // 4  # an eighth of float16


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "SAMPLED", 6000)


def table() -> np.ndarray[Any, Any]:
    chance = np.random.default_rng(0)
    mixed = chance.standard_normal((ROWS, COLUMNS)) * np.exp(-np.arange(COLUMNS) / 6)
    turned = mixed @ np.linalg.qr(chance.standard_normal((COLUMNS, COLUMNS)))[0]
    return (1 + turned * chance.gamma(2, 0.5, (ROWS, 1))).astype(np.float32)


def importance() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).permutation(1 / (1.0 + np.arange(ROWS)))


def metric() -> np.ndarray[Any, Any]:
    square = np.random.default_rng(2).standard_normal((COLUMNS, COLUMNS))
    return square @ square.T + COLUMNS * np.eye(COLUMNS)


def lost(rows: np.ndarray[Any, Any], read: torch.Tensor, **given: Any) -> float:
    """Weighted squared error in the metric, over that of the mean row."""
    weight = given.get("importance", np.ones(len(rows)))
    root = np.linalg.cholesky(given["metric"]) if "metric" in given else np.eye(rows.shape[1])
    centre = weight @ rows / weight.sum()
    parts = [weight @ np.square((rows - other) @ root).sum(axis=1) for other in (read.double().numpy(), centre)]
    return float(parts[0] / parts[1])


WEIGHED: dict[str, dict[str, Any]] = {
    "alike": {},
    "importance": {"importance": importance()},
    "both": {"importance": importance(), "metric": metric()},
}


@pytest.mark.parametrize("weighed", WEIGHED)
def test_within_the_bytes_and_nearly_as_good_as_from_memory(tmp_path: Path, weighed: str) -> None:
    rows, given = table(), WEIGHED[weighed]
    np.save(tmp_path / "a.npy", rows)
    record = code_file(tmp_path / "a.npy", CodeJob(SIZE, **given), Place(tmp_path / "a.safetensors"))
    assert 0.97 * SIZE < record["bytes"] <= SIZE and record["reads"] <= 3
    assert record["bytes_written"] < SIZE + 4096  # beside the code: a header
    stored = open_coded(tmp_path / "a.safetensors")
    read = stored.rows(torch.arange(ROWS))
    assert lost(rows, read, **given) == pytest.approx(record["error"], rel=1e-3)
    in_memory = code_table(torch.from_numpy(rows), SIZE, **{name: torch.from_numpy(x) for name, x in given.items()})
    assert record["error"] < 1.2 * in_memory.error
    some = torch.tensor([ROWS - 1, 5, 5, 12_345])
    assert torch.equal(stored.rows(some), read[some])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.npy", "a.safetensors"]


def test_the_same_bytes_again_with_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", table())
    monkeypatch.setattr("ellp.scale.parts.PART", 2**18)
    contents = []
    for threads in (1, 3):
        monkeypatch.setattr(coded, "threads_for", lambda *_, threads=threads: coded_threads(threads))
        code_file(tmp_path / "a.npy", CodeJob(SIZE), Place(tmp_path / "a.safetensors", force=True))
        contents.append((tmp_path / "a.safetensors").read_bytes())
    assert contents[0] == contents[1]


def coded_threads(count: int) -> Any:
    from ellp.scale.threads import Threads

    return Threads(count, count)


def test_a_small_table_is_coded_in_memory(tmp_path: Path) -> None:
    rows = table()[:3000]
    np.save(tmp_path / "a.npy", rows)
    record = code_file(tmp_path / "a.npy", CodeJob(20_000), Place(tmp_path / "a.safetensors"))
    assert record["reads"] == 1 and record["bytes"] <= 20_000
    assert lost(rows, open_coded(tmp_path / "a.safetensors").rows(torch.arange(3000))) == pytest.approx(record["error"])


RUN = """
import sys
from pathlib import Path
import ellp.scale.coded as coded, ellp.scale.parts as parts, ellp.scale.passes as passes
coded.SAMPLED, parts.PART, passes.PATIENCE = 6000, 2**16, 0.0
place = coded.Place(Path(sys.argv[2]), force=True)
coded.code_file(sys.argv[1], coded.CodeJob(int(sys.argv[3])), place)
"""


def test_a_run_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", table())
    command = [sys.executable, "-c", RUN, str(tmp_path / "a.npy"), str(tmp_path / "whole.safetensors"), str(SIZE)]
    subprocess.run(command, check=True)
    command[4] = str(tmp_path / "killed.safetensors")
    running = subprocess.Popen(command)
    folder = tmp_path / ".killed.safetensors.run"
    while running.poll() is None and not list(folder.glob("draft-*")):
        time.sleep(0.01)
    time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "killed.safetensors").exists() and folder.is_dir()
    subprocess.run(command, check=True)
    whole, killed = (safe_tensors(tmp_path / f"{name}.safetensors") for name in ("whole", "killed"))
    assert whole == killed and not folder.exists()


def safe_tensors(path: Path) -> bytes:
    """All that follows the header, which tells the file's own name."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_the_command(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", table()[:4000])
    command = [sys.executable, "-c", "from ellp.cli import main; main()", "factor", "a.npy", "-o", "a.safetensors"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, env=env, check=False)

    done = run("--bytes", "1/4", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["bytes"] <= record["bytes_asked"] == 4000 * COLUMNS // 2
    for options in (("--bytes", "1/4", "--rank", "3"), ("--bytes", "1/4", "--size", "3kB"), ("--bytes", "7")):
        refused = run(*options, "--force")
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr


def test_what_is_no_code_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", table()[:4000])
    path = tmp_path / "a.safetensors"
    code_file(tmp_path / "a.npy", CodeJob(20_000), Place(path))
    content = path.read_bytes()
    for damaged in (content[:-1], content[:100], content.replace(b"staged", b"staked"), b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError):
            open_coded(path)
    np.save(tmp_path / "b.npy", table())
    with pytest.raises(InputError, match="rounding"):
        code_file(tmp_path / "b.npy", CodeJob(SIZE, coder="rounding"), Place(tmp_path / "b.safetensors"))
