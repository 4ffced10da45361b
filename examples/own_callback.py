"""Inspect a run with a callback, and stop it early when the policy is good enough.

python examples/own_callback.py [total_steps] [out_dir]
"""

import sys
from collections import deque
from typing import Any

import minerva
from minerva.callbacks import Callback


class StopWhenSolved(Callback):
    """Stops training when the last ten training episodes reach a mean return."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.returns: deque[float] = deque(maxlen=10)

    def on_step(self, trainer: Any) -> bool:
        """Store the returns of the episodes that have just ended, and decide whether to stop."""
        self.returns.extend(episode.episode_return for episode in trainer.last_step.episodes)
        solved = len(self.returns) == 10 and sum(self.returns) / 10 >= self.wanted
        return not solved  # False stops the run; everything is saved

    def on_rollout_end(self, trainer: Any) -> None:
        """Print the mean return of the last training episodes."""
        if self.returns:
            mean_return = sum(self.returns) / len(self.returns)
            print(f"step {trainer.env_steps:,}: last training episodes {mean_return:.1f}")


def main(total_steps: int = 100_000, out_dir: str | None = None, wanted: float = -300.0) -> None:
    callback = StopWhenSolved(wanted)
    result = minerva.train("ppo", "Pendulum-v1", total_steps, out_dir=out_dir, callbacks=callback)
    print(f"Stopped by {result.stopped_by or 'the end of its steps'} at step {result.env_steps:,}.")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
