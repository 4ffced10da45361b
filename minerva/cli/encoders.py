"""Encoders of one's own on the command line: `--make-encoder module:function`.

What the user names on the command line is imported. Nothing that a checkpoint names is: it says only that its policy
has such an encoder.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minerva.cli.options import UsageError
from minerva.trainers.config import RunConfig
from minerva.utils.ranges import shown

FORM = "must be module:function, such as my_networks:make_encoder"


def find_function(name: str | None) -> Callable[[], Any] | None:
    """Import the function that builds an encoder; a module may also be in the current folder.

    Raises:
        UsageError: There is none of that name.
    """
    if name is None:
        return None
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise UsageError(f"--make-encoder: {FORM}; got {shown(name)}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that a file here does not stand in for a package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"--make-encoder: the module {module_name:.100} cannot be imported ({reason}).") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        kind = "has nothing of that name" if function is None else f"has a {type(function).__name__} of that name"
        raise UsageError(f"--make-encoder: {FORM}; {module_name} {kind}, {function_name:.100}.")
    return function  # type: ignore[no-any-return]


def encoder_argument(name: str | None, config: RunConfig, saved: bool = False) -> dict[str, Any]:
    """Return the argument of trainers and of `minerva.load` that builds the encoder; empty where there is none.

    Args:
        name: What --make-encoder was given.
        config: The run's config.
        saved: Whether the config is that of a saved policy, which has an encoder of one's own or not.

    Raises:
        UsageError: There is no such function, or it has no place in this policy, or is missing.
    """
    kind = getattr(config, "encoder", None)
    if name is not None and kind is None:
        raise UsageError("--make-encoder: is for ppo and vmpo; mpo has no encoder.")
    if name is not None and saved and kind != "custom":
        raise UsageError(f"--make-encoder: the policy was trained with encoder {kind!r}, not your own; leave it out.")
    if name is None and kind == "custom":
        raise UsageError(
            "encoder: the policy has an encoder of your own; add --make-encoder module:function, the function that "
            "builds it."
        )
    function = find_function(name)
    return {} if function is None else {"make_encoder": function}


def repeated(name: str | None) -> str:
    """Return the option as it has to be given again to resume."""
    return "" if name is None else f" --make-encoder {shlex.quote(name)}"
