"""What is written is all of the old folder or file, or all of the new one."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ellp.folder
from ellp import InputError
from ellp.folder import check_target, replacing, replacing_folder


def write(draft: Path, text: str) -> None:
    (draft / "config.json").write_text('{"model_type": "bert"}')
    (draft / "sub").mkdir()
    (draft / "sub" / "text").write_text(text)


def entries(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


@pytest.mark.parametrize("before", ["absent", "empty", "model"])
@pytest.mark.parametrize("swap", [True, False])
def test_the_draft_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, swap: bool) -> None:
    if not swap:
        monkeypatch.setattr(ellp.folder, "_exchange", lambda one, other: False)
    target = tmp_path / "out"
    if before != "absent":
        target.mkdir()
    if before == "model":
        write(target, "old")
        (target / "leftover").write_text("old")
    with replacing_folder(target, force=before == "model") as draft:
        assert draft.parent == tmp_path and draft.name == f".out.{os.getpid()}.part"
        write(draft, "new")
        (draft / "config.json").chmod(0o600)
    assert entries(target) == {"config.json", "sub"} and entries(tmp_path) == {"out"}
    assert (target / "sub" / "text").read_text() == "new"
    assert (target / "config.json").stat().st_mode == (target / "sub" / "text").stat().st_mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, InputError])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    write(target, "old")

    def fail(place: Path) -> None:
        with replacing_folder(place, force=True) as draft:
            write(draft, "new")
            raise error

    for place in (target, tmp_path / "fresh"):
        with pytest.raises(error):
            fail(place)
    assert entries(tmp_path) == {"out"} and (target / "sub" / "text").read_text() == "old"


def test_a_failed_rename_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename = tmp_path / "out", os.rename
    target.mkdir()
    write(target, "old")

    def stubborn(one: Path, other: Path) -> None:
        if one.suffix == ".part":
            raise OSError("busy")
        rename(one, other)

    monkeypatch.setattr(ellp.folder, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", stubborn)
    with pytest.raises(InputError, match="busy: nothing was changed"), replacing_folder(target, force=True) as draft:
        write(draft, "new")
    assert entries(tmp_path) == {"out"} and (target / "sub" / "text").read_text() == "old"


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    target, file = tmp_path / "out", tmp_path / "file"
    target.mkdir()
    write(target, "old")
    file.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with (
            pytest.raises(InputError, match="need room and permission"),
            replacing_folder(target, force=True) as draft,
        ):
            save_file({"a": torch.ones(100, 100)}, draft / "model.safetensors")
        with pytest.raises(InputError, match="need room and permission"), replacing(file) as draft:
            save_file({"a": torch.ones(100, 100)}, draft)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert entries(tmp_path) == {"file", "out"} and (target / "sub" / "text").read_text() == file.read_text() == "old"


def test_targets_that_would_lose_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "bert"
    source.mkdir()
    write(source, "weights")

    def refused(target: Path, told: str, force: bool = True) -> None:
        with pytest.raises(InputError, match=told), replacing_folder(target, force=force, source=source):
            raise AssertionError("not reached")

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("a")
    monkeypatch.chdir(tmp_path / "photos")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    (tmp_path / "home" / "me").mkdir(parents=True)
    refused(Path("/"), "holds the")
    refused(Path("~").expanduser(), "home folder")
    refused(tmp_path / "home", "home folder")
    refused(Path(), "current folder")
    refused(source, "model that is read")
    refused(tmp_path, "holds the")
    refused(source / "config.json", "the file")
    refused(tmp_path / "none" / "out", "create it first")
    monkeypatch.chdir(tmp_path)
    refused(tmp_path / "photos", "remove it yourself")
    refused(tmp_path / "photos", "--force", force=False)
    (tmp_path / "photos" / "config.json").write_text('{"port": 80}')
    refused(tmp_path / "photos", "remove it yourself")
    shutil.copy(source / "config.json", tmp_path / "photos")
    assert check_target(tmp_path / "photos", force=True) == tmp_path / "photos"
    (tmp_path / "photos" / ".git").mkdir()
    refused(tmp_path / "photos", "remove it yourself")
    assert (tmp_path / "photos" / "a.jpg").exists()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    with replacing_folder(tmp_path / "link", force=True) as draft:
        write(draft, "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "sub" / "text").read_text() == "new"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(InputError, match="permission"), replacing_folder(tmp_path / "closed" / "out", force=False):
        raise AssertionError("not reached")


def test_what_killed_runs_left_is_cleared(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = [f".out.{ended.pid}.part", f".out.{os.getpid()}.part"]
    kept = [f".out.{os.getppid()}.part", f".other.{ended.pid}.part", ".out.part", "out.1.part"]
    for name in left + kept:
        (tmp_path / name).mkdir()
    aside = tmp_path / f".out.{ended.pid}.old"  # killed between setting the old folder aside and putting the new one
    aside.mkdir()
    write(aside, "old")
    with pytest.raises(InputError, match="--force"), replacing_folder(tmp_path / "out", force=False):
        raise AssertionError("not reached")
    assert entries(tmp_path) == {"out", *kept} and (tmp_path / "out" / "sub" / "text").read_text() == "old"


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_text("old")

    def fill() -> None:
        with replacing(path) as draft:
            draft.write_text("half of the new")
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left"):
        fill()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.safetensors"]


def test_what_killed_runs_left_of_a_file_is_cleared(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f".out.npy.{ended.pid}.part").mkdir()
    with replacing(tmp_path / "out.npy") as draft:
        draft.write_text("new")
    assert entries(tmp_path) == {"out.npy"} and (tmp_path / "out.npy").read_text() == "new"


LOOP = """
import hashlib, os, random, signal, sys, time
from pathlib import Path
from ellp import folder as folders

target, swap, rounds = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
if not swap:
    folders._exchange = lambda one, other: False

def write(folder, generation):
    for number in range(4):
        (folder / f"part{number}").write_text(f"{generation} " * 2000)
    (folder / "sub").mkdir()
    (folder / "sub" / "end").write_text(str(generation))
    (folder / "config.json").write_text('{"model_type": "bert"}')

def whole(folder):
    texts = {hashlib.sha256((folder / f"part{number}").read_bytes()).hexdigest() for number in range(4)}
    generation = (folder / "sub" / "end").read_text()
    wanted = hashlib.sha256((f"{generation} " * 2000).encode()).hexdigest()
    names = {path.name for path in folder.iterdir()}
    return texts == {wanted} and names == {"part0", "part1", "part2", "part3", "sub", "config.json"}

target.mkdir()
write(target, 0)
chance, seen, left, restored = random.Random(0), set(), 0, 0
for round in range(rounds):
    child = os.fork()
    if not child:
        for generation in range(1000):
            with folders.replacing_folder(target, force=True) as draft:
                write(draft, f"{round}.{generation}")
        os._exit(0)
    time.sleep(chance.uniform(0.001, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left += sum(path.name.startswith(".") for path in target.parent.iterdir())
    if not swap and not target.exists():
        restored += 1
        folders._sweep(target)
    assert whole(target), sorted(target.rglob("*"))
    seen.add((target / "sub" / "end").read_text())
with folders.replacing_folder(target, force=True) as draft:
    write(draft, "last")
assert whole(target) and [path.name for path in target.parent.iterdir()] == [target.name]
print(len(seen), left, restored)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
@pytest.mark.parametrize("swap", [True, False])
def test_killed_at_any_moment_the_target_is_whole(tmp_path: Path, swap: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path / "out"), str(swap), "60"],
        env={**os.environ, "PYTHONPATH": str(Path(ellp.folder.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    states, left, _ = map(int, ran.stdout.split())
    assert states > 5 and left > 5  # the kills did land within the work
