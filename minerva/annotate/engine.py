"""Parse formulas with KaTeX, which renders them in the browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

KATEX = Path(__file__).parent / "katex"
"""Folder of KaTeX's script, stylesheet and fonts."""
ASSETS = Path(__file__).parent / "assets"
"""Folder of the scripts and styles of the pages."""


def find_node() -> str | None:
    """Return the path of Node, which runs KaTeX outside a browser, or None if it is not installed."""
    return shutil.which("node") or shutil.which("nodejs")


def parse_errors(formulas: Sequence[str], node: str) -> list[str | None]:
    """Parse formulas with KaTeX, all in one process, and return their errors.

    Args:
        formulas: LaTeX source of display math.
        node: Path of Node.

    Returns:
        KaTeX's error for each formula, or None.

    Raises:
        ValueError: Node does not run.
    """
    script = (ASSETS / "parse.js").read_text(encoding="utf-8")
    try:
        ended = subprocess.run(
            [node, "--input-type=commonjs", "-e", script, str(KATEX / "katex.min.js")],
            input=json.dumps(list(formulas)),
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise ValueError(f"node: {node} could not run KaTeX ({last}); install Node 18 or newer.") from error
    errors: list[str | None] = json.loads(ended.stdout)
    return [None if text is None else _plain(text) for text in errors]


def _plain(text: str) -> str:
    # KaTeX underlines the error with combining characters, which some terminals cannot show, and adds its own name.
    return re.sub("[\u0332\u0333]", "", text).removeprefix("KaTeX parse error: ")
