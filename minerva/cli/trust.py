"""Which environments of a checkpoint the command line makes: without --trust-env only those that need no consent."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from minerva.cli.options import UsageError

if TYPE_CHECKING:
    from minerva.trainers.config import RunConfig


def refuse_custom(env_id: str, instead: str) -> None:
    """Refuse an environment that a function of the user's makes."""
    if env_id.startswith("custom:"):
        raise UsageError(
            f"run: its environment ({env_id}) comes from your own Python code, which the command line cannot call; "
            f"use {instead} in Python."
        )


def require_trust(env_id: str, config: RunConfig, trusted: bool) -> None:
    """Refuse to make the environment that a checkpoint names if that may run code or read files of its choice."""
    reason = trust_needed(env_id, config, sys.modules)
    if reason is not None and not trusted:
        raise UsageError(f"run: the checkpoint {reason}; add --trust-env if you know where it comes from.")


def trust_needed(env_id: str, config: RunConfig, imported: Container[str]) -> str | None:
    """Return what making an environment with such settings may do, if that needs the user's consent."""
    from minerva.environments.ids import foreign_module

    module = foreign_module(env_id, imported)
    if module is not None:
        return f"names the environment {env_id!r:.100}, which imports the module {module:.100}"
    if _may_name_a_file(config.env_kwargs):
        return f"makes {env_id:.100} with {config.env_kwargs!r:.200}, where text may name a file or a module"
    return None


def _may_name_a_file(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(map(_may_name_a_file, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and any(sign in value for sign in "/\\:.")
