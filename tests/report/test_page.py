"""The page as text: self-contained, escaped, honest about gaps, and put together so that everyone can read it."""

import base64
import hashlib
import itertools
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import made_sweeps as made
import pytest

pytest.importorskip("jinja2")

from ellp.errors import InputError
from ellp.report.curves import panels
from ellp.report.figures import draw, rendered
from ellp.report.page import page
from ellp.report.read import read_run, typed
from ellp.report.write import write_report

VOID = {"meta", "link", "input", "br", "path", "line"}


class Page(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles; complains about unclosed elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        (self.raw[self.open[-1]] if self.open and self.open[-1] in self.raw else self.words).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def made_page(lines: list[dict[str, Any]] | None = None, **facts: Any) -> str:
    return page(typed(made.facts(**facts), made.cells() if lines is None else lines))


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = made_page()
    found = Page(text)
    loaded = [
        value for _, attributes in found.elements for name, value in attributes.items() if name in {"src", "href"}
    ]
    assert all(value is not None and value.startswith(("#", "data:")) for value in loaded)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert "@import" not in text and "url(" not in text


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    found = Page(made_page())
    (policy,) = [tag["content"] for tag in found.all("meta") if tag.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'") and "unsafe" not in policy
    for part in (found.raw["style"][0], found.raw["script"][-1]):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [attributes for _, attributes in found.elements if "style" in attributes or "onclick" in attributes]


def test_nothing_in_a_record_becomes_markup() -> None:
    nasty = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u2028"
    models = [made.model(task, score) | {"name": nasty, "source": nasty} for task, score in made.TASKS.items()]
    facts = {"models": models, "command": nasty, "versions": {nasty: nasty}, "machine": {nasty: nasty}}
    lines = [*made.cells(), made.failure("cola", error=nasty), made.cell("cola", "lp", 1.0, nasty, 0.5)]
    found = Page(made_page(lines, verdict={"text": nasty}, **facts))
    assert len(found.all("script")) == 2 and not found.all("img")
    assert not [attributes for _, attributes in found.elements if "onerror" in attributes]
    data = json.loads(found.raw["script"][0])
    assert any(nasty in series["label"] for panel in data["panels"] for series in panel["series"])


def test_tokens_are_named_in_the_open() -> None:
    found = Page(made_page())
    assert made.NASTY in found.text  # as text: the parser has unescaped it
    assert "\\u202eevil" in found.text  # what would turn the line around is written out


def test_an_empty_record_makes_an_honest_page() -> None:
    found = Page(made_page([]))
    assert "Nothing was measured yet" in found.text
    assert "Nothing was measured yet" in Page(made_page([], models=[], tasks=[])).text


def test_only_failures_are_all_shown() -> None:
    lines = [made.failure(task, error=f"broken in {task}") for task in made.TASKS]
    found = Page(made_page(lines))
    assert "4 cells failed" in found.text and all(f"broken in {task}" in found.text for task in made.TASKS)


def test_a_single_method_and_task_need_no_average() -> None:
    lines = [made.cell("cola", "svd", 2.0, "uniform", 0.5)]
    text = made_page(lines, models=[made.model("cola", 31.5)], tasks=["cola"])
    (panel,) = json.loads(Page(text).raw["script"][0])["panels"]
    assert len(panel["tasks"]) == 1 and len(panel["series"]) == 1
    assert "average" not in [word for word in Page(text).words if word.strip() == "average"][1:]


def test_infinite_numbers_are_told_not_drawn() -> None:
    lines = [*made.cells(), made.cell("cola", "lp", 1.0, "endless", 0.5, drop="inf", drop_low="inf", drop_high="inf")]
    found = Page(made_page(lines))
    assert "1 drop not finite" in found.text and "∞" in found.text
    assert "Infinity" not in found.raw["script"][0]


def test_a_trial_is_called_one() -> None:
    assert "Only the first 40 examples" in Page(made_page(limit=40)).text
    assert "Only the first" not in Page(made_page()).text


def test_every_command_is_told_once() -> None:
    first = made.facts()["command"]
    sessions = [{"command": first, "seconds": 1.0}, {"command": "ellp sweep later", "seconds": 2.0}, {"seconds": 3.0}]
    text = Page(made_page(sessions=sessions)).text
    assert text.count(first) == 1 and text.count("ellp sweep later") == 1


def test_everyone_can_read_it() -> None:
    found = Page(made_page())
    assert found.all("html")[0]["lang"] == "en" and found.all("meta") and len(found.all("h1")) == 1
    assert all("scope" in head for head in found.all("th"))
    scrolled = [tag for _, tag in found.elements if "scroll" in (tag.get("class") or "").split()]
    assert scrolled and all(
        tag["tabindex"] == "0" and tag["aria-label"] and tag["role"] == "region" for tag in scrolled
    )
    names = [tag["id"] for _, tag in found.elements if "id" in tag]
    assert len(names) == len(set(names))
    targets = [(tag["href"] or "#")[1:] for tag in found.all("a") if (tag["href"] or "").startswith("#")]
    assert set(targets) <= set(names)
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def contrast(one: str, other: str) -> float:
    def light(color: str) -> float:
        parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_paper() -> None:
    """WCAG AA for text, of every colour that text is set in, on the page and on its cards, light and dark."""
    style = Page(made_page()).raw["style"][0]
    pairs = dict(re.findall(r"--(\w+): ?light-dark\((#\w{6}, ?#\w{6})\)", style))
    colors = {name: [part.strip() for part in pair.split(",")] for name, pair in pairs.items()}
    text = [name for name in colors if re.fullmatch(r"c\d|ink|quiet|accent|good|bad", name)]
    assert len(text) == 13
    for name in text:
        for ground in ("paper", "card"):
            for side in (0, 1):
                assert contrast(colors[name][side], colors[ground][side]) >= 4.5, (name, ground, side)


def test_several_thousand_cells_are_no_burden() -> None:
    run = typed(made.facts(), made.many(6000))
    start = time.perf_counter()
    text = page(run)
    assert len(run.cells) >= 6000 and time.perf_counter() - start < 20 and len(text) < 4e6


# Files ----------------------------------------------------------------------------------------------------------------


def test_everything_asked_for_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = made.write(tmp_path / "run")
    record = write_report(run, tmp_path / "report.html", tmp_path / "table.md", tmp_path / "figures")
    names = {Path(path).name for path in record["written"]}
    figures = {f"drop-vs-{axis}.{kind}" for axis in ("bytes", "rate") for kind in ("png", "svg")}
    assert names == {"report.html", "table.md"} | figures
    assert all(Path(path).stat().st_size > 500 for path in record["written"])
    svg = (tmp_path / "figures" / "drop-vs-rate.svg").read_bytes()
    assert b"<dc:date>" not in svg
    again = rendered(draw(panels(read_run(run))[0], "rate"), "svg")  # type: ignore[arg-type]
    assert again == svg
    write_report(run, tmp_path / "report.html", tmp_path / "table.md")  # an earlier report yields


def test_a_stranger_is_not_overwritten(tmp_path: Path) -> None:
    run = made.write(tmp_path / "run", lines=[])
    with pytest.raises(InputError, match="--force"):
        write_report(run, run / "run.json")
    (tmp_path / "mine.html").write_text("mine")
    write_report(run, tmp_path / "mine.html", force=True)
    assert "ellp report" in (tmp_path / "mine.html").read_text()


@pytest.mark.parametrize("goal", [0.0, 1.0, float("nan")])
def test_a_goal_is_a_share(tmp_path: Path, goal: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        write_report(tmp_path, tmp_path / "report.html", goal=goal)
