"""Debian's Chromium as people and machines use it: opened pages, their errors, requests, keys and colours."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

_PROGRAMS = ("chromium", "chromedriver")

# Text whose colour is too close to what is behind it: WCAG's ratio below 4.5, or 3 where letters are large.
_PALE = """
const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const found = new Set();
for (const node of document.body.querySelectorAll('*')) {
  if (node.closest('svg') || !node.getClientRects().length) continue;
  if (![...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(parse(style.color)), light(behind(node))].sort((x, y) => y - x);
  const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < least) found.add(`${node.tagName}.${node.className} ${ratio.toFixed(1)}`);
}
return [...found];
"""

_CONTROLS = """
return [...document.querySelectorAll('a[href], summary, button, input, select, [tabindex="0"]')]
  .filter(node => node.getClientRects().length && node.checkVisibility())
  .map((node, number) => { node.dataset.place = number; return number; });
"""


def chromium(profile: Path) -> webdriver.Chrome:
    """Start the browser; where there is none, fail in CI and skip elsewhere."""
    paths = [shutil.which(program) for program in _PROGRAMS]
    if not all(paths):
        told = "pages are looked at with Chromium: apt-get install chromium chromium-driver"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for argument in (
        "--headless=new",
        "--no-sandbox",  # CI's user is root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(paths[1]))


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, place: Path | str, width: int = 1280) -> None:
        """Open a file or an address at a width in CSS pixels; what earlier pages said is forgotten."""
        self.width(width)
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(place.as_uri() if isinstance(place, Path) else place)

    def errors(self) -> list[str]:
        """Return what stands in the console since the page was opened: errors and warnings."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened, its own among them."""
        events = (json.loads(each["message"])["message"] for each in self.driver.get_log("performance"))
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def run(self, script: str, *args: object) -> Any:
        return self.driver.execute_script(script, *args)

    def width(self, pixels: int) -> None:
        """Make the page so wide; windows cannot be narrower than 500."""
        metrics = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def overhang(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")

    @contextmanager
    def seen(self, *, scheme: str = "light", medium: str = "screen") -> Iterator[None]:
        """Show pages as on a dark or light screen, or on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})
        yield
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})

    def pale(self) -> list[str]:
        """Return elements whose text cannot be read well, with their contrast."""
        return self.run(_PALE)

    def wait(self, until: Callable[[], bool], what: str = "") -> None:
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: until(), what)

    def press(self, key: str) -> None:
        ActionChains(self.driver, 0).send_keys(key).perform()

    def walk(self) -> tuple[list[int], list[int]]:
        """Return the places of all visible controls, and those that Tab comes to and shows, in its order."""
        controls = self.run(_CONTROLS)
        visited = []
        for _ in controls:
            self.press(Keys.TAB)
            visited.append(
                self.run(
                    "const node = document.activeElement, style = getComputedStyle(node);"
                    "const box = node.getBoundingClientRect();"
                    "return style.outlineStyle !== 'none' && box.bottom > 0 && box.top < innerHeight"
                    " ? Number(node.dataset.place) : -1"
                )
            )
        return controls, visited
