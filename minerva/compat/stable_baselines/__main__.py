"""Run a script for stable-baselines without changing it, or rename the packages in its imports."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from minerva.compat import aliases
from minerva.compat.aliases.renaming import renamed

DESCRIPTION = """\
Run a script that was written for stable-baselines' PPO2 and gym, without any change: its imports of stable_baselines
and gym get Minerva's modules. With --rename, print the script with these names replaced in its imports instead."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("python -m minerva.compat.stable_baselines", description=DESCRIPTION)
    parser.add_argument("--rename", action="store_true", help="print the script with renamed imports")
    parser.add_argument("--in-place", action="store_true", help="with --rename: change the file instead of printing it")
    parser.add_argument("script", type=Path, help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args(arguments)
    if options.in_place and not options.rename:
        parser.error("--in-place: needs --rename.")
    try:
        source = options.script.read_bytes()
    except OSError as error:
        parser.error(f"script: {options.script} cannot be read: {error.strerror}.")
    if not options.rename:
        run(options.script, source, options.arguments)
        return
    try:
        result = renamed(source)
    except SyntaxError as error:
        parser.error(f"script: {options.script} is not valid Python: {error}.")
    if options.in_place:
        written = options.script.with_name(options.script.name + ".renamed")
        written.write_bytes(result)
        written.chmod(options.script.stat().st_mode)
        written.replace(options.script)
    else:
        sys.stdout.buffer.write(result)


def run(path: Path, source: bytes, arguments: Sequence[str]) -> None:
    """Run a script as ``__main__``, as ``python script.py`` would, with the older names of the packages.

    Args:
        path: The script.
        source: Its text.
        arguments: Its arguments.
    """
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.resolve().parent)
    package = str(Path(__file__).parents[3])
    if package not in sys.path:  # it was found in the current folder
        sys.path.append(package)
    aliases.install()
    module = ModuleType("__main__")
    module.__file__ = str(path)
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module  # where pickle looks for the script's classes
    sys.excepthook = _show_error
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)


def _show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # The first frames are this file's; the script begins where they end.
    here = _show_error.__code__.co_filename
    begin = trace
    while begin is not None and begin.tb_frame.f_code.co_filename != here:
        begin = begin.tb_next
    while begin is not None and begin.tb_frame.f_code.co_filename == here:
        begin = begin.tb_next
    traceback.print_exception(kind, error, begin)


if __name__ == "__main__":
    main()
