"""Train on your own environment, with a wrapper: pass a function that makes it.

python examples/own_environment.py [total_steps] [out_dir]
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import minerva

Vector = NDArray[np.float32]


class ReachTarget(gymnasium.Env[Vector, Vector]):
    """Push a point on a line to a target; the episode terminates there."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)  # position, target
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Vector, dict[str, Any]]:
        """Start at 0, with a random target."""
        super().reset(seed=seed)  # seeds self.np_random, so that a run can resume exactly
        self.position, self.target = 0.0, float(self.np_random.uniform(-5.0, 5.0))
        return self._observation(), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Push the point by up to 1."""
        self.position = float(np.clip(self.position + action[0], -10.0, 10.0))
        distance = abs(self.target - self.position)
        return self._observation(), -distance, distance < 0.1, False, {}

    def _observation(self) -> Vector:
        return np.array([self.position, self.target], dtype=np.float32)


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(ReachTarget(), max_episode_steps=50)


def main(total_steps: int = 50_000, out_dir: str | None = None) -> None:
    result = minerva.train("ppo", make_env, total_steps=total_steps, out_dir=out_dir)
    policy = minerva.load(result.out_dir)
    print("Push at 0 when the target is at 3:", policy.act(np.array([0.0, 3.0])))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 50_000,
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
