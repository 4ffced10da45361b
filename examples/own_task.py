"""Train on a task of your own in MuJoCo: a model, and functions of the states of all environments at once.

python examples/own_task.py [total_steps] [out_dir]
"""

import sys
from typing import Any

import mujoco
import numpy as np

import minerva
from minerva.environments.tasks import Draws, Start, State, Task, register
from minerva.environments.tasks.arrays import concatenate, norm

MODEL = """
<mujoco>
  <option timestep="0.02"/>
  <worldbody>
    <body name="puck">
      <joint name="x" type="slide" axis="1 0 0" damping="1"/>
      <joint name="y" type="slide" axis="0 1 0" damping="1"/>
      <geom type="sphere" size="0.05" mass="1"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="x" ctrllimited="true" ctrlrange="-1 1" gear="5"/>
    <motor joint="y" ctrllimited="true" ctrlrange="-1 1" gear="5"/>
  </actuator>
</mujoco>
"""


class Puck(Task):
    """Push a puck to a goal, which is somewhere else in every episode."""

    frame_skip = 2
    memory_size = 2  # the goal

    def __init__(self, *, control_cost: float = 0.01) -> None:
        self.control_cost = control_cost
        super().__init__()

    def build(self) -> Any:
        """Return the model."""
        return mujoco.MjModel.from_xml_string(MODEL)

    def reset(self, random: Draws) -> Start:
        """Put puck and goal anywhere, the puck at rest."""
        start, goal = random.uniform(-1.0, 1.0, 2), random.uniform(-1.0, 1.0, 2)
        return Start(qpos=start, qvel=np.zeros_like(start), memory=goal)

    def observation(self, now: State) -> Any:
        """Return the way to the goal, and the velocity."""
        return concatenate(now.memory - now.qpos, now.qvel)

    def reward(self, before: State, actions: Any, now: State) -> Any:
        """Pay less the farther the goal is."""
        return -norm(now.memory - now.qpos) - self.control_cost * (actions * actions).sum(axis=-1)

    def terminated(self, now: State) -> Any:
        """End where the puck has left the table."""
        return norm(now.qpos) > 3.0


register("Puck-v0", Puck, max_episode_steps=100)


def main(total_steps: int = 100_000, out_dir: str | None = None) -> None:
    fields: dict[str, Any] = {"backend": "mujoco", "num_envs": 16}
    result = minerva.train("ppo", "Puck-v0", total_steps, out_dir=out_dir, **fields)
    policy = minerva.load(result.out_dir)
    print("Push, when the goal is to the right of a puck at rest:", policy.act(np.array([0.5, 0.0, 0.0, 0.0])))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        sys.argv[2] if len(sys.argv) > 2 else None,
    )
