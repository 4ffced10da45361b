"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_imports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package that imports its names when they are used.

    The names are those that the package's file imports under ``if TYPE_CHECKING:``. So they stand in one place, which a
    type checker reads too. A name that it imports from itself is a module of its own.

    Args:
        package: The package's ``__name__``.
        file: Its ``__file__``.
    """
    where = {
        alias.asname or alias.name: (statement.module, alias.name)
        for block in ast.parse(Path(file).read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
    names = sorted(where)

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = where[name]
        if module == package:
            return importlib.import_module(f"{package}.{attribute}")
        return getattr(importlib.import_module(module), attribute)

    return get, lambda: names, names
