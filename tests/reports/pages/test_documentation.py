"""The site of the documents in a browser: quiet, nothing asked elsewhere, by keys, at every width."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

WIDTHS = (320, 1280, 2560)
TAB = "\ue004"  # as WebDriver names the key
ROOT = Path(__file__).parents[3]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site on this machine, and its pages."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        check=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield (
        f"http://127.0.0.1:{server.server_port}/",
        sorted(str(each.relative_to(folder)) for each in folder.rglob("*.html")),
    )
    server.shutdown()
    server.server_close()


def test_the_site_is_quiet_and_fits(browser, site):
    """Every page: no error, no request but to itself, no picture missing, no source of a drawing as text."""
    address, pages = site
    assert len(pages) > 20
    for name in pages:
        browser.open(address + name)
        for width in WIDTHS:
            browser.width(width)
            # The theme's search box moves for a moment where the width crosses one of its limits.
            browser.wait(lambda: browser.overhang() == 0, f"{name}: {width}")
        missing = "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert browser.run(missing) == [], name
        assert browser.run("return document.querySelectorAll('.language-mermaid, .mermaid').length") == 0
        assert browser.errors() == [], name
        asked = [each for each in browser.requests() if not each.startswith(("about:", "data:", "blob:"))]
        assert asked and all(each.startswith(address) for each in asked), name


def test_keys_reach_every_link_of_the_site(browser, site):
    """In the order of the page, from the one that skips the navigation on."""
    browser.open(site[0] + "guides/reports.html")
    shown = "return [...document.links].filter(each => each.checkVisibility()).map(each => each.href)"
    browser.wait(lambda: len(browser.run(shown)) > 20)
    links, reached = browser.run(shown), []
    for _ in range(len(links) + 9):  # and the theme's own controls
        browser.press(TAB)
        reached.append(browser.run("return document.activeElement.href"))
    assert reached[0].endswith("#reports-and-monitoring")
    assert set(links) <= set(reached)
