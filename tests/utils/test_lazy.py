from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minerva.utils.lazy import lazy_imports

SOURCE = """
from typing import TYPE_CHECKING
from minerva.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from fractions import Fraction as Fraction
    from statistics import mean as average
__getattr__, __dir__, __all__ = lazy_imports(__name__, __file__)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "lazy_package.py").write_text(SOURCE)
    return str(tmp_path / "lazy_package.py")


def test_names_come_from_where_the_type_checker_reads_them(file: str) -> None:
    get, names, exported = lazy_imports("lazy_package", file)
    assert names() == exported == ["Fraction", "average"]
    assert get("average")([1, 3]) == 2
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'median'"):
        get("median")


def test_nothing_is_imported_before_it_is_used(file: str) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lazy_package; before = 'fractions' in sys.modules; "
    code += "lazy_package.Fraction; sys.exit(before or 'fractions' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(Path(file).parent)]).returncode == 0


def test_a_name_from_the_package_itself_is_one_of_its_modules(tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text("if TYPE_CHECKING:\n    from json import decoder as decoder\n")
    get, names, _ = lazy_imports("json", str(file))
    assert names() == ["decoder"]
    assert get("decoder").__name__ == "json.decoder"
