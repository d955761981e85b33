"""A real browser: headless Chromium with its own driver. Where there is none, its tests are skipped, but not in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.page import BrowserPage, start_chromium

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserPage]:
    binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        reason = "no Chromium with chromedriver: sh scripts/bootstrap.sh chromium, as root on Debian"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason)
        pytest.skip(reason)
    page = start_chromium(binary, driver, tmp_path_factory.mktemp("chromium"))
    yield page
    page.driver.quit()


@pytest.fixture
def show(browser: BrowserPage, tmp_path: Path) -> Callable[[str], BrowserPage]:
    """Opens an HTML text in the browser, light and wide, with what came before forgotten."""

    def open_page(html: str) -> BrowserPage:
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        browser.set_up(dark=False, width=1280)
        browser.open(path)
        return browser

    return open_page
