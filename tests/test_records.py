"""The tables of the documentation are those of the committed records."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'ellp[hf]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'ellp[finetune]'")

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "evaluate.json"


def test_the_tables_of_evaluation_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("evaluate", "core", "models", "sweeps", "tables"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import evaluate

    record = json.loads(RECORD.read_text())
    assert set(record) == {"pipeline", "resamples", "finetune", "sweep"}
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for table in evaluate.markdown(record).split("\n\n"):
        assert table in page, f"not in docs/benchmarks.md:\n{table}"


def test_the_papers_table_in_the_documentation_is_that_of_the_record() -> None:
    table = (ROOT / "benchmarks" / "records" / "minilm-sweep" / "table1.md").read_text().split("\n\n")[0]
    assert table in (ROOT / "docs" / "sweep.md").read_text()


def test_the_table_of_formats_is_that_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h5py", reason="needs h5py: pip install 'ellp[scale]'")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("formats", "models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import formats

    record = json.loads((ROOT / "benchmarks" / "formats.json").read_text())
    assert formats.show(record["results"]) in (ROOT / "docs" / "formats.md").read_text()
