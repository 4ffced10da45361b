"""An environment that ends its process when it is told to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium


class Fragile(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pendulum-v1. Where the file exists, it is deleted, and the process is killed at the fifth step after that.

    Args:
        file: The file.
        learner: The process that only evaluates in it.
    """

    def __init__(self, file: Path, learner: int) -> None:
        super().__init__(gymnasium.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=30))
        self.file = file
        self.harmless = os.getpid() == learner
        self.left: int | None = None

    def step(self, action: Any) -> Any:
        if self.harmless:
            pass
        elif self.left is None and self.file.exists():
            self.file.unlink(missing_ok=True)
            self.left = 5
        elif self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
