"""A page in headless Chromium, as the tests look at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1100",
)


class BrowserPage:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def set_up(self, *, dark: bool, width: int) -> None:
        """Which colours the system likes, and how wide the window is."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, path: Path) -> None:
        self.driver.get("about:blank")
        self.console()
        self.requests()
        self.driver.get(path.as_uri())

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """What the first such element reads."""
        return str(self.js("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        return list(
            self.js("return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)", selector)
        )

    def console(self) -> list[str]:
        """What the console was told since it was last asked for."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since they were last asked for."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]


def start_chromium(binary: str, driver: str, profile: Path) -> BrowserPage:
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return BrowserPage(webdriver.Chrome(options, Service(driver)))
