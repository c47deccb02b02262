"""What is shown of the measured sweep, from its committed record: ``python examples/report.py [--screenshot]``.

The page with its figures and table, and the paper's table and figure beside the record. Nothing is measured here.
``--screenshot`` also photographs the page for the documentation, which needs Chromium.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from pathlib import Path

from ellp.report.write import report_summary, write_report
from ellp.reproduce import write_figure1, write_table1

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "records" / "minilm-sweep"
PAGE = ROOT / "docs" / "reports" / "minilm.html"
TABLE = ROOT / "benchmarks" / "records" / "minilm-sweep.md"
IMAGES = ROOT / "docs" / "img"
SIZE = (1200, 1430)


def make() -> str:
    """Write the page, its table and the figures; what was found."""
    if not (RECORD / "run.json").is_file():
        raise SystemExit(
            f"need the record in {RECORD.relative_to(ROOT)}, got none: run the sweep of docs/report.md first"
        )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record = write_report(RECORD, PAGE, TABLE, Path(folder), force=True)
        for name in ("drop-vs-bytes.svg", "drop-vs-rate.svg"):
            shutil.copy(Path(folder) / name, IMAGES / f"minilm-{name}")
    write_table1(RECORD)
    write_figure1(RECORD)
    return report_summary(record)


def screenshot(page: Path, target: Path) -> None:
    """The top of the page as Chromium draws it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        size = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(page.as_uri())
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        target.write_bytes(base64.b64decode(shot["data"]))
    finally:
        driver.quit()


def main(arguments: list[str]) -> None:
    print(make())
    if "--screenshot" in arguments:
        screenshot(PAGE, IMAGES / "report.png")


if __name__ == "__main__":
    main(sys.argv[1:])
