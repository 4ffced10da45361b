"""Log to Weights & Biases; a run that cannot reach it still trains."""

from __future__ import annotations

import io
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from minerva.loggers.base import Logger, one_line
from minerva.utils.wandb_utils import GLOBAL_STEP, log_wandb

ID_FILE = "wandb_id.txt"
_START_SECONDS = 15.0  # how long a run waits for W&B before it starts without it
_FINISH_SECONDS = 120.0  # how long a finished run waits for its upload; `wandb sync` sends the rest


class WandbLogger(Logger):
    """Log to the active W&B run, with the environment step as x axis.

    Args:
        own_run: The run that `close` finishes; None for one that the caller opened, which stays open.
    """

    def __init__(self, own_run: Any = None) -> None:
        self._own_run = own_run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        log_wandb(metrics, step)

    def close(self) -> None:
        run, self._own_run = self._own_run, None
        if run is not None:
            run.finish()


def open_wandb(
    mode: Literal["online", "offline"],
    folder: Path,
    project: str,
    name: str,
    config: dict[str, Any],
) -> WandbLogger | None:
    """Start or resume a W&B run, or warn and return None if that fails.

    It never asks for input, and waits at most 15 seconds for the network. If a W&B run is already active (a sweep, or
    the caller's own), it logs to that one and leaves it open at the end.

    Args:
        mode: "online" uploads during the run; "offline" writes to disk for a later `wandb sync`.
        folder: The run's folder; W&B's files go into its subfolder ``wandb``. The id is in ``wandb_id.txt``, from which
            a resumed run reads it.
        project: Project to log to.
        name: Displayed name of the run.
        config: The run's configuration.
    """
    try:
        import wandb
    except ImportError:
        _warn('W&B is not installed, so this run does not log to it: pip install "minerva-rl[tracking]".')
        return None
    # Failures from here on are external (a key, a proxy, a server, a version); none of them should stop training.
    try:
        active = getattr(wandb, "run", None)
        if active is not None:
            active.config.update(config, allow_val_change=True)
            _use_step_axis(active)
            return WandbLogger()
        id_file = folder / ID_FILE
        run_id = id_file.read_text().strip() if id_file.is_file() else ""
        run_id = run_id or uuid.uuid4().hex[:8]
        folder.mkdir(parents=True, exist_ok=True)
        with _no_prompt():
            run = wandb.init(
                mode=mode,
                dir=str(folder),
                project=project,
                name=name,
                config=config,
                id=run_id,
                # Offline, W&B would warn about `resume`: `wandb sync --append` joins the parts of one id.
                resume="allow" if mode == "online" else None,
                settings=_settings(wandb),
            )
        id_file.write_text(run_id + "\n")
        _use_step_axis(run)
        return WandbLogger(run)
    except Exception as error:
        remedy = " Run `wandb login`, or use offline mode, which needs no login." if mode == "online" else ""
        _warn(f"W&B could not be started, so this run does not log to it ({one_line(error)}).{remedy}")
        return None


def _use_step_axis(run: Any) -> None:
    run.define_metric(GLOBAL_STEP)
    run.define_metric("*", step_metric=GLOBAL_STEP)


def _settings(wandb: Any) -> Any:
    """Return settings that keep W&B's output off the terminal and its waits short."""
    # console="off": otherwise W&B would intercept the run's standard output.
    fields: dict[str, Any] = {
        "silent": True,
        "console": "off",
        "init_timeout": _START_SECONDS,
        "login_timeout": _START_SECONDS,
    }
    if "finish_timeout" in getattr(wandb.Settings, "__annotations__", {}):  # not in older versions
        fields["finish_timeout"] = _FINISH_SECONDS
    return wandb.Settings(**fields)


@contextmanager
def _no_prompt() -> Iterator[None]:
    """Disable standard input, so that W&B raises an error instead of asking for a key."""
    stdin = sys.stdin
    sys.stdin = io.StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
