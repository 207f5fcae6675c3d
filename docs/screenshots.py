"""Makes the screenshots of these pages, and says how long a large report takes to open.

python docs/screenshots.py    (from the repository's folder, with Chromium and its driver installed)
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # the tests' browser and reports

from millrace.reports.planned import Planned  # noqa: E402
from millrace.reports.run_report import RunReport  # noqa: E402
from tests.reports.pages.browser import Browser, chromium  # noqa: E402
from tests.reports.pages.reports import SHAPE, drifting, large  # noqa: E402

_ROUNDS = 5


def main() -> None:
    """Draw a report of an eddy that changes its mind, in light and dark, and open one of many decisions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        browser = Browser(chromium(folder / "profile"))
        try:
            _shots(browser, folder)
            _opened(browser, folder)
        finally:
            browser.driver.quit()


def _shots(browser: Browser, folder: Path) -> None:
    cells = [drifting(), drifting()]
    page = RunReport({"b0": cells}, Planned({"b0": SHAPE}, (), {"cells": 2})).save(folder / "report.html")
    for scheme, file in (("light", "report.png"), ("dark", "report-dark.png")):
        with browser.seen(scheme=scheme):
            browser.open(page, 1000)
            browser.driver.save_screenshot(str(DOCS / file))


def _opened(browser: Browser, folder: Path) -> None:
    report = large()
    decisions = sum(len(trace.changes) for _, cell in report.cells() for trace in cell.traces)
    began = time.perf_counter()
    page = report.save(folder / "large.html")
    drawn = time.perf_counter() - began
    seconds = []
    for _ in range(_ROUNDS):
        browser.driver.get("about:blank")
        began = time.perf_counter()
        browser.driver.get(page.as_uri())  # which comes back when the page is loaded
        browser.run("return document.body.offsetHeight")  # and laid out
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds)[_ROUNDS // 2]
    size = page.stat().st_size / 1000
    print(f"{decisions:,} decisions, {size:.0f} kB: drawn in {drawn:.2f} s, opened in {median:.2f} s")


if __name__ == "__main__":
    main()
