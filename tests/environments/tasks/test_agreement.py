"""Every task does what Gymnasium's or dm_control's own environment does; `benchmarks.task_agreement` has more of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from benchmarks.task_agreement import compare_starts, compare_steps, flat, flat_batch, simulation_of, simulator_of
from minerva.environments.ids import resolve
from minerva.environments.mujoco_backend import make_mujoco_batch
from minerva.environments.simulator import Simulations
from minerva.environments.tasks import State, built_in
from tests.environments.optional import needs

with_suite = needs("mujoco", "dm_control", "shimmy")
every_task = pytest.mark.parametrize("name", built_in())

ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {"frame_skip": 2, "forward_reward_weight": 2.0, "ctrl_cost_weight": 0.3}),
    ("HalfCheetah-v5", {"reset_noise_scale": 0.4, "exclude_current_positions_from_observation": False}),
    ("Swimmer-v5", {"forward_reward_weight": 3.0, "exclude_current_positions_from_observation": False}),
    ("Hopper-v5", {"healthy_reward": 2.0, "healthy_state_range": (-1.0, 1.0), "reset_noise_scale": 0.05}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_angle_range": (-0.01, 0.01)}),
    ("Walker2d-v5", {"healthy_z_range": (1.24, 1.3), "ctrl_cost_weight": 0.1}),
    ("Ant-v5", {"main_body": "front_left_leg", "contact_force_range": (-0.2, 0.3), "contact_cost_weight": 0.1}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "healthy_z_range": (0.5, 0.7), "healthy_reward": 3.0}),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "contact_cost_weight": 1e-3}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False}),
    ("Humanoid-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_range": (0.5, 0.6), "frame_skip": 3}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.2, "frame_skip": 4}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 1.5, "reset_noise_scale": 0.3}),
    ("Reacher-v5", {"reward_dist_weight": 2.0, "reward_control_weight": 0.5, "frame_skip": 4}),
]


def check_steps(name: str, env_kwargs: dict[str, Any], states: int) -> None:
    result = compare_steps(name, states, env_kwargs=env_kwargs, longest=30)
    assert result["states"] >= states
    for part in ("observation", "reward", "termination", "physics"):
        assert result[part] <= 1e-9, (name, result)


@with_suite
@every_task
def test_a_step_from_the_same_state_is_the_same(name: str) -> None:
    check_steps(name, {}, 20)


@with_suite
@pytest.mark.parametrize(("name", "env_kwargs"), ARGUMENTS)
def test_arguments_mean_what_they_mean_in_gymnasium(name: str, env_kwargs: dict[str, Any]) -> None:
    check_steps(name, env_kwargs, 10)


@with_suite
@every_task
def test_starts_have_the_same_distribution(name: str) -> None:
    assert compare_starts(name, 60) > 1e-3


@with_suite
def test_another_distribution_of_starts_is_noticed() -> None:
    assert compare_starts("Hopper-v5", 60, env_kwargs={"reset_noise_scale": 0.01}) > 1e-3
    wide, narrow = simulator_of("Hopper-v5", {"reset_noise_scale": 0.02}), resolve("Hopper-v5")()
    begun = wide.begin(np.random.default_rng(1).spawn(60), np.arange(60))
    ours = flat_batch(narrow, wide.task.observation(wide.state(begun)))
    theirs = np.stack([flat(narrow, narrow.reset(seed=seed)[0]) for seed in range(60)])
    assert ours.std(axis=0).mean() > 3 * theirs.std(axis=0).mean()


@with_suite
@every_task
def test_several_steps_in_a_row_stay_together(name: str) -> None:
    """What a step leaves for the next one is carried along too, such as where the center of mass was."""
    env, simulator = resolve(name)(), simulator_of(name)
    env.reset(seed=3)
    now, generator = simulation_of(env, simulator), np.random.default_rng(0)
    for _ in range(4):
        action = generator.uniform(-0.4, 0.4, env.action_space.shape).astype(env.action_space.dtype)
        before, now = now, simulator.advance(now, action[None])
        observation, reward, *_ = env.step(action)
        state = simulator.state(now)
        ours = simulator.task.reward(simulator.state(before), action[None], state)[0]
        assert ours == pytest.approx(float(reward), abs=1e-5)  # to the tolerance of the solver
        row = flat_batch(env, simulator.task.observation(state))[0]
        np.testing.assert_allclose(row, flat(env, observation), rtol=1e-4, atol=1e-4)
    env.close()


@with_suite
@every_task
def test_spaces_and_time_limits_are_the_originals(name: str) -> None:
    batch, original = make_mujoco_batch(name, 2, 0), resolve(name)()
    assert batch.raw_observation_space == original.observation_space
    assert batch.action_space == original.action_space
    assert batch.reset().shape == (2, batch.observation_dim)
    assert batch._time_limit == (1000 if name.startswith("dm_control/") else gymnasium.spec(name).max_episode_steps)
    original.close()
    batch.close()


@with_suite
@every_task
def test_the_same_file_runs_on_tensors(name: str) -> None:
    simulator = simulator_of(name)
    generator = np.random.default_rng(0)
    before = simulator.begin(generator.spawn(5), np.arange(5))
    actions = generator.uniform(-0.4, 0.4, (5, simulator.model.nu)).astype(np.float64)
    after = simulator.advance(before, actions)
    task = simulator.task

    def on_tensors(simulations: Simulations) -> State:
        return simulator.state(Simulations(*(torch.from_numpy(part) for part in simulations)))  # type: ignore[arg-type]

    arrays, tensors = simulator.state(after), on_tensors(after)
    pairs = [
        (task.observation(arrays), task.observation(tensors)),
        (
            task.reward(simulator.state(before), actions, arrays),
            task.reward(on_tensors(before), torch.from_numpy(actions), tensors),
        ),
        (task.terminated(arrays), task.terminated(tensors)),
    ]
    for ours, theirs in pairs:
        named = ours.items() if isinstance(ours, dict) else [("", ours)]
        for key, value in named:
            other = theirs[key] if isinstance(theirs, dict) else theirs
            assert (other is None) == (value is None)
            if value is not None:
                assert isinstance(other, torch.Tensor)
                np.testing.assert_allclose(value, other.numpy(), rtol=1e-12, atol=1e-12)
