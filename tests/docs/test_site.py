"""The built site in a real browser that reaches nothing but this machine."""

import dataclasses
import html
import os
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from minerva import api, presets
from minerva.cli.options import setting_groups
from tests.annotate.browser import complaints, look, requests, resize, visit

ROOT = Path(__file__).parent.parent.parent
E_STEP = "annotated/source/minerva.objectives.mpo.html"


def pages(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


# Every page

LOOK = """
const visible = document.querySelectorAll(".arithmatex, .mn-math")
return {
  formulas: visible.length,
  raw: [...visible].filter(node => !node.querySelector(".katex-html")).map(node => node.textContent),
  // A command that KaTeX does not know is shown in red, and is no error node.
  errors: [...document.querySelectorAll(".katex-error, mstyle[mathcolor='#cc0000']")].map(node => node.textContent),
  title: document.title,
}
"""

FITS = """
const content = document.querySelector(".md-content") || document.body
const found = []
const page = document.documentElement.clientWidth
const width = document.documentElement.scrollWidth
if (width > page) found.push(`the page is ${width} wide`)
const name = node => node.textContent.trim().replace(/\\s+/g, " ").slice(0, 40)
const scrolls = node => ["auto", "scroll"].includes(getComputedStyle(node).overflowX)
for (const formula of content.querySelectorAll(".katex-display .katex-html")) {
  const whole = document.createRange()
  whole.selectNodeContents(formula)
  const right = whole.getBoundingClientRect().right
  let box = formula.parentElement
  while (box != document.body && getComputedStyle(box).overflowX == "visible") box = box.parentElement
  const inside = box == document.body ? page : box.getBoundingClientRect().right
  if (right > inside + 1 && !scrolls(box)) found.push(`cut: ${name(formula)}`)
  const below = box.scrollHeight - box.clientHeight
  if (box != document.body && below > 1) found.push(`cut below: ${name(formula)}`)
}
for (const table of content.querySelectorAll("table:not([class])")) {
  const box = table.closest(".md-typeset__scrollwrap")
  const over = box ? box.scrollWidth - box.clientWidth : 0
  if (over > 0) found.push(`${over} too wide: ${name(table)}`)
}
for (const code of content.querySelectorAll("pre > code, .mn-source")) {
  const over = code.scrollWidth - code.clientWidth
  if (over > 0 && !scrolls(code)) found.push(`cut: ${name(code)}`)
  // On a laptop, code that is written for the page fits its box; a source file of 120 columns may scroll in it.
  if (over > 0 && page > 1000 && !code.matches(".mn-source")) found.push(`scrolls by ${over}: ${name(code)}`)
}
return found
"""


def misfits(browser: Chrome) -> list[str]:
    """Return what does not fit the window; after a change of its width, the theme moves parts for a moment."""
    found: list[str] = browser.execute_script(FITS)
    deadline = time.monotonic() + 2
    while found and time.monotonic() < deadline:
        time.sleep(0.2)
        found = browser.execute_script(FITS)
    return found


GENERATED = ("code/", "annotated/source/", "annotated/annotations/", "api/")
"""Where the many pages are that are made from code: a browser looks at a sample of them, or at all with
MINERVA_ALL_PAGES=1."""


def pages_to_look_at(site: Path) -> list[str]:
    generated = [page for page in pages(site) if page.startswith(GENERATED)]
    passed_over = set(generated) - set(generated[::3]) if "MINERVA_ALL_PAGES" not in os.environ else set()
    return [page for page in pages(site) if page not in passed_over]


def test_every_page_loads_offline_renders_its_formulas_and_fits_a_laptop_and_a_phone(
    site: Path, browser: Chrome, address: str
) -> None:
    found: dict[str, list[str]] = {}
    formulas = 0
    chosen = pages_to_look_at(site)
    first, second = (1400, 900), (390, 844)
    look(browser, *first)
    for page in chosen:
        visit(browser, f"{address}/{page}")
        seen = browser.execute_script(LOOK)
        formulas += seen["formulas"]
        problems = [f"at {first[0]} px: {text}" for text in misfits(browser)]
        resize(browser, *second)
        problems += [f"at {second[0]} px: {text}" for text in misfits(browser)]
        first, second = second, first  # the next page opens at the width that the browser has
        problems += [
            *complaints(browser),
            *(f"asked for {url}" for url in requests(browser) if not url.startswith((address, "blob:", "about:"))),
            *(f"not rendered: {text}" for text in seen["raw"]),
            *(f"error in {text}" for text in seen["errors"]),
            *([] if "Minerva" in seen["title"] else [f"has the title {seen['title']!r}"]),
        ]
        if problems:
            found[page] = problems
    look(browser)
    assert found == {}
    assert formulas > 300
    assert len(chosen) > 60


def test_pages_open_from_the_disk(site: Path, browser: Chrome) -> None:
    visit(browser, (site / "algorithms" / "mpo.html").as_uri())
    seen = browser.execute_script(LOOK)
    assert seen["formulas"] > 20 and seen["raw"] == seen["errors"] == []


def test_both_renderers_give_katex_the_same_options() -> None:
    scripts = (ROOT / "docs" / "assets" / "maths.js", ROOT / "minerva" / "annotate" / "assets" / "annotate.js")
    call = r"katex\.render\([^{]*\{ displayMode(?:: true)?, (.+?) \}"
    here, there = (re.findall(call, file.read_text(encoding="utf-8")) for file in scripts)
    assert here == there and len(here) == 1


def test_what_is_cut_would_be_found(browser: Chrome, address: str) -> None:
    look(browser, 390, 844)
    visit(browser, f"{address}/algorithms/ppo.html")
    for selector, style, said in (
        ("div.arithmatex", "overflow: hidden; width: 20px; flex: none", "cut: "),
        ("div.arithmatex", "height: 10px", "cut below: "),
        ("table", "display: table; min-width: 500px", "too wide: "),
        ("pre > code", "overflow: hidden; white-space: pre; width: 9px", "cut: "),
        ("body", "width: 999px", "the page is 999 wide"),
    ):
        assert misfits(browser) == []
        spoil = "document.querySelector(arguments[0]).style.cssText = arguments[1]"
        browser.execute_script(spoil, selector, style)
        assert said in " ".join(misfits(browser))
        browser.execute_script(spoil, selector, "")
    look(browser)


def test_on_a_phone_a_row_of_a_wide_table_is_a_paragraph_with_the_names_of_its_columns(
    browser: Chrome, address: str
) -> None:
    script = """
    const cells = [...document.querySelectorAll("h3#updating + div td, h3#updating + * td")].slice(0, 4)
    return cells.map(cell => [getComputedStyle(cell).display, getComputedStyle(cell, "::before").content])
    """
    look(browser, 390, 844)
    visit(browser, f"{address}/algorithms/ppo.html")
    narrow = browser.execute_script(script)
    look(browser)
    wide = browser.execute_script(script)
    assert [display for display, _ in narrow] == ["block"] * 4
    assert [content for _, content in narrow] == ["none", '"type: "', '"default: "', "none"]
    assert [display for display, _ in wide] == ["table-cell"] * 4


@pytest.mark.parametrize("page", ["index.html", "results.html", "algorithms/ppo.html"])
def test_tables_of_results_show_all_columns_on_a_laptop(browser: Chrome, address: str, page: str) -> None:
    look(browser, 1280, 860)
    visit(browser, f"{address}/{page}")
    hidden = """
    return [...document.querySelectorAll("table")]
      .filter(table => [...table.querySelectorAll("th")].some(cell => cell.textContent.trim() == "target"))
      .map(table => table.closest(".md-typeset__scrollwrap")).map(box => box.scrollWidth - box.clientWidth)
    """
    widths = browser.execute_script(hidden)
    look(browser)
    assert widths and max(widths) <= 0


# Links


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (href := values.get("href")):
            self.links.append(href)
        is_loaded = tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload")
        self.resources += [value for value in (values.get("src"), values.get("href") if is_loaded else None) if value]


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    parsed: dict[Path, Links] = {}
    for page in pages(site):
        reader = parsed[site / page] = Links()
        reader.feed((site / page).read_text(encoding="utf-8"))
    broken = []
    for path, reader in parsed.items():
        if path.name == "404.html":
            continue  # shown at any address, so its links start at the site's root
        for link in [*reader.links, *reader.resources]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                if link in reader.resources:
                    broken.append(f"{path.relative_to(site)} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            known = not fragment or target not in parsed or fragment in parsed[target].ids
            if not target.exists() or not (known or fragment.startswith("__")):
                broken.append(f"{path.relative_to(site)} -> {link}")
    assert broken == []


def test_formulas_link_to_the_tests_that_hold_them(site: Path) -> None:
    text = (site / E_STEP).read_text(encoding="utf-8")
    links = re.findall(r'href="\.\./\.\./(code/tests/objectives/test_mpo\.html)#L(\d+)"[^>]*>(.*?)</a>', text)
    assert links
    for target, line, name in links:
        shown = re.search(rf'<span class="mn-line" id="L{line}"[^>]*>(.*)', (site / target).read_text(encoding="utf-8"))
        assert shown is not None
        assert f"def {html.unescape(name)}(" in html.unescape(re.sub(r"<[^>]+>", "", shown[1]))
    assert 'href="../../bibliography.html#abdolmaleki2018a"' in text


# The annotated page of MPO's E-step

WALK = """
return [...document.querySelectorAll(".mn-line, .mn-formula")].map(node => {
  const box = node.getBoundingClientRect()
  return node.classList.contains("mn-line")
    ? { line: Number(node.dataset.n), text: node.textContent, top: box.top, bottom: box.bottom,
        colors: new Set([...node.querySelectorAll("span")].map(part => getComputedStyle(part).color)).size,
        selectable: getComputedStyle(node).userSelect }
    : { latex: node.querySelector("annotation").textContent, rendered: node.querySelectorAll(".katex-html").length,
        errors: node.querySelectorAll(".katex-error, [mathcolor]").length,
        top: box.top, bottom: box.bottom, height: box.height }
})
"""


def test_formulas_of_the_e_step_stand_between_the_right_lines_in_order(browser: Chrome, address: str) -> None:
    source = (ROOT / "minerva" / "objectives" / "mpo.py").read_text(encoding="utf-8").splitlines()
    expected: list[tuple[str, int | str]] = []
    for number, line in enumerate(source, start=1):
        marker = re.match(r"\s+# LaTeX(?:\[.*?\])?: (.+)", line)
        expected.append(("formula", marker[1]) if marker else ("line", number))
    visit(browser, f"{address}/{E_STEP}")
    seen = browser.execute_script(WALK)
    assert [("line", part["line"]) if "line" in part else ("formula", part["latex"]) for part in seen] == expected
    for before, part, after in zip(seen, seen[1:], seen[2:], strict=False):
        if "line" in part:
            assert part["text"] == source[part["line"] - 1]
            assert part["selectable"] != "none"
        else:
            assert part["rendered"] == 1 and part["errors"] == 0 and part["height"] > 20
            assert before["bottom"] <= part["top"] + 1 and part["bottom"] <= after["top"] + 1
    weights = next(k for k, part in enumerate(seen) if part.get("latex", "").startswith("q_{b,i}"))
    assert "torch.softmax(q_values.detach() / temperature.detach(), dim=-1)" in seen[weights + 1]["text"]
    assert max(part["colors"] for part in seen if "line" in part) >= 3  # highlighted


def test_code_can_be_selected(browser: Chrome, address: str) -> None:
    visit(browser, f"{address}/{E_STEP}")
    script = "getSelection().selectAllChildren(document.querySelector('.mn-source')); return getSelection().toString()"
    assert "return torch.softmax(q_values.detach() / temperature.detach(), dim=-1)" in browser.execute_script(script)


# Search and colors


def test_search_finds_retrace(browser: Chrome, address: str) -> None:
    visit(browser, f"{address}/index.html")
    browser.execute_script("document.querySelector('#__search').click()")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("Retrace")
    deadline = time.monotonic() + 20
    found: list[str] = []
    while not found and time.monotonic() < deadline:
        script = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        found = browser.execute_script(script)
        time.sleep(0.1)
    assert any("/algorithms/mpo.html" in link for link in found)
    assert any("/annotated/source/minerva.objectives.retrace.html" in link for link in found)


def test_the_scheme_can_be_switched(browser: Chrome, address: str) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    visit(browser, f"{address}/index.html")
    light = browser.execute_script(color)
    browser.execute_script("document.querySelector('form[data-md-component=palette] label:not([hidden])').click()")
    dark = browser.execute_script(color)
    visit(browser, f"{address}/{E_STEP}")
    assert dark != light and browser.execute_script(color) == dark  # remembered
    assert [sum(map(int, re.findall(r"\d+", one)[:3])) > 384 for one in (light, dark)] == [True, False]


# Pages that are made


@pytest.mark.parametrize("algo", api.ALGORITHMS)
def test_settings_list_every_field_of_the_config(site: Path, algo: str) -> None:
    text = (site / "algorithms" / f"{algo}.html").read_text(encoding="utf-8")
    rows = re.findall(
        r"<tr>\s*<td><code>(\w+)</code></td>\s*<td><code>.*?</code></td>\s*<td><code>(.*?)</code></td>\s*<td>(.*?)</td>",
        text,
    )
    shown = {name: (html.unescape(default), html.unescape(what)) for name, default, what in rows}
    config = api.config_class(algo)
    assert set(shown) == {field.name for field in dataclasses.fields(config)}
    for heading, settings in setting_groups(config).items():
        assert f">{heading.capitalize()}<" in text
        for setting in settings:
            default, what = shown[setting.name]
            assert default == repr(getattr(config(), setting.name))
            assert re.sub(r"<[^>]+>", "", what) == setting.help


@pytest.mark.parametrize("algo", api.ALGORITHMS)
def test_presets_list_every_task_with_its_steps(site: Path, algo: str) -> None:
    text = (site / "presets" / f"{algo}.html").read_text(encoding="utf-8")
    rows = dict(re.findall(r"<tr>\s*<td><code>([^<]+)</code></td>\s*<td>([\d,]+)</td>", text))
    known = presets.load_presets(algo)
    assert rows == {name: f"{preset.total_steps:,}" for name, preset in known.items()}
    for preset in known.values():
        assert all(f">{field}<" in text or f">{field} = " in text for field in preset.fields)


def test_the_api_shows_docstrings(site: Path) -> None:
    text = (site / "api" / "minerva.html").read_text(encoding="utf-8")
    assert (
        text.index('id="minerva.api.train"')
        < text.index('id="minerva.api.load"')
        < text.index('id="minerva.api.Policy"')
    )
    assert "Train a policy with the environment's preset." in html.unescape(text)
