"""The documentation's page of the measured sweep says what the committed record says."""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "records" / "minilm-sweep"
PAGE = ROOT / "docs" / "reports" / "minilm.html"
pytestmark = pytest.mark.skipif(not (RECORD / "run.json").is_file(), reason=f"needs the record of a sweep in {RECORD}")


def test_the_committed_page_is_of_the_committed_record() -> None:
    from ellp.report.curves import panels
    from ellp.report.read import read_run
    from ellp.report.summary import summarize

    run = read_run(RECORD)
    assert PAGE.is_file(), "run make figures"
    page = PAGE.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    for panel in panels(run):
        summary = summarize(panel, comparisons=run.comparisons)
        for sentence in (summary.headline, *summary.sentences):
            assert sentence.replace("'", "&#39;") in page, "run make figures"


def test_the_example_makes_the_page_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "report", raising=False)
    import report

    shutil.copytree(RECORD, tmp_path / "record", ignore=shutil.ignore_patterns("table1.*", "figure1.*"))
    monkeypatch.setattr(report, "RECORD", tmp_path / "record")
    monkeypatch.setattr(report, "IMAGES", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.html")
    monkeypatch.setattr(report, "TABLE", tmp_path / "table.md")
    assert "cells measured" in report.make()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("record", "page.html", "table.md", "minilm-drop-vs-bytes.svg", "minilm-drop-vs-rate.svg"),
    }
    made = {path.name for path in (tmp_path / "record").iterdir()}
    assert made == {"run.json", "cells.jsonl", "table1.md", "table1.json", "figure1.png", "figure1.svg"}
    assert (tmp_path / "record" / "table1.md").read_text() == (RECORD / "table1.md").read_text(), "run make figures"
