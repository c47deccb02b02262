"""The documentation runs: README.md and docs/*.md, every Python block and every command marked as runnable.

The blocks of one file share a namespace and an empty working folder, and run in the order of the page, so
that a page may make a table in Python and factor it from the shell. A ``console`` or ``bash`` block runs when
the line ``<!-- run -->`` stands above it: then each of its lines that starts with ``$ ellp`` must succeed.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(page for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if page.exists())

BLOCK = re.compile(
    r"^(?P<mark><!-- run -->\n\n?)?```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
ELLP = [sys.executable, "-c", "import sys; from ellp.cli import main; sys.argv[0] = 'ellp'; sys.exit(main())"]


class Block(NamedTuple):
    language: str
    body: str
    line: int
    marked: bool


def blocks(text: str) -> list[Block]:
    return [
        Block(found["language"], found["body"], text.count("\n", 0, found.start("body")), bool(found["mark"]))
        for found in BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """The ``$ ellp`` lines of a block, with lines ending in a backslash joined."""
    lines = block.body.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ellp ")]


def shown(block: Block) -> list[str]:
    """What a block says its command prints; empty if it does not say."""
    lines = block.body.replace("\\\n", " ").splitlines()
    return [line.rstrip() for line in lines if line.strip() and not line.startswith(("$", "..."))]


def shape(line: str) -> str:
    """A printed line with its numbers left open: they depend on the machine."""
    return re.sub(r"\d[\d,.]*", "0", " ".join(line.split()))


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    padded = "\n" * block.line + block.body  # a traceback then shows the line of the page
    exec(compile(padded, str(page), "exec"), namespace)


def run_command(command: str, folder: Path) -> str:
    words = [*ELLP, *shlex.split(command, comments=True)[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language in {"console", "bash"} and block.marked:
            assert commands(block), f"{page.name}:{block.line}: marked as runnable, but has no '$ ellp' line"
            printed = "".join(run_command(command, tmp_path) for command in commands(block))
            if shown(block):
                assert [shape(line) for line in shown(block)] == [shape(line) for line in printed.splitlines()]


def test_blocks_are_found() -> None:
    text = "a\n\n```python\nx = 1\n```\n\n<!-- run -->\n```console\n$ ellp factor a \\\n  --rank 2\nok\n```\n"
    python, console = blocks(text)
    assert (python.body, python.line, python.marked) == ("x = 1\n", 3, False)
    assert console.marked
    assert commands(console) == ["ellp factor a    --rank 2"]
    assert shown(console) == ["ok"]
    assert shape("rank 94   24.8%  of 1,000") == shape("rank 7 2.25% of 900") != shape("rank 94 25% of all")
