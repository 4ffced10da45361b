"""What every combination of action head, encoder and recurrent core has to do, whatever the algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np

from minerva.api import Policy
from minerva.trainers.actor import ActingPolicy
from minerva.utils.modes import mode


def assert_loaded_policy_acts_alike(trainer: Any, policy: Policy) -> None:
    """Compare the trained agent with the loaded policy to the bit, step after step where it is recurrent."""
    policy.reset()
    act = ActingPolicy(trainer.agent)
    rows = trainer.evaluator._group.apply(
        np.zeros((1, trainer.action_dim), dtype=np.float32), np.array([7])
    ).observations.copy()
    with mode(trainer.agent.modules(), training=False):
        for _ in range(3):
            np.testing.assert_array_equal(policy.act_flat(rows), act(rows))
