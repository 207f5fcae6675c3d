"""One headless Chromium for all tests of pages."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """The browser; closed at the end of the run."""
    from tests.reports.pages.browser import Browser, chromium  # needs packages of the nightly run

    driver = chromium(tmp_path_factory.mktemp("chromium"))
    yield Browser(driver)
    driver.quit()
