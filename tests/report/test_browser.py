"""The page as a person uses it, in a real Chromium: hovered, toggled, walked with the keyboard, on a phone."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_sweeps as made
import pytest

pytest.importorskip("jinja2")
pytest.importorskip("selenium", reason="needs selenium to drive a browser")

from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from ellp.report.page import page
from ellp.report.read import typed

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Chromium and chromedriver (Debian: chromium, chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    lines = [*made.cells(), made.failure("cola")]
    path.write_text(page(typed(made.facts(comparisons=made.comparisons()), lines)), encoding="utf-8")
    return path


@pytest.fixture
def shown(browser: Any, sweep: Path) -> Iterator[Any]:
    """The page, freshly loaded at desktop size; afterwards nothing was complained about or asked of a network."""
    yield show(browser, sweep)
    assert browser.get_log("browser") == []
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"] for event in asked if event["method"] == "Network.requestWillBeSent"]
    urls = [request["request"]["url"] for request in sent if request["documentURL"].startswith("file://")]
    assert urls and [url for url in urls if not url.startswith(("file://", "data:"))] == []


def test_the_policy_stops_a_request(browser: Any, sweep: Path) -> None:
    """What the page promises: even a script on it could not reach a network."""
    show(browser, sweep)
    told = browser.execute_async_script(
        "const done = arguments[0]; document.addEventListener('securitypolicyviolation', (event) =>"
        "done(event.violatedDirective)); fetch('http://127.0.0.1:9/').catch(() => null)"
    )
    assert told == "connect-src"
    browser.get_log("browser")


def show(browser: Any, path: Path, width: int = 1280, height: int = 900, **media: str) -> Any:
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    return browser


def one(driver: Any, selector: str) -> Any:
    return driver.find_element(By.CSS_SELECTOR, selector)


def count(driver: Any, selector: str) -> int:
    return len(driver.find_elements(By.CSS_SELECTOR, selector))


def press(driver: Any, selector: str) -> None:
    """Click where a person would: on the visible part of a control, in view."""
    found = one(driver, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
    ActionChains(driver).move_to_element(found).click().perform()


def hover(driver: Any, selector: str) -> Any:
    found = one(driver, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
    ActionChains(driver).move_to_element(found).perform()
    return one(driver, ".plot .tip")


def curves(driver: Any) -> list[str]:
    return driver.execute_script("return [...document.querySelectorAll('.plot .curve')].map(one => one.dataset.series)")


def average(method: str, p: float, importance: str, keep: float) -> float:
    lines = [
        cell
        for cell in made.cells()
        if (cell["method"], cell["importance"], cell["keep"]) == (method, importance, keep)
    ]
    return sum(cell["drop"] for cell in lines if cell["p"] != 2 or method == "svd") / len(made.TASKS)


def test_it_renders(shown: Any) -> None:
    assert curves(shown) == ["SVD", "FWSVD", "p = 1", "p = 1 with counts", "p = 2 with counts", "rounding"]
    assert count(shown, ".plot .point") == 5 * len(made.KEEPS) + len(made.BITS)
    assert count(shown, ".minis svg") == 4 and count(shown, ".spectrum .line") == 2
    assert "1 cell failed" in one(shown, ".warning").text
    assert one(shown, ".plot .best").is_displayed()


def test_nothing_in_the_record_runs(shown: Any) -> None:
    assert made.NASTY in one(shown, "#layers").text
    assert shown.execute_script("return document.scripts.length") == 2


def test_hovering_tells_the_value_with_its_interval(shown: Any) -> None:
    tip = hover(shown, '[data-series="p = 1 with counts"] .point[aria-label*="keep 0.85"]').text
    drop = average("lp", 1.0, "counts", 0.85)
    assert "p = 1 with counts" in tip and "keep 0.85 · rank 322" in tip
    assert f"{drop:.2f} points lost".replace("-", "\u2212") in tip and "95 % interval" in tip and "84.9 %" in tip
    ActionChains(shown).move_to_element(one(shown, "#curves h2")).perform()
    assert count(shown, ".plot .tip") == 0


def test_methods_tasks_axes_and_intervals_toggle(shown: Any) -> None:
    press(shown, "#methods label:nth-of-type(1) span")
    assert "SVD" not in curves(shown)
    press(shown, "#methods button:last-of-type")
    assert curves(shown) == [] and "Nothing to draw" in one(shown, "#plot-note").text
    press(shown, "#methods button:first-of-type")
    assert len(curves(shown)) == 6
    press(shown, '#axis input[value="rate"] + span')
    assert "rounding" not in curves(shown) and "rounding" in one(shown, "#plot-note").text
    bands = count(shown, ".plot .band")
    press(shown, "#bands")
    assert bands == 5 and count(shown, ".plot .band") == 0


def test_a_tasks_own_values_are_shown(shown: Any) -> None:
    press(shown, "#task label:nth-of-type(2) span")
    (line,) = [cell for cell in made.cells() if (cell["task"], cell["method"], cell["keep"]) == ("cola", "svd", 0.25)]
    tip = hover(shown, '[data-series="SVD"] .point[aria-label*="keep 0.25"]').text
    assert f"{line['drop']:.2f} points lost" in tip and f"score {line['score']:.2f} of 31.50 dense" in tip
    assert f"{line['drop_low']:.2f} to {line['drop_high']:.2f}" in tip and f"{line['changed']} answers changed" in tip
    assert one(shown, ".minis button:nth-of-type(1)").get_attribute("aria-pressed") == "true"
    press(shown, ".minis button:nth-of-type(3)")
    assert one(shown, "#task input:checked + span").text == "STS-B"


def test_small_drops_can_be_magnified(shown: Any) -> None:
    def place() -> float:
        selector = '[data-series="p = 1 with counts"] .point[aria-label*="keep 0.25"]'
        return float(one(shown, selector).get_attribute("transform").split()[1].rstrip(")"))

    before = place()
    press(shown, '#scale input[value="small"] + span')
    assert place() < before - 40


def focused(driver: Any, script: str) -> Any:
    return driver.execute_script(f"const it = document.activeElement; return {script}")


def test_the_keyboard_reaches_everything(shown: Any) -> None:
    shown.execute_script("document.querySelector('#methods button:last-of-type').focus()")
    ActionChains(shown).send_keys(Keys.TAB).perform()
    label = "it.getAttribute('aria-label')"
    assert focused(shown, label).startswith("SVD, keep 0.85")
    assert "SVD" in one(shown, ".plot .tip").text and one(shown, ".plot .ring").is_displayed()
    ActionChains(shown).send_keys(Keys.ARROW_RIGHT).perform()
    assert focused(shown, label).startswith("SVD, keep 0.72")
    ActionChains(shown).send_keys(Keys.ARROW_DOWN).perform()
    assert focused(shown, label).startswith("FWSVD, keep 0.72")
    ActionChains(shown).send_keys(Keys.ESCAPE).perform()
    assert count(shown, ".plot .tip") == 0
    ActionChains(shown).send_keys(Keys.TAB).perform()
    assert focused(shown, "it.textContent").startswith("CoLA")


def test_toggles_work_by_keyboard_and_show_where_they_are(shown: Any) -> None:
    shown.execute_script("document.querySelector('#methods input').focus()")
    ActionChains(shown).send_keys(Keys.SPACE).perform()
    assert "SVD" not in curves(shown)
    outline = shown.execute_script(
        "return getComputedStyle(document.querySelector('#methods input:focus-visible + span')).outlineStyle"
    )
    assert outline == "solid"
    shown.execute_script("document.querySelector('#task input:checked').focus()")
    ActionChains(shown).send_keys(Keys.ARROW_RIGHT).perform()
    assert one(shown, "#task input:checked + span").text == "CoLA"


def lightness(driver: Any) -> int:
    colors = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colors.strip("rgba()").split(",")[:3])


def test_dark_follows_the_system_and_the_switch(browser: Any, sweep: Path) -> None:
    show(browser, sweep, prefers_color_scheme="dark")
    assert lightness(browser) < 150
    press(browser, '#theme input[value="light"] + span')
    assert lightness(browser) > 600
    show(browser, sweep, prefers_color_scheme="light")
    press(browser, '#theme input[value="dark"] + span')
    assert lightness(browser) < 150
    press(browser, '#theme input[value="auto"] + span')
    assert lightness(browser) > 600


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_shows_it_without_sideways_scrolling(browser: Any, sweep: Path, width: int) -> None:
    show(browser, sweep, width=width, height=844)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    tip = hover(browser, '[data-series="rounding"] .point:last-of-type')
    assert tip.rect["x"] >= 0 and tip.rect["x"] + tip.rect["width"] <= width


def test_motion_is_reduced_on_request(browser: Any, sweep: Path) -> None:
    show(browser, sweep, prefers_reduced_motion="reduce")
    style = "getComputedStyle(document.querySelector('.curve'))"
    assert float(browser.execute_script(f"return {style}.transitionDuration").rstrip("s")) == 0


def test_printing_shows_everything_and_no_controls(browser: Any, sweep: Path) -> None:
    show(browser, sweep, prefers_color_scheme="dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not one(browser, ".controls").is_displayed() and one(browser, ".plot svg").is_displayed()
    assert browser.execute_script("return getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"]


def test_several_thousand_cells_stay_quick(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(page(typed(made.facts(), made.many(6000))), encoding="utf-8")
    show(browser, path)
    assert count(browser, ".plot .point") > 1200
    spent = browser.execute_script(
        "const start = performance.now(); document.querySelector('#task input[value=\"1\"]').click();"
        "return performance.now() - start"
    )
    assert spent < 3000


@pytest.mark.parametrize("lines", [[], [made.failure("cola")]], ids=["empty", "only failures"])
def test_a_page_without_curves_has_no_errors(browser: Any, tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    path = tmp_path / "empty.html"
    path.write_text(page(typed(made.facts(), lines)), encoding="utf-8")
    browser.get_log("browser")
    show(browser, path)
    assert browser.get_log("browser") == [] and count(browser, ".plot .curve") == 0
