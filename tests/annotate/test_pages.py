import base64
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from minerva.annotate import SCRIPTS, STYLESHEETS, examine, make_pages, write_pages, write_single_file
from minerva.cli import main
from tests.annotate.programs import need
from tests.annotate.samples import HOSTILE, HOSTILE_FORMULAS, Page, without_markers

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/a.py": "# LaTeX: x\ny = 1\n# LaTeX: z\nw = 1\n",
        "pkg/sub/__init__.py": "# LaTeX: u\nv = 1\n",
        "pkg/none.py": "x = 1\n",
        "tests/test_a.py": '@pytest.mark.formula("pkg.a", "x")\ndef test_it(): ...\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


# Markdown


def test_pages_for_mkdocs(package: Path) -> None:
    out = package / "docs" / "annotated"
    report = examine(package / "pkg", package / "tests")
    write_pages(report, out, "https://example.org/main/")
    pages = ["index.md", *(f"{view}/{name}.md" for view in ("annotations", "source") for name in ("pkg.a", "pkg.sub"))]
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.md")) == sorted(pages)
    written = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert written == make_pages(report, "https://example.org/main/")

    index = (out / "index.md").read_text()
    assert "2 modules, 3 formulas: " in index and "1 covered by a test" in index
    assert (
        "| [<code>pkg.a</code>](source/pkg.a.md) | 2 | 1 | [Rendered&nbsp;annotations](annotations/pkg.a.md) |" in index
    )
    assert "| [<code>pkg.sub</code>](source/pkg.sub.md) | 1 | 0 |" in index

    source = (out / "source" / "pkg.a.md").read_text()
    assert source.startswith('---\ntitle: "pkg.a"\n---\n')
    assert "\n# pkg.a / Math-Annotated Source\n" in source
    assert '\n<a href="https://example.org/main/pkg/a.py">pkg/a.py</a> · 2 formulas · [Rendered annotations](' in source
    assert "https://example.org/main/tests/test_a.py#L2" in source and "no test" in source
    assert Page(source).blocks == [[("formula", "x"), ("2", "y = 1"), ("formula", "z"), ("4", "w = 1")]]

    annotations = (out / "annotations" / "pkg.a.md").read_text()
    assert re.findall(r"^#+ .*", annotations, re.MULTILINE) == [
        "# pkg.a / Rendered annotations",
        "## Line 2",
        "## Line 4",
        "## Full source",
    ]
    whole = [("1", "# LaTeX: x"), ("2", "y = 1"), ("3", "# LaTeX: z"), ("4", "w = 1")]
    assert Page(annotations).blocks == [whole[1:], whole[3:], whole]


def test_pages_include_their_scripts_and_styles(package: Path) -> None:
    out = package / "docs"
    write_pages(examine(package / "pkg"), out)
    assert all((out / name).is_file() for name in (*STYLESHEETS, *SCRIPTS))
    fonts = set(re.findall(r"url\(([^)]*)\)", (out / STYLESHEETS[0]).read_text()))
    assert fonts and all((out / "assets" / "katex" / font).is_file() for font in fonts)
    assert "MIT" in (out / "assets" / "katex" / "LICENSE").read_text()
    assert "test" not in (out / "source" / "pkg.a.md").read_text().replace("Math-Annotated", "")


def test_only_changed_pages_are_written_and_old_ones_are_removed(package: Path) -> None:
    out = package / "docs"
    write_pages(examine(package / "pkg"), out)
    own = out / "source" / "own.md"
    own.write_text("Written by hand.\n")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    write_pages(examine(package / "pkg"), out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    (package / "pkg" / "a.py").write_text("x = 1\n")
    (package / "pkg" / "sub" / "__init__.py").write_text("# LaTeX: u\nv = 2\n")
    write_pages(examine(package / "pkg"), out)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    gone = {out / "source" / "pkg.a.md", out / "annotations" / "pkg.a.md"}
    assert set(before) - set(after) == gone
    changed = {path.relative_to(out).as_posix() for path in after if after[path] != before[path]}
    assert changed == {"index.md", "source/pkg.sub.md", "annotations/pkg.sub.md"}


def test_strange_file_names(tmp_path: Path) -> None:
    name = "a_b_ `c` <i>&(1)"
    (tmp_path / f"{name}.py").write_text("# LaTeX: x\ny = 1\n")
    out = tmp_path / "docs"
    write_pages(examine(tmp_path), out)
    assert (out / "source" / f"{name}.md").is_file()
    assert json.loads((out / "source" / f"{name}.md").read_text().split("title: ")[1].split("\n")[0]) == name
    assert "(source/a_b_%20%60c%60%20%3Ci%3E%26%281%29.md)" in (out / "index.md").read_text()
    write_single_file(examine(tmp_path), tmp_path / "page.html")
    assert "i" not in Page((tmp_path / "page.html").read_text()).tags


def test_places_that_cannot_be_written_to(package: Path) -> None:
    (package / "file").touch()
    with pytest.raises(ValueError, match=r"out: must be a folder, got the file .*file"):
        write_pages(examine(package / "pkg"), package / "file")
    with pytest.raises(ValueError, match=r"single-file: must be a file, got the folder .*; give a file in it"):
        write_single_file(examine(package / "pkg"), package)


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("page", ["index.md", "source/pkg.sub.md", "annotations/pkg.a.md"])
def test_a_page_written_by_hand_is_not_overwritten(
    package: Path, page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    words = ["annotate", "pkg", "--single-file", "maths.html", "--out", "docs"]
    assert main(words) == 0
    capsys.readouterr()
    (package / "docs" / page).write_text("# My own\n")
    (package / "pkg" / "a.py").write_text("# LaTeX: changed\ny = 1\n")
    before = tree(package)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == (
        f"minerva: out: docs/{page} exists and was not written by `minerva annotate`; choose another path or move it.\n"
    )
    assert tree(package) == before


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pkg/__init__.py", "single-file: must end in .html, got pkg/__init__.py; use __init__.html."),
        ("new.txt", "single-file: must end in .html, got new.txt; use new.html."),
        ("own.html", "single-file: own.html exists and was not written by `minerva annotate`"),
    ],
)
def test_a_file_that_is_something_else_is_not_overwritten(
    package: Path, file: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    (package / "own.html").write_text("<p>Mine</p>\n")
    before = tree(package)
    assert main(["annotate", "pkg", "--out", "docs", "--single-file", file]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"minerva: {message}") and captured.err.count("\n") == 1
    assert tree(package) == before


def test_a_generated_file_is_overwritten(package: Path) -> None:
    for name in ("maths.html", "MATHS.HTM"):
        out = package / name
        write_single_file(examine(package / "pkg" / "a.py"), out)
        write_single_file(examine(package / "pkg"), out)
        assert "source:pkg.sub" in out.read_text()


def test_every_source_file_is_read_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, log = need("node", "nodejs"), package / "log"
    (package / "bin").mkdir()
    (package / "bin" / "node").write_text(f'#!/bin/sh\necho started >> "{log}"\nexec "{node}" "$@"\n')
    (package / "bin" / "node").chmod(0o755)
    monkeypatch.setenv("PATH", str(package / "bin"), prepend=":")
    words = ["--out", str(package / "docs"), "--single-file", str(package / "maths.html"), "--check"]
    assert main(["annotate", str(package / "pkg"), *words]) == 0
    assert log.read_text() == "started\n"


# One file


def test_one_file_holds_everything(package: Path) -> None:
    out = package / "site" / "maths.html"
    write_single_file(examine(package / "pkg", package / "tests"), out)
    html = out.read_text()
    page = Page(re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL))
    assert page.ids.count("index") == 1 and len(page.ids) == len(set(page.ids))
    for view in ("source", "annotations"):
        assert f"{view}:pkg.a" in page.ids and f"{view}:pkg.sub" in page.ids
    assert [len(block) for block in page.blocks] == [4, 3, 1, 4, 2, 1, 2]
    assert all(f'href="#{anchor}"' in html for anchor in page.ids)
    # Nothing is loaded from anywhere: no attribute and no style leads out of the file.
    assert not {"link", "img", "iframe", "script"} & page.tags and html.count("<script") == 1
    assert set(re.findall(r"url\((.{5})", html.partition("</style>")[0])) == {"data:"}
    fonts = re.findall(r"url\(data:font/woff2;base64,([^)]*)\)", html)
    assert len(fonts) == 20 and base64.b64decode(fonts[0])[:4] == b"wOF2"


def test_hostile_source_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    write_single_file(examine(tmp_path / "hostile.py"), tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert html.count("<script") == 1
    page = Page(re.sub(r"<script>.*</script>", "", html, flags=re.DOTALL))
    assert page.handlers == set()
    assert page.lines(0) == without_markers(HOSTILE)
    assert page.lines(len(HOSTILE_FORMULAS) + 1) == HOSTILE.removesuffix("\n").split("\n")


# A package that was not written here


def test_another_package(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("rlax")
    assert spec is not None and spec.origin is not None
    original = Path(spec.origin).parent
    shutil.copytree(original, tmp_path / "rlax", ignore=shutil.ignore_patterns("__pycache__"))
    marked: dict[str, list[str]] = {}
    for name in ("vtrace", "mpo_ops", "multistep"):
        path = tmp_path / "rlax" / "_src" / f"{name}.py"
        lines = path.read_text().split("\n")
        marked[name] = [line for line in lines if line.lstrip().startswith("return ")]
        assert marked[name]
        with_markers: list[str] = []
        for line in lines:
            if line.lstrip().startswith("return "):
                with_markers += [f"{line[: len(line) - len(line.lstrip())]}# LaTeX: r_{{{len(with_markers)}}}", ""]
            with_markers.append(line)
        path.write_text("\n".join(with_markers))
    report = examine(tmp_path / "rlax")
    write_pages(report, tmp_path / "docs")
    assert [module.name for module in report.modules] == [f"rlax._src.{name}" for name in sorted(marked)]
    assert report.problems == ()
    for name, returns in marked.items():
        page = Page((tmp_path / "docs" / "source" / f"rlax._src.{name}.md").read_text())
        shown = page.lines()
        source = (original / "_src" / f"{name}.py").read_text().removesuffix("\n").split("\n")
        assert [line for line in shown if line] == [line for line in source if line]  # a blank line came with each
        (block,) = page.blocks
        below = [
            next(text for kind, text in block[k + 1 :] if text)
            for k, (kind, _) in enumerate(block)
            if kind == "formula"
        ]
        assert below == returns
        excerpts = Page((tmp_path / "docs" / "annotations" / f"rlax._src.{name}.md").read_text()).blocks
        assert [block[0][1] for block in excerpts[:-1]] == returns


def test_every_page_of_minerva_is_its_source(tmp_path: Path) -> None:
    report = examine(REPOSITORY / "minerva")
    write_pages(report, tmp_path)
    assert len(report.modules) > 15
    for module in report.modules:
        source = (REPOSITORY / f"{module.name.replace('.', '/')}.py").read_text()
        (block,) = Page((tmp_path / "source" / f"{module.name}.md").read_text()).blocks
        lines = source.removesuffix("\n").split("\n")
        assert [text for kind, text in block if kind != "formula"] == without_markers(source)
        assert all(lines[int(kind) - 1] == text for kind, text in block if kind != "formula")
