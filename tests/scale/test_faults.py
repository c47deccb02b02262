"""What goes wrong with long runs, for real: killed processes, files that change, full disks, two runs at once."""

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scale_runs
from safetensors.numpy import load_file
from scale_runs import Count, made_table, run, small_parts, start

from ellp import InputError
from ellp.scale import parts, passes


@pytest.fixture(autouse=True)
def many_parts() -> Iterator[None]:
    before = parts.PART, parts.FAN, passes.PATIENCE
    small_parts()
    yield
    parts.PART, parts.FAN, passes.PATIENCE = before


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made_table(tmp_path / "table.npy")
    return tmp_path / "table.npy"


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_killed_at_any_moment_it_ends_in_the_same_file(table: Path) -> None:
    output, count = table.with_name("out.safetensors"), Count()
    run(table, output, count, compare=True)
    whole = output.read_bytes()
    output.unlink()
    dice, kills = random.Random(0), 0
    while not output.exists():
        process = start(table, output, dice.randrange(3, 40), compare=True)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        assert process.exitcode == (0 if output.exists() else -signal.SIGKILL)
    assert kills >= 4
    assert output.read_bytes() == whole
    assert not left_behind(table.parent)


def test_what_is_done_is_not_done_again(table: Path) -> None:
    output, count = table.with_name("out.safetensors"), Count()
    run(table, output, count)
    rows = count.rows
    output.unlink()
    process = start(table, output, count.news - 5)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    rest = Count()
    run(table, output, rest)
    assert rest.rows < 0.2 * rows


def test_killed_from_outside_while_writing(table: Path) -> None:
    output = table.with_name("out")
    whole = run(table, table.with_name("whole"), rank=4).factors.left.clone()
    for _ in range(3):
        process = start(table, output, rank=4)
        time.sleep(random.Random(1).random() * 0.3)
        process.kill()
        process.join()
    found = run(table, output, rank=4, force=True).factors
    assert np.array_equal(np.load(output / "left.npy"), whole.numpy())
    assert np.array_equal(found.left.numpy(), whole.numpy())
    assert not left_behind(table.parent)


def test_other_options_do_not_meet_the_wrong_passes(table: Path) -> None:
    output = table.with_name("out.safetensors")
    run(table, output, rank=3, p=1.5, seed=2)
    whole = output.read_bytes()
    output.unlink()
    start(table, output, 30, rank=5).join()
    assert left_behind(table.parent)
    run(table, output, rank=3, p=1.5, seed=2)
    assert output.read_bytes() == whole


def test_another_table_does_not_meet_the_wrong_passes(table: Path) -> None:
    output = table.with_name("out.safetensors")
    start(table, output, 60).join()
    assert left_behind(table.parent)
    other = 3 * np.load(table)
    np.save(table, other)
    run(table, output)
    run(table, table.with_name("again.safetensors"))
    assert np.array_equal(load_file(output)["left"], load_file(table.with_name("again.safetensors"))["left"])


def test_two_runs_into_one_output(table: Path) -> None:
    output = table.with_name("out.safetensors")
    slow = start(table, output, 0, p=0.1, tol=1e-9, strict=False, max_steps=400)
    while not (table.parent / ".out.safetensors.run" / "lock").exists():
        time.sleep(0.01)
    time.sleep(0.05)
    with pytest.raises(InputError, match="another run"):
        run(table, output)
    slow.kill()
    slow.join()
    run(table, output)
    assert output.exists()


@pytest.mark.parametrize("row", [0, 4321])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_first_bad_row_is_named(table: Path, row: int, bad: float) -> None:
    matrix = np.load(table)
    matrix[row, 3] = bad
    matrix[row + 100 :: 7, 2] = -np.inf
    np.save(table, matrix)
    kind = "NaN" if np.isnan(bad) else "infinity"
    with pytest.raises(InputError, match=f"{kind} in row {row:,}, column 3"):
        run(table, table.with_name("out.safetensors"))
    assert not left_behind(table.parent), "there is nothing to go on from"


def test_a_bad_importance_is_named(table: Path) -> None:
    weights = np.ones(scale_runs.ROWS)
    weights[3000] = -1
    np.save(table.with_name("c.npy"), weights)
    with pytest.raises(InputError, match="row 3,000"):
        run(table, table.with_name("out.safetensors"), importance=table.with_name("c.npy"))


def test_a_truncated_file(table: Path) -> None:
    with open(table, "r+b") as file:
        file.truncate(table.stat().st_size // 2)
    with pytest.raises(InputError, match="complete"):
        run(table, table.with_name("out.safetensors"))


class Meddle(Count):
    """A watch that does something to a file in the middle of the second pass."""

    def __init__(self, change: object) -> None:
        super().__init__()
        self.change = change

    def advance(self, rows: int) -> None:
        super().advance(rows)
        if self.rows > 1.5 * scale_runs.ROWS and self.change is not None:
            self.change()  # type: ignore[operator]
            self.change = None


def test_a_file_that_shrinks_while_it_is_read(table: Path) -> None:
    with pytest.raises(InputError, match="shorter"):
        run(table, table.with_name("out.safetensors"), Meddle(lambda: os.truncate(table, 5000)))
    assert not table.with_name("out.safetensors").exists()


def test_a_file_that_changes_while_it_is_read(table: Path) -> None:
    with pytest.raises(InputError, match="changed"):
        run(table, table.with_name("out.safetensors"), Meddle(lambda: made_table(table)))
    assert not table.with_name("out.safetensors").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_without_room_is_told_before_any_work(table: Path, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(2_050_000))
    count = Count()
    with pytest.raises(InputError, match="room"):
        run(table, small_disk / "out.safetensors", count)
    assert count.rows == 0
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_a_disk_that_fills_up_on_the_way(table: Path, small_disk: Path) -> None:
    """Somebody else takes the room that was there; once it is free again, the run goes on where it stopped."""
    output, filler = small_disk / "out.safetensors", small_disk / "other"

    def fill() -> None:
        with open(filler, "wb") as file:
            while os.statvfs(small_disk).f_bavail:
                file.write(bytes(4096))
                file.flush()

    with pytest.raises(InputError, match="make room; what is done is kept"):
        run(table, output, Meddle(fill))
    assert not output.exists()
    filler.unlink()
    rest, whole = Count(), Count()
    run(table, output, rest)
    run(table, table.with_name("out.safetensors"), whole)
    assert rest.rows <= whole.rows - scale_runs.ROWS
    assert np.array_equal(load_file(output)["left"], load_file(table.with_name("out.safetensors"))["left"])


def test_a_limit_on_file_sizes(table: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(InputError, match="need room and permission"):
            run(table, table.with_name("out.safetensors"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_row_deep_in_the_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "deep.npy"
    deep = np.lib.format.open_memmap(path, "w+", np.float32, (8_000_000, 4))
    deep[7_654_321, 2] = np.nan
    del deep
    parts.PART = 32 * 2**20  # as it is for everybody
    with pytest.raises(InputError, match="NaN in row 7,654,321, column 2"):
        run(path, tmp_path / "out.safetensors")
    assert not left_behind(tmp_path)
