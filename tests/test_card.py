"""A model card says what the record says, and survives odd names."""

import re
from typing import Any

import pytest

from ellp.card import model_card
from ellp.errors import InputError
from ellp.markdown import cell, code, fenced, text, yaml_text

yaml = pytest.importorskip("yaml")

ODD = [
    "plain",
    "a|b",
    'say "hi"',
    "it's",
    "two\nlines",
    "back\\slash",
    "tick`s``",
    "`",
    " ",
    "<b>*x*_y_[z](w)",
    "# - key: value",
    "null",
    "ünïcode 😀",
    "\x00\x85\u2028",
    "\ud800",
    "---",
    "\\|",
    "a@b https://x.example",
]


def layer(**changes: Any) -> dict[str, Any]:
    return {
        "name": "embeddings.word_embeddings",
        "kind": "Embedding",
        "rows": 30522,
        "columns": 384,
        "rank": 94,
        "tied": [],
        "parameters_before": 11720448,
        "parameters_after": 2905164,
        "distortion": 19.7577,
        "error": 123456.7,
        "skipped": None,
        **changes,
    }


def record(**changes: Any) -> dict[str, Any]:
    return {
        "source": "sentence-transformers/all-MiniLM-L6-v2",
        "name": "someone/small-minilm",
        "base_model": "sentence-transformers/all-MiniLM-L6-v2",
        "architecture": "BertModel",
        "auto_class": "AutoModel",
        "sentence_transformers": False,
        "keep": 0.25,
        "preset": None,
        "p": 1.0,
        "method": "lewis",
        "layers": [
            layer(),
            layer(
                name="pooler.dense",
                kind="Linear",
                rows=384,
                columns=384,
                rank=None,
                parameters_before=147456,
                parameters_after=147456,
                distortion=None,
                error=None,
                skipped="excluded by the user",
            ),
        ],
        "parameters_before": 22713216,
        "parameters_after": 13897932,
        "bytes_before": 90868376,
        "bytes_after": 55600000,
        "dtype": "float32",
        "calibrated": None,
        "command": "ellp compress sentence-transformers/all-MiniLM-L6-v2 -o small-minilm --keep 0.25",
        "versions": {"ellp": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
        **changes,
    }


def front_matter(card: str) -> dict[str, Any]:
    opening, matter, _ = card.split("---\n", 2)
    assert opening == ""
    loaded: dict[str, Any] = yaml.safe_load(matter)
    return loaded


def prose(card: str) -> str:
    """A card without its blocks of code."""
    return re.sub(r"^(`{3,}).*?^\1$", "", card, flags=re.MULTILINE | re.DOTALL)


def headings(card: str) -> list[str]:
    return [line for line in prose(card).splitlines() if line.startswith("#")]


def tables(card: str) -> list[list[list[str]]]:
    """All tables as lists of rows of cells, split where GitHub's Markdown splits them."""
    found = re.findall(r"(?:^\|.*\|$\n?)+", prose(card), flags=re.MULTILINE)
    return [[line.strip("|").split("|") for line in block.splitlines()] for block in found]


def check_tables(card: str, count: int) -> None:
    found = tables(card)
    assert len(found) == count
    for rows in found:
        assert len({len(row) for row in rows}) == 1 and len(rows) > 2
        assert all(re.fullmatch(r" -{3,}:? ", mark) for mark in rows[1])


# What it says ---------------------------------------------------------------------------------------------------------


def test_front_matter_is_the_hubs() -> None:
    assert front_matter(model_card(record())) == {
        "library_name": "transformers",
        "tags": ["ellp", "low-rank"],
        "base_model": "sentence-transformers/all-MiniLM-L6-v2",
    }
    assert front_matter(model_card(record(license="apache-2.0")))["license"] == "apache-2.0"
    with pytest.raises(InputError, match="identifier"):
        model_card(record(license="Apache License\n2"))
    carried = {"license": "other", "license_name": "own: 'x'", "language": ["en", "no"], "pipeline_tag": "fill-mask"}
    found = front_matter(model_card(record(**carried)))
    assert {key: found[key] for key in carried} == carried


@pytest.mark.parametrize("base", [None, "/data/my models/bert", "./bert", "a/b/c", "two\nlines"])
def test_a_base_model_that_is_not_on_the_hub_stays_out_of_it(base: str | None) -> None:
    assert "base_model" not in front_matter(model_card(record(base_model=base)))


def test_numbers_are_there() -> None:
    card = model_card(record(layers=[layer(svd_error=130000.0, tied=["lm_head"])]))
    for number in ("22,713,216", "13,897,932", "61.2%", "90.87 MB", "55.60 MB", "30522 x 384", "94", "19.76"):
        assert number in card
    for words in ("11,720,448 → 2,905,164", "-5.03%", "shared with `lm_head`", "1.235e+05", "0.25", "p = 1;"):
        assert words in card
    check_tables(card, 2)


def test_what_was_kept_dense_says_why() -> None:
    card = model_card(record())
    assert "- `pooler.dense`: excluded by the user" in card and "| dense |" in card
    assert "against the SVD" not in card and "1 weight matrix of 2 considered was replaced" in card
    check_tables(card, 2)


def test_the_code_loads_with_the_right_class_and_compiles() -> None:
    card = model_card(record(auto_class="AutoModelForCausalLM", sentence_transformers=True))
    blocks = re.findall(r"^```python\n(.*?)^```$", card, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "card", "exec")
        assert block.startswith("import ellp")
    assert "AutoModelForCausalLM.from_pretrained(name)" in blocks[0] and '"someone/small-minilm"' in blocks[0]
    assert "SentenceTransformer(" in blocks[1] and "sentence-transformers" in front_matter(card)["tags"]
    assert "SentenceTransformer(" not in model_card(record())
    with pytest.raises(InputError, match="auto class"):
        model_card(record(auto_class="AutoModel; evil"))


def test_dangers_limits_recipe_and_citation_are_named() -> None:
    card = model_card(record())
    for words in (
        "ignore_mismatched_sizes=True",
        "merge_and_unload()",
        "2009.05647",
        "pip install ellp",
        "`torch` 2.13.0",
    ):
        assert words in card
    assert record()["command"] in card


def test_accuracy_is_claimed_only_where_measured() -> None:
    assert "No task accuracy was measured" in model_card(record())
    assert "No task accuracy was measured" in model_card(record(measurements=[]))
    lines = [{"task": "STS-B|dev", "before": 84.51, "after": 84.24}, {"task": "CoLA", "after": 50.0, "n": 1043}]
    card = model_card(record(measurements=lines))
    assert "No task accuracy was measured" not in card
    check_tables(card, 3)
    assert tables(card)[2][2] == [" STS-B&#124;dev ", " 84.51 ", " 84.24 ", " - "]


@pytest.mark.parametrize("p", [0.0, 2.0, "inf"])
def test_every_norm_is_described(p: float | str) -> None:
    assert f"p = {float(p):g}" in model_card(
        record(p=p, method="svd", calibrated="1,000 lines of text", preset="small")
    )


def test_a_record_must_be_whole() -> None:
    with pytest.raises(InputError, match="without command, versions"):
        model_card({key: value for key, value in record().items() if key not in {"command", "versions"}})


# Odd names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_break_nothing(odd: str) -> None:
    plain = model_card(record(calibrated="text", preset="small", base_model="x"))
    card = model_card(
        record(
            source=odd, name=odd, base_model=odd, preset=odd, calibrated=odd, architecture=odd, dtype=odd, command=odd,
            versions={odd: odd}, method=odd, layers=[layer(name=odd, kind=odd, tied=[odd, odd], skipped=odd), layer()],
            measurements=[{odd: odd, "task": odd}],
        )
    )  # fmt: skip
    card.encode("utf-8")
    assert front_matter(card)["tags"] == ["ellp", "low-rank"]
    check_tables(card, 3)
    assert headings(card)[1:] == headings(plain)[1:]
    (python,) = re.findall(r"^```python\n(.*?)^```$", card, flags=re.MULTILINE | re.DOTALL)
    compile(python, "card", "exec")


@pytest.mark.parametrize("odd", ODD)
def test_yaml_reads_back_what_was_written(odd: str) -> None:
    assert yaml.safe_load(f"key: {yaml_text(odd)}") == {"key": odd.replace("\ud800", "\ufffd")}


@pytest.mark.parametrize("odd", ODD)
def test_escapes_are_single_lines(odd: str) -> None:
    for shown in (text(odd), code(odd), cell(odd)):
        assert len(shown.splitlines()) == 1 and shown.isprintable()
    assert not re.search(r"[|<*_`\\]", text(odd)) and "|" not in cell(odd)


def test_a_fence_is_longer_than_its_content() -> None:
    assert fenced("a\n````\nb", "console") == "`````console\na\n````\nb\n`````"
