"""Make the API pages: an index of all public names with what they do, and a page per subpackage."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import minerva
from docs import tables

ROOT = Path(__file__).parent.parent
FIRST = ("train", "load", "Policy", "PPOTrainer", "MPOTrainer", "VMPOTrainer", "PPOConfig", "MPOConfig", "VMPOConfig")
"""The names that a user needs first, in this order."""
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


class Entry(NamedTuple):
    """A public class or function."""

    name: str
    summary: str  # the first sentence of its docstring


def pages() -> dict[str, tuple[str, list[str]]]:
    """Assign the package's modules to pages: one per subpackage, and one for the top-level modules."""
    found: dict[str, tuple[str, list[str]]] = {"minerva": ("minerva", [])}
    for path in sorted((ROOT / "minerva").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts == ("minerva",) or any(part.startswith("_") for part in parts) or parts[1] == "cli":
            continue
        page = parts[1] if (ROOT / "minerva" / parts[1]).is_dir() else "minerva"
        found.setdefault(page, (f"minerva.{page}", []))[1].append(".".join(parts))
    return found


def page(title: str, modules: list[str]) -> str:
    """Make an API page from the docstrings of modules."""
    parts = [f"# `{title}`"]
    if title == "minerva":
        parts.append(f"At the top level: {tables.listed([_link(name, where) for name, where in _exported()])}.")
    for module in modules:
        options = ["show_root_heading: false", "show_root_toc_entry: false"]
        if module == minerva._WHERE["train"]:
            names = sorted(_public_names(module), key=lambda name: _rank(name, module))
            options += ["group_by_category: false", f"members: [{', '.join(names)}]"]
        lines = "".join(f"\n      {option}" for option in options)
        parts.append(f"## `{module}`\n\n::: {module}\n    options:{lines}")
    return "\n\n".join(parts) + "\n"


def index_page() -> str:
    """Make the index: what a user needs first, then every public class and function by module."""
    parts = [
        "# API",
        "`import minerva` gives these names. Most programs need only the first two.",
        _table([_row(name, where, _summary(where, name)) for name, where in _exported()]),
        "## All classes and functions",
        "Every public name with the first sentence of its docstring, without the command line (`minerva.cli`) and "
        "names that begin with an underscore. The name links to arguments and methods.",
    ]
    for name, (title, modules) in pages().items():
        parts.append(f"### [`{title}`]({name}.md) {{ #{name} }}")
        for module in modules:
            if entries := sorted(public(module), key=lambda entry: _rank(entry.name, module)):
                parts.append(f"**`{module}`**")
                parts.append(_table([_row(entry.name, module, entry.summary) for entry in entries]))
    return "\n\n".join(parts) + "\n"


def public(module: str) -> tuple[Entry, ...]:
    """Return the public classes and functions of a module that have docstrings, in the order of the source."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    documented = ((node.name, ast.get_docstring(node)) for node in _body(module) if isinstance(node, kinds))
    return tuple(Entry(name, _first_sentence(text)) for name, text in documented if text and not name.startswith("_"))


@cache
def _body(module: str) -> list[ast.stmt]:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")).body


def _public_names(module: str) -> list[str]:
    """Return the public names of a module, constants included, in the order of the source."""
    targets = (target for node in _body(module) if isinstance(node, ast.Assign) for target in node.targets)
    constants = [target.id for target in targets if isinstance(target, ast.Name) and not target.id.startswith("_")]
    return [*(entry.name for entry in public(module)), *constants]


def _rank(name: str, module: str) -> int:
    """Return where a name of a module stands: what a user needs first, then the others in the order of the source."""
    return FIRST.index(name) if name in FIRST and minerva._WHERE[name] == module else len(FIRST)


def _exported() -> list[tuple[str, str]]:
    """Return the names of the top level and their modules: what a user needs first, then the others."""
    where = minerva._WHERE
    others = sorted(where.keys() - set(FIRST))
    return [(name, where[name]) for name in (*FIRST, *others)]


def _summary(module: str, name: str) -> str:
    """Find the summary of a name that a package may export from one of its modules."""
    for candidate in [module, *(other for _, modules in pages().values() for other in modules)]:
        if candidate == module or candidate.startswith(f"{module}."):
            for entry in public(candidate):
                if entry.name == name:
                    return entry.summary
    raise ValueError(f"{module}.{name} has no docstring")


def _first_sentence(text: str) -> str:
    return _END_OF_SENTENCE.split(" ".join(text.partition("\n\n")[0].split()))[0]


def _link(name: str, module: str) -> str:
    return f"[`{name}`][{module}.{name}]"


def _row(name: str, module: str, summary: str) -> str:
    return f"| {_link(name, module)} | {tables.cell(summary)} |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| name | what it does |", "| --- | --- |", *rows])
