"""A real browser without network access, and a server for pages."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from tests.annotate.programs import need


@contextmanager
def chromium() -> Iterator[Chrome]:
    """Open a headless browser that can reach this machine and nothing else."""
    options = ChromeOptions()
    options.binary_location = need("chromium", "chromium-browser", "google-chrome")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service(need("chromedriver")))
    try:
        look(driver)
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """The browser as a fixture, for a conftest.py to import."""
    with chromium() as driver:
        yield driver


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, as `python -m http.server` does, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def look(driver: Chrome, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    """Set the size of the viewport, down to that of a phone, and the color scheme."""
    resize(driver, width, height)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


def resize(driver: Chrome, width: int, height: int) -> None:
    """Set the size of the viewport, down to that of a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def visit(driver: Chrome, address: str) -> None:
    """Open a page and wait until its scripts have run: the driver may come back while the page still loads."""
    driver.get(address)
    WebDriverWait(driver, 30).until(lambda _: driver.execute_script("return document.readyState") == "complete")


def complaints(driver: Chrome) -> list[str]:
    """Return the console messages since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]  # type: ignore[no-untyped-call]


def requests(driver: Chrome) -> list[str]:
    """Return the URLs that pages requested since the last call, without data: URLs."""
    log = driver.get_log("performance")  # type: ignore[no-untyped-call]
    messages = [json.loads(entry["message"])["message"] for entry in log]
    addresses = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [address for address in addresses if not address.startswith("data:")]
