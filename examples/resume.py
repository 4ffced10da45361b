"""Stop a run and resume it in a new trainer: it ends with the weights of a run that never stopped.

python examples/resume.py [total_steps] [out_dir]
"""

import sys
import tempfile
from pathlib import Path

import torch

from minerva import PPOTrainer
from minerva.trainers.ppo.config import PPOConfig

CONFIG = PPOConfig(rollout_steps=512, eval_episodes=3, console=False)


def main(total_steps: int = 10_240, out_dir: str | None = None) -> None:
    folder = Path(out_dir or tempfile.mkdtemp())

    whole = PPOTrainer("Pendulum-v1", seed=1, config=CONFIG)
    whole.train(total_steps, folder / "whole")

    # Stop in the middle of a rollout, like Ctrl-C. `minerva train --resume RUN` does the rest.
    stopped = PPOTrainer("Pendulum-v1", seed=1, config=CONFIG)
    last_step = total_steps // 2 + 7
    stopped.train(
        total_steps,
        folder / "stopped",
        callbacks=lambda trainer: trainer.env_steps < last_step,
    )
    print(f"Stopped at step {stopped.env_steps:,}.")

    resumed = PPOTrainer("Pendulum-v1", seed=1, config=CONFIG)
    resumed.load(folder / "stopped")
    resumed.train(total_steps)

    ours, theirs = resumed.agent.state_dict(), whole.agent.state_dict()
    same = all(torch.equal(ours[name], theirs[name]) for name in theirs)
    print(f"Resumed to step {resumed.env_steps:,}; the same weights as without a stop: {same}")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 10_240,
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
