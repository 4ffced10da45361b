import json
import re
from pathlib import Path

import pytest

from minerva.annotate.engine import ASSETS, KATEX, find_node, parse_errors
from tests.annotate.programs import need


def test_katex_says_what_is_wrong_and_where() -> None:
    formulas = [r"\frac{a}{b}", r"\frac{a", r"\nonsense", r"x^2 \quad \mathbb{1}[a > b]", "", r"\left( x", "é"]
    good, open_brace, unknown, other, empty, unbalanced, accent = parse_errors(formulas, need("node", "nodejs"))
    assert good is None and other is None and empty is None
    assert open_brace is not None and "expected '}'" in open_brace
    assert unknown == r"Undefined control sequence: \nonsense at position 1: \nonsense"
    assert unbalanced is not None
    assert accent is not None and "strict mode" in accent


@pytest.mark.parametrize(
    "command", [r"\href{javascript:alert(1)}{x}", r"\url{x}", r"\htmlId{a}{x}", r"\includegraphics{x}"]
)
def test_formulas_hold_no_links_or_html(command: str) -> None:
    assert parse_errors([command], need("node", "nodejs")) != [None]


def test_a_package_json_above_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("node", "nodejs")
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    (tmp_path / "katex.min.js").write_bytes((KATEX / "katex.min.js").read_bytes())
    monkeypatch.setattr("minerva.annotate.engine.KATEX", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert parse_errors(["x"], need("node", "nodejs")) == [None]


def test_a_node_that_does_not_run_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "node"
    broken.write_text("#!/bin/sh\ncat > /dev/null\necho 'too old' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ValueError, match=r"node: .*/node could not run KaTeX \(too old\); install Node"):
        parse_errors(["x"], str(broken))


def test_node_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_node() is None
    (tmp_path / "nodejs").touch(mode=0o755)
    assert find_node() == str(tmp_path / "nodejs")


def test_katex_has_its_fonts_and_its_licence() -> None:
    style = (KATEX / "katex.min.css").read_text()
    addresses = set(re.findall(r"url\(([^)]*)\)", style))
    assert len(addresses) == 20
    assert addresses == {path.relative_to(KATEX).as_posix() for path in KATEX.glob("fonts/*")}
    assert all((KATEX / address).read_bytes()[:4] == b"wOF2" for address in addresses)
    assert "Khan Academy" in (KATEX / "LICENSE").read_text()


def test_scripts_can_be_embedded_in_html() -> None:
    for script in (KATEX / "katex.min.js", *ASSETS.glob("*.js")):
        assert not re.search(r"</script|<!--", script.read_text(), re.IGNORECASE), script
    assert "</style" not in "".join(path.read_text() for path in (KATEX / "katex.min.css", *ASSETS.glob("*.css")))
