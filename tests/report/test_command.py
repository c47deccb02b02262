"""``ellp report`` as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import made_sweeps as made
import pytest

pytest.importorskip("jinja2")


def report(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ellp.cli import main; main()", "report", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_it_says_what_it_found_and_wrote(tmp_path: Path) -> None:
    made.write(tmp_path / "run")
    run = report("run", "-o", "page.html", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "int8 rounding keeps 99" in run.stdout and "136 cells measured, 0 failed" in run.stdout
    assert "written to  page.html" in run.stdout and (tmp_path / "page.html").is_file()


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    made.write(tmp_path / "run")
    run = report("run", "--json", "--markdown", "table.md", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["written"] == ["report.html", "table.md"]
    assert record["panels"][0]["recommended"]["setting"] == "int8"


BAD = {
    "no such folder": ["nowhere"],
    "no record": ["."],
    "a folder to write": ["run", "-o", "run"],
    "nowhere to write": ["run", "-o", "no/where.html"],
    "a file of somebody else": ["run", "-o", "run/run.json"],
    "a goal above one": ["run", "--goal", "99"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_code_2(tmp_path: Path, arguments: list[str]) -> None:
    before = made.write(tmp_path / "run", lines=[]).joinpath("run.json").read_bytes()
    run = report(*arguments, cwd=tmp_path)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("ellp: need") and run.stderr.count("\n") == 1, run.stderr
    assert (tmp_path / "run" / "run.json").read_bytes() == before and not (tmp_path / "report.html").exists()
