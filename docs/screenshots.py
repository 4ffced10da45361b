"""Take the screenshots in docs/assets/screenshots from a built site, with a real browser.

`make docs && python docs/screenshots.py` needs Chromium, its driver and selenium.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the tests' browser is not installed

from tests.annotate.browser import chromium, look, served, visit  # noqa: E402

OUT = Path(__file__).parent / "assets" / "screenshots"
SCROLL = """
const top = document.querySelector(arguments[0]).getBoundingClientRect().top
scrollTo({ top: top - 140, behavior: "instant" })
"""


class Shot(NamedTuple):
    """A screenshot of a page."""

    name: str
    page: str
    width: int = 1280
    height: int = 860
    dark: bool = False
    scroll_to: str | None = None  # a CSS selector


SHOTS = (
    Shot("home", "index.html"),
    Shot("algorithm", "algorithms/mpo.html", scroll_to="#key-equations"),
    Shot(
        "annotated",
        "annotated/source/minerva.objectives.mpo.html",
        scroll_to="[id^='minerva.objectives.mpo.e_step_weights']",
    ),
    Shot(
        "annotated-dark",
        "annotated/source/minerva.objectives.retrace.html",
        dark=True,
        scroll_to="[id^='minerva.objectives.retrace.retrace_target']",
    ),
    Shot("phone", "algorithms/mpo.html", 390, 844, scroll_to="#key-equations"),
)


def take(site: Path, out: Path = OUT) -> None:
    """Take all screenshots."""
    out.mkdir(parents=True, exist_ok=True)
    with served(site) as address, chromium() as driver:
        for shot in SHOTS:
            look(driver, shot.width, shot.height, shot.dark)
            driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            visit(driver, f"{address}/{shot.page}")
            driver.execute_script("localStorage.clear()")  # where Material keeps the scheme of the page before
            driver.refresh()
            driver.execute_async_script("document.fonts.ready.then(arguments[0])")
            if shot.scroll_to is not None:
                driver.execute_script(SCROLL, shot.scroll_to)
            driver.execute_async_script("setTimeout(arguments[0], 600)")  # Material fades things in
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            picture.quantize(200, dither=Image.Dither.NONE).save(out / f"{shot.name}.png", optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site")
