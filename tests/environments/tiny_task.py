"""The tiny environments as a task of MuJoCo, for the conformance suite."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from minerva.environments.tasks import Draws, Start, State, Task
from tests.environments.tiny_envs import Kind

# A cart that moves by exactly 1 per step counts the steps; a force on the other one is the action.
MODEL = """
<mujoco>
  <option timestep="1" gravity="0 0 0"/>
  <worldbody>
    <body name="clock"><joint name="steps" type="slide" axis="1 0 0"/><geom size="0.1" mass="1" contype="0"/></body>
    <body><joint name="idle" type="slide" axis="1 0 0"/><geom size="0.1" mass="1" contype="0"/></body>
  </worldbody>
  <actuator><motor name="push" joint="idle"/></actuator>
  <sensor>
    <jointpos name="taken" joint="steps"/>
    <actuatorfrc name="action" actuator="push"/>
  </sensor>
</mujoco>
"""


class TinyTask(Task):
    """What `tiny_envs.Tiny` is, with environments of one kind.

    Args:
        kind: How long episodes are and how they end.
        in_python: Whether Python's threads step it, or MuJoCo's.
    """

    memory_size = 2  # the environment's index, and the episode's

    def __init__(self, kind: Kind, in_python: bool = False) -> None:
        self.kind = kind
        self.fields = ("xpos",) if in_python else ()
        self.episodes: dict[int, int] = {}
        super().__init__()

    def build(self) -> Any:
        return mujoco.MjModel.from_xml_string(MODEL)

    def reset(self, random: Draws) -> Start:
        for index in random.environments.tolist():
            self.episodes[index] = self.episodes.get(index, -1) + 1
        n = len(random.environments)
        episodes = [self.episodes[index] for index in random.environments.tolist()]
        return Start(np.zeros((n, 2)), np.tile([1.0, 0.0], (n, 1)), np.stack([random.environments, episodes], axis=1))

    def observation(self, now: State) -> NDArray[np.float64]:
        taken = now["xpos"][:, 1, :1] if self.fields else now["taken"]
        np.testing.assert_array_equal(taken, now["taken"])
        return np.concatenate([now.memory, taken, now["action"]], axis=1)

    def reward(self, before: State, actions: NDArray[np.float32], now: State) -> NDArray[np.float64]:
        np.testing.assert_array_equal(before["taken"] + 1, now["taken"])
        np.testing.assert_array_equal(actions, now["action"])
        index, episode = now.memory.T
        rewards: NDArray[np.float64] = (now.qpos[:, 0] + index / 4 + 1) * (1 - 2 * (episode % 2))
        return rewards

    def _ends(self, now: State, which: int) -> NDArray[np.bool_]:
        index, episode = now.memory.T
        endings = np.array(self.kind.endings)[episode.astype(int) % len(self.kind.endings), which]
        ends: NDArray[np.bool_] = endings & (now.qpos[:, 0] == self.kind.length + self.kind.longer * index)
        return ends

    def terminated(self, now: State) -> NDArray[np.bool_]:
        return self._ends(now, 0)

    def truncated(self, now: State) -> NDArray[np.bool_]:
        return self._ends(now, 1)
