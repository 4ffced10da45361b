"""Show things in a notebook: what changes in place, and pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows rich output."""
    ipython = sys.modules.get("IPython")  # not imported where it is not in use already
    return getattr(ipython.get_ipython(), "kernel", None) is not None if ipython is not None else False


class LiveOutput:
    """One output of the current cell, replaced in place. It needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str, text: str) -> None:
        """Show HTML, and text where a program that reads the notebook shows no HTML."""
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def show_picture(path: Path) -> None:
    """Show a PNG or SVG file below the current cell; another kind of file is not shown."""
    from IPython.display import SVG, Image, display

    kinds = {".png": lambda: Image(str(path), width=640), ".svg": lambda: SVG(str(path))}
    if (make := kinds.get(path.suffix.lower())) is not None:
        display(make())
