"""Read formulas from Python source: comments above, or at the end of, the line that computes them.

The source is decoded, tokenized and parsed, never imported.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_MARKER = re.compile(r"# LaTeX(?P<brackets>\[(?P<citation>[^\]]*)\])?:(?P<latex>.*)")
_NEAR_MARKER = re.compile(r"#+\s*latex\s*[\[:]", re.IGNORECASE)
_SPELLING = "write `# LaTeX: FORMULA` or `# LaTeX[PAPER, EQUATION]: FORMULA`"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_TAB = 8  # columns per tab, as in Python itself

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Problem(NamedTuple):
    """A problem of a formula or a mark, with its file and line."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Formula:
    """A formula and the line of code that computes it."""

    module: str
    """Dotted name of its module."""
    path: str
    """Path of its file, as pages and messages show it."""
    line: int
    """Line of the marker, from 1."""
    code_line: int
    """Line of code of the formula: the marker's own line, or the next line with code."""
    last_line: int
    """Last line that belongs with it: the end of its function, or the last statement before the next definition."""
    latex: str
    """The formula in LaTeX."""
    paper: str | None
    """Key of the paper, such as Schulman2017."""
    equation: str | None
    """Number of the equation in the paper, such as eq. 7."""
    qualname: str
    """Function or class around the line of code, such as Agent.update; empty at the top level."""
    anchor: str
    """Its id on a page, made of module, function and formula, so that it does not change when lines move."""
    indentation: int
    """Indentation of the marker's line, in columns."""
    column: int
    """Start of the marker, in characters."""
    trailing: bool
    """Whether the marker is at the end of a line of code."""

    @property
    def place(self) -> str:
        """Dotted name of the function or class around it, or of its module, for the mark of a test."""
        return f"{self.module}.{self.qualname}" if self.qualname else self.module

    @property
    def citation(self) -> str | None:
        """Paper and equation as displayed text."""
        return ", ".join(part for part in (self.paper, self.equation) if part) or None


@dataclass(frozen=True)
class Module:
    """A source file with its formulas."""

    name: str
    """Dotted name, such as minerva.objectives.mpo."""
    path: str
    """Path of the file, as pages and messages show it."""
    lines: tuple[str, ...]
    """The decoded source without line ends."""
    formulas: tuple[Formula, ...]
    """In the order of the source."""
    problems: tuple[Problem, ...]
    """Invalid markers: empty, misspelled, or without code below them."""


class Source(NamedTuple):
    """All modules that were read under a path."""

    modules: tuple[Module, ...]
    """Modules with markers, sorted by name."""
    scope: str
    """Dotted name of the path; empty if it is a whole package or a folder of packages."""
    is_init: bool
    """Whether the path is a package's __init__.py, without the modules of the package."""

    def reaches(self, name: str) -> bool:
        """Return whether a module, or a name inside one, lies under the path."""
        return not self.scope or name == self.scope or (not self.is_init and name.startswith(f"{self.scope}."))


def read_source(root: Path, base: Path | None = None) -> Source:
    """Read the formulas of a file, a package, or a folder of packages and scripts.

    Files without the word LaTeX are skipped.

    Args:
        root: The file or the folder.
        base: Folder that displayed paths are relative to; by default the working directory.

    Raises:
        ValueError: There is no Python source, or a file with markers is not valid Python.
    """
    if not root.exists():
        raise ValueError(f"path: {root} does not exist; give a Python file or a folder of them.")
    is_file, here = root.is_file(), root.resolve()
    files = [here] if is_file else list(python_files(here))
    if not files or (is_file and root.suffix != ".py"):
        raise ValueError(f"path: no Python file (.py) in {root}; give a Python file or a folder of them.")
    top = _folder_of_package(here)
    modules: dict[str, Module] = {}
    for file in files:
        data = file.read_bytes()
        name = _dotted(file, top)
        if b"latex" in data.lower():
            module = read_module(data, name, shown_path(file, top, base))
            if name in modules:
                raise ValueError(
                    f"path: {modules[name].path} and {module.path} are both module {name}; annotate each separately."
                )
            if module.formulas or module.problems:
                modules[name] = module
    whole = not is_file and top in (here, here.parent)
    scope = "" if whole else _dotted(here, top)
    return Source(tuple(modules[name] for name in sorted(modules)), scope, here.name == "__init__.py")


def read_module(data: bytes, name: str, path: str) -> Module:
    """Read the formulas of one file.

    Args:
        data: The file's bytes.
        name: Dotted name of the module.
        path: Path of the file, for pages and messages.

    Raises:
        ValueError: The bytes are not valid Python source in the declared encoding.
    """
    text = decode(data, path)
    tree = parse(text, path)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # the file ends with a newline
    formulas: list[Formula] = []
    problems: list[Problem] = []
    scopes = _Scopes(tree)
    seen: Counter[str] = Counter()
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    next_code = _next_code(tokens)
    depth = 0
    for k, token in enumerate(tokens):
        if token.type == tokenize.OP:
            depth += (token.string in _OPENING) - (token.string in _CLOSING)
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        match = _MARKER.fullmatch(token.string)
        trailing = bool(lines[row - 1][:column].strip())
        following = token if trailing else next_code[k]
        if match is None:
            if _NEAR_MARKER.match(token.string):
                problems.append(Problem(path, row, f"marker {token.string[:40]!r} is misspelled; {_SPELLING}."))
        elif not match["latex"].strip():
            problems.append(Problem(path, row, f"marker without a formula; {_SPELLING}."))
        elif match["brackets"] and not match["citation"].partition(",")[0].strip():
            problems.append(Problem(path, row, f"marker without a paper in its brackets; {_SPELLING}."))
        elif following is None or (not trailing and _ends_block(lines, token, following, in_brackets=depth > 0)):
            why = "no line of code follows" if following is None else f"line {following.start[0]} is outside its block"
            problems.append(Problem(path, row, f"marker without code: {why}; move it or remove it."))
        else:
            code_line = following.start[0]
            paper, _, equation = (match["citation"] or "").partition(",")
            latex, (qualname, last_line) = match["latex"].strip(), scopes.around(code_line)
            anchor = _anchor(name, qualname, latex)
            seen[anchor] += 1
            formulas.append(
                Formula(
                    module=name,
                    path=path,
                    line=row,
                    code_line=code_line,
                    last_line=last_line,
                    latex=latex,
                    paper=paper.strip() or None,
                    equation=equation.strip() or None,
                    qualname=qualname,
                    anchor=anchor if seen[anchor] == 1 else f"{anchor}-{seen[anchor]}",
                    indentation=_indentation(lines[row - 1]),
                    column=column,
                    trailing=trailing,
                )
            )
    return Module(name, path, tuple(lines), tuple(formulas), tuple(problems))


def decode(data: bytes, path: str) -> str:
    """Decode a source file as Python would, and convert line ends to newlines.

    Args:
        data: The file's bytes.
        path: Path for error messages.

    Raises:
        ValueError: The bytes are not text in the declared encoding.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not {error.encoding}; declare the file's encoding in "
            "its first line, such as `# -*- coding: latin-1 -*-`, or save it as UTF-8."
        ) from error
    except (SyntaxError, LookupError, UnicodeError) as error:  # some codecs are not for text, or raise other errors
        reason = getattr(error, "msg", None) or error
        raise ValueError(f"{path}:1: {reason}; save the file as UTF-8, or declare its encoding.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(text: str, path: str) -> ast.Module:
    """Parse source text.

    Args:
        text: The text, as `decode` returns it.
        path: Path for error messages.

    Raises:
        ValueError: The text is not valid Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the source
            return ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno or 1}: not valid Python: {error.msg}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}:1: not valid Python: {error or 'too deeply nested'}.") from error


def collapse(latex: str) -> str:
    """Replace each run of white space by one space, so that formulas can be compared."""
    return " ".join(latex.split())


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder in order, without hidden folders, virtual environments and broken links."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and not Path(parent, name, "pyvenv.cfg").exists()
        )
        paths = [Path(parent, name) for name in sorted(names) if name.endswith(".py")]
        yield from (path for path in paths if path.is_file())


def shown_path(file: Path, top: Path, base: Path | None = None) -> str:
    """Return a path relative to a base, by default the working directory, or else to `top`; never an absolute path."""
    for folder in ((base or Path.cwd()).resolve(), top):
        if file.is_relative_to(folder):
            return file.relative_to(folder).as_posix()
    return file.name


def definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes of a module with their qualified names; inner ones come after outer ones."""
    # No recursion: the source may be nested deeper than Python's stack.
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, name = pending.pop()
        if isinstance(node, Definition):
            name = f"{name}.{node.name}" if name else node.name
            yield name, node
        pending += [(child, name) for child in ast.iter_child_nodes(node)]


class _Scopes:
    """Find the function or class that a line belongs to."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._spans = [
            (min(part.lineno for part in (node, *node.decorator_list)), node.end_lineno or node.lineno, name, node)
            for name, node in definitions(tree)
        ]

    def around(self, line: int) -> tuple[str, int]:
        """Return the qualified name, and the last line that belongs with this one."""
        inner: ast.Module | Definition = self._tree
        name = ""
        for first, last, qualname, node in reversed(self._spans):
            if first <= line <= last:
                if not isinstance(node, ast.ClassDef):
                    return qualname, last
                inner, name = node, qualname
                break
        end = line
        for statement in inner.body:
            if isinstance(statement, Definition) and statement.lineno > line:
                break
            end = max(end, statement.end_lineno or statement.lineno)
        return name, end


def _next_code(tokens: Sequence[tokenize.TokenInfo]) -> list[tokenize.TokenInfo | None]:
    found: list[tokenize.TokenInfo | None] = []
    following: tokenize.TokenInfo | None = None
    for token in reversed(tokens):
        if token.type not in _NO_CODE:
            following = token
        found.append(following)
    return found[::-1]


def _ends_block(
    lines: Sequence[str], marker: tokenize.TokenInfo, following: tokenize.TokenInfo, in_brackets: bool
) -> bool:
    """Return whether a marker is the last item in its block or brackets, so that the code after it is unrelated."""
    if in_brackets:  # indentation has no meaning there
        return following.string in _CLOSING
    before, after = lines[marker.start[0] - 1], lines[following.start[0] - 1]
    # The width of a tab is unknown: like Python, accept only what holds for wide and for narrow tabs.
    return all(_indentation(after, tab) < _indentation(before, tab) for tab in (_TAB, 1))


def _indentation(line: str, tab: int = _TAB) -> int:
    blank = line[: len(line) - len(line.lstrip())]
    return len(blank.rpartition("\f")[2].expandtabs(tab))


def _anchor(module: str, qualname: str, latex: str) -> str:
    digest = hashlib.sha256(collapse(latex).encode()).hexdigest()[:8]
    place = ".".join(filter(None, (re.sub(r"[^\w.-]", "_", module), qualname)))
    return f"{place}-{digest}"


def _folder_of_package(path: Path) -> Path:
    top = path if path.is_dir() else path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    return top


def _dotted(path: Path, top: Path) -> str:
    *folders, name = path.relative_to(top).parts
    name = name.removesuffix(".py")
    return ".".join(folders if folders and name == "__init__" else [*folders, name])
