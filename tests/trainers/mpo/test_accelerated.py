from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from minerva.acceleration.applied import Acceleration
from minerva.acceleration.compiled import compiler_available
from minerva.acceleration.tree import leaves
from minerva.trainers.actor import Actor
from minerva.trainers.mpo.agent import MPOAgent
from tests.trainers.mpo.small_agent import ACT, HIGH, LOW, OBS, SETTINGS, make_agent, transitions


def check_accelerated(agent: MPOAgent, plain: MPOAgent, acceleration: Acceleration) -> None:
    agent.set_acceleration(acceleration)
    for seed in range(5):
        batch = plain.to_batch(transitions(seed))
        noise = plain.draw_noise(batch)
        if seed == 3:  # this one is skipped, by both
            batch.rewards[1] = math.nan
        expected_finite, expected = plain.step(batch, noise)
        finite, metrics = agent.step(batch, noise)
        assert bool(finite) == bool(expected_finite) == (seed != 3)
        if finite:
            torch.testing.assert_close(metrics, expected, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(leaves(agent.state), leaves(plain.state), rtol=1e-4, atol=2e-5)
    assert agent.state.q.steps.item() == 4 and agent.skipped.item() == 1


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
def test_a_compiled_update_equals_the_plain_one() -> None:
    # Slow: about half a minute of compiling.
    fields = {"action_penalization": True, "target_networks_update_period": 2}
    check_accelerated(make_agent(**fields), make_agent(**fields), Acceleration(compiled=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_a_captured_update_equals_the_plain_one() -> None:
    agents = []
    for _ in range(2):
        agent = MPOAgent(OBS, ACT, LOW, HIGH, "cuda", (8, 5), (7, 6), **SETTINGS)
        with torch.no_grad():
            for tensor, other in zip(leaves(agent.state), leaves(make_agent().state), strict=True):
                tensor.copy_(other)
        agents.append(agent)
    check_accelerated(agents[0], agents[1], Acceleration(captured=True))
    actor = Actor(agents[0].policy, seed=3, log_probs=True)
    obs, nothing = np.zeros((2, OBS), np.float32), np.zeros((2, 0), np.float32)
    actor.generator.manual_seed(7)
    before = actor(obs, nothing, nothing)[0]
    agents[0].update(transitions(9))
    actor.invalidate()
    actor.generator.manual_seed(7)
    after = actor(obs, nothing, nothing)[0]
    noise = torch.randn((2, ACT), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        mean, log_std = (part.cpu() for part in agents[0].policy(torch.zeros(2, OBS, device="cuda")))
    np.testing.assert_allclose(after, mean + log_std.exp() * noise, rtol=1e-4, atol=1e-4)
    assert (after != before).all()
