"""Test the single file in a real browser, from disk and without network access."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys

from minerva.annotate import examine, write_single_file
from tests.annotate.browser import complaints, look, requests, visit
from tests.annotate.samples import HOSTILE, HOSTILE_FORMULAS, without_markers

REPOSITORY = Path(__file__).parents[2]
MPO = REPOSITORY / "minerva" / "objectives" / "mpo.py"

# The first block of the visible view, in document order: lines of code and formulas with the positions of their text.
PIECES = """
const place = (node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const { left, top, bottom, width } = range.getBoundingClientRect();
  return [left, top, bottom, width];
};
const block = document.querySelector(".mn-view:not([hidden]) .mn-source code");
return Array.from(block.querySelectorAll(".mn-line, .mn-formula"), (node) => {
  if (node.matches(".mn-line")) return [node.dataset.n, node.textContent, place(node)];
  const box = node.getBoundingClientRect();
  return ["formula", node.querySelector("annotation").textContent,
          [node.querySelector(".katex-html").getBoundingClientRect().left, box.top, box.bottom, box.width]];
});
"""


@pytest.fixture(scope="module")
def mpo(tmp_path_factory: pytest.TempPathFactory) -> str:
    page = tmp_path_factory.mktemp("page") / "mpo.html"
    write_single_file(examine(MPO, REPOSITORY / "tests"), page)
    return page.as_uri()


def open_page(browser: Chrome, address: str, **how: Any) -> None:
    look(browser, **how)
    visit(browser, "about:blank")  # otherwise only the anchor would change
    complaints(browser), requests(browser)
    visit(browser, address)


def test_formulas_are_rendered_between_their_lines(browser: Chrome, mpo: str) -> None:
    open_page(browser, mpo)
    expected = []
    for n, line in enumerate(MPO.read_text().removesuffix("\n").split("\n"), start=1):
        marker = line.strip().startswith("# LaTeX")
        expected.append(
            ("formula", line.partition("]: " if "LaTeX[" in line else ": ")[2]) if marker else (str(n), line)
        )
    pieces = browser.execute_script(PIECES)
    assert [(kind, text) for kind, text, _ in pieces] == expected
    assert sum(kind == "formula" for kind, _ in expected) >= 5
    for (_, _, above), (kind, text, here), (_, below_text, below) in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if kind == "formula":
            assert here[3] > 300 and here[2] - here[1] > 20, text
            assert above[2] <= here[1] + 1 and here[2] <= below[1] + 1, text
            indent = len(below_text) - len(below_text.lstrip())
            column = below[0] + indent * below[3] / len(below_text)
            assert here[0] == pytest.approx(column, abs=3), text


def test_math_is_rendered_and_code_is_highlighted(browser: Chrome, mpo: str) -> None:
    open_page(browser, mpo)
    script = """
    const page = document.querySelector("main").cloneNode(true);
    const count = (what) => page.querySelectorAll(what).length;
    const counts = [count(".mn-math"), count(".mn-math .katex-html"), count(".katex-error")];
    page.querySelectorAll(".katex-mathml").forEach((node) => node.remove());
    page.querySelectorAll("[id^=annotations]").forEach((node) => node.remove());
    const colors = new Set(Array.from(document.querySelectorAll(".mn-line span"), (n) => getComputedStyle(n).color));
    return [counts, page.textContent, colors.size,
            getComputedStyle(document.querySelector(".katex-html .mathnormal")).fontFamily];
    """
    counts, text, colors, font = browser.execute_script(script)
    formulas = MPO.read_text().count("# LaTeX")
    assert counts == [2 * formulas, 2 * formulas, 0]  # two views
    assert "\\frac" not in text and "\\" not in text and "LaTeX" not in text
    assert colors >= 5
    assert font.startswith("KaTeX_Math")
    assert browser.execute_async_script(
        "document.fonts.ready.then(() => arguments[0](document.fonts.check('1em KaTeX_Math')))"
    )
    assert "test_losses_against_the_oracle" in text and "Abdolmaleki2018a, eq. 8" in text


def test_no_requests_and_no_console_messages(browser: Chrome, mpo: str) -> None:
    open_page(browser, mpo)
    browser.execute_async_script("document.fonts.ready.then(arguments[0])")
    assert requests(browser) == [mpo]
    assert complaints(browser) == []


SELECT = """
window.addEventListener("copy", (event) => { window.copied = event.clipboardData.getData("text/plain"); });
getSelection().selectAllChildren(document.querySelector(".mn-view:not([hidden]) .mn-source code"));
return getSelection().toString();
"""


def copied(browser: Chrome) -> Any:
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("c").key_up(Keys.CONTROL).perform()
    return browser.execute_script("return window.copied")


def test_copied_code_includes_its_markers(browser: Chrome, mpo: str) -> None:
    open_page(browser, mpo)
    # The browser includes the line breaks between parts of a box even if the box is not selected.
    selected = [line for line in browser.execute_script(SELECT).split("\n") if line.strip()]
    assert selected == [line for line in without_markers(MPO.read_text()) if line]
    assert copied(browser) == MPO.read_text()


@pytest.mark.parametrize(("width", "too_wide"), [(390, 0), (240, 1)])
def test_a_phone_breaks_formulas_and_scrolls_what_is_still_too_wide_but_not_the_page(
    browser: Chrome, mpo: str, width: int, too_wide: int
) -> None:
    for view in ("source:minerva.objectives.mpo", "annotations:minerva.objectives.mpo", "index"):
        open_page(browser, f"{mpo}#{view}", width=width, height=844)
        page, blocks, formulas, outside, lines = browser.execute_script("""
            const seen = (what) => Array.from(document.querySelectorAll(`.mn-view:not([hidden]) ${what}`));
            const wide = (what) => seen(what).filter((node) => node.scrollWidth > node.clientWidth + 1).length;
            const outside = seen("*").filter((node) => !node.closest(".mn-source pre, .mn-math, .mn-table"));
            const tops = (node) => new Set(Array.from(node.querySelectorAll(".katex-html > *"),
                                                      (part) => Math.round(part.getBoundingClientRect().bottom)));
            return [document.documentElement.scrollWidth, wide(".mn-source"), wide(".mn-math"),
                    Math.max(...outside.map((node) => node.getBoundingClientRect().right)),
                    Math.max(0, ...seen(".mn-math").map((node) => tops(node).size))];
        """)
        assert page <= width and outside <= width, view
        if view != "index":
            assert blocks >= 1 and lines > 1
            assert formulas >= too_wide


def test_views_and_permalinks(browser: Chrome, mpo: str) -> None:
    def shown() -> list[str]:
        ids: list[str] = browser.execute_script(
            "return Array.from(document.querySelectorAll('.mn-view:not([hidden])'), (view) => view.id)"
        )
        return ids

    open_page(browser, mpo)
    assert shown() == ["source:minerva.objectives.mpo"]
    browser.execute_script("document.querySelectorAll('.mn-link')[3].click()")
    address = browser.current_url
    assert "#minerva.objectives.mpo.out_of_bounds_cost-" in address
    for end, view in (("", "source"), ("-excerpt", "annotations")):
        open_page(browser, address + end)
        assert shown() == [f"{view}:minerva.objectives.mpo"]
        top = browser.execute_script("return document.querySelector(':target').getBoundingClientRect().top")
        assert 0 <= top < 900
    for end in ("#%zz", "#nowhere"):
        open_page(browser, mpo + end)
        assert shown() == ["source:minerva.objectives.mpo"] and complaints(browser) == []
    browser.execute_script("document.querySelector('.mn-header a').click()")
    open_page(browser, browser.current_url)
    assert shown() == ["index"]


def test_dark_mode(browser: Chrome, mpo: str) -> None:
    brightness = """
    const parts = getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/\\d+/g).slice(0, 3);
    return parts.reduce((sum, part) => sum + Number(part), 0) / 765;
    """
    for dark in (False, True):
        open_page(browser, mpo, dark=dark)
        for background, text in (("body", "h1"), (".mn-source", ".mn-line"), (".mn-formula", ".katex-html")):
            behind = browser.execute_script(brightness, background, "backgroundColor")
            before = browser.execute_script(brightness, text, "color")
            assert (behind < 0.25 and before > 0.7) if dark else (behind > 0.9 and before < 0.3), background


def test_hostile_source_does_nothing(browser: Chrome, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    write_single_file(examine(tmp_path / "hostile.py"), tmp_path / "page.html")
    open_page(browser, (tmp_path / "page.html").as_uri())
    assert browser.execute_script(
        "return window.pwned === undefined && !document.querySelector('img, i, b, main script')"
    )
    pieces = browser.execute_script("""
        const block = document.querySelector(".mn-view:not([hidden]) .mn-source code");
        return Array.from(block.querySelectorAll(".mn-line, .mn-math"), (node) => [node.className, node.textContent]);
    """)
    assert [text for kind, text in pieces if kind == "mn-line"] == without_markers(HOSTILE)
    maths = [text for kind, text in pieces if kind == "mn-math"]
    assert len(maths) == len(HOSTILE_FORMULAS) and HOSTILE_FORMULAS[29] in maths[0]
    browser.execute_script(SELECT)
    assert copied(browser) == HOSTILE
    assert complaints(browser) == []
