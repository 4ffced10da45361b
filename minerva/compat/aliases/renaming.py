"""Rename older packages in the imports of a script."""

from __future__ import annotations

import ast
import importlib
import re

from minerva.compat.aliases import TENSORFLOW, real_name

Edit = tuple[int, int, bytes]  # first byte, last byte, what stands there then


def renamed(source: bytes) -> bytes:
    """Return a script whose imports name Minerva's modules; the rest of it, strings too, stays as it is.

    ``tensorflow`` is renamed where the script uses no more of it than the stand-in has.

    Args:
        source: The script.

    Raises:
        SyntaxError: It is not valid Python.
    """
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    keep = set() if _stand_in_is_enough(tree) else {TENSORFLOW}
    edits: list[Edit] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            edits += [
                (starts[alias.lineno - 1] + alias.col_offset, _end(alias, starts), _import(alias).encode())
                for alias in node.names
                if _is_older(alias.name, keep)
            ]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and _is_older(node.module or "", keep):
            begin = starts[node.lineno - 1] + node.col_offset
            place = re.compile(rb"from[\s\\]+([\w.]+)").match(source, begin)
            if place is not None:
                edits.append((*place.span(1), (real_name(node.module or "") or "").encode()))
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source


def _end(node: ast.alias, starts: list[int]) -> int:
    return starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _is_older(name: str, keep: set[str]) -> bool:
    return real_name(name) is not None and name.partition(".")[0] not in keep


def _import(alias: ast.alias) -> str:
    """Return what stands after ``import``, so that the script's names mean what they meant."""
    real, (root, dot, _) = real_name(alias.name), alias.name.partition(".")
    if alias.asname is not None:
        return f"{real} as {alias.asname}"
    whole = f"{real_name(root)} as {root}"
    return f"{whole}, {real}" if dot else whole  # `import gym.spaces` binds gym


def _stand_in_is_enough(tree: ast.Module) -> bool:
    """Return whether every use of TensorFlow in a script is one that the stand-in has."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == TENSORFLOW:
            return False
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == TENSORFLOW:
                    if alias.name != TENSORFLOW:
                        return False
                    names.add(alias.asname or TENSORFLOW)
    stand_in = importlib.import_module(real_name(TENSORFLOW) or "")
    return all(
        _has(stand_in, _dotted(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _dotted(node)[:1] and _dotted(node)[0] in names
    )


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return [*before, node.attr]
    return []


def _has(module: object, names: list[str]) -> bool:
    for name in names[1:]:
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True
