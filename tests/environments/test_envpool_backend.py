from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from minerva.environments import (
    BatchedEnvironment,
    EnvFactory,
    EnvironmentFailureError,
    EnvPoolBatch,
    choose_backend,
    known_ids,
    make,
)
from minerva.environments.envpool_backend import pool_name, unsupported_reason
from minerva.trainers.config import RunConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from tests.environments.backends import stand_in_pool
from tests.environments.optional import needs
from tests.environments.tiny_envs import Failing, Noisy

with_pool = needs("envpool")


def pool(name: str, num_envs: int = 3, seed: int = 1, **arguments: Any) -> BatchedEnvironment:
    return make(name, num_envs, seed, backend="envpool", **arguments)


def actions_for(batch: BatchedEnvironment, steps: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    if isinstance(batch.action_space, spaces.Discrete):
        return generator.integers(0, batch.action_space.n, (steps, batch.num_envs, 1)).astype(np.float32)
    width = int(np.prod(batch.action_space.shape or ()))
    return generator.normal(size=(steps, batch.num_envs, width)).astype(np.float32)


# Names and arguments


@with_pool
def test_every_task_of_the_suite_has_its_name_in_the_pool() -> None:
    assert pool_name("dm_control/cheetah/run") == "CheetahRun-v1"
    assert pool_name("dm_control/ball_in_cup/catch") == "BallInCupCatch-v1"
    assert pool_name("dm_control/humanoid_CMU/run") == "HumanoidCMURun-v1"
    assert pool_name("dm_control/lqr/lqr_2_1") == "LqrLqr21-v1"
    assert [name for name in known_ids("dm_control/") if pool_name(name) is None] == []


@with_pool
def test_other_names() -> None:
    assert pool_name("HalfCheetah-v5") == "HalfCheetah-v5"
    assert pool_name("Ant-v4") == "Ant-v4"
    assert pool_name("ALE/Pong-v5") == "Pong-v5"
    assert pool_name("MountainCar-v0") == "MountainCar-v0"
    # EnvPool has others, but they have not been compared.
    for name in ("Ant-v3", "LunarLander-v3", "Taxi-v3", "minerva/CartPoleNoVelocity-v1", "HalfCheetah-v50"):
        assert pool_name(name) is None


@with_pool
def test_the_reason_why_an_environment_is_not_supported() -> None:
    assert unsupported_reason("HalfCheetah-v5", {"ctrl_cost_weight": 0.2, "max_episode_steps": 5}) is None
    assert unsupported_reason(Noisy) == "EnvPool cannot run environments from your own function"
    assert unsupported_reason("LunarLander-v3") == "EnvPool does not support LunarLander-v3"
    assert unsupported_reason("CartPole-v1", {"sutton_barto_reward": True}) == (
        "EnvPool's CartPole-v1 does not accept sutton_barto_reward (in env_kwargs)"
    )
    assert "xml_file" in str(unsupported_reason("HalfCheetah-v5", {"xml_file": "mine.xml"}))
    assert "max_num_frames_per_episode" in str(unsupported_reason("ALE/Pong-v5", {"max_num_frames_per_episode": 100}))
    assert "a different task" in str(unsupported_reason("dm_control/finger/spin"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "envpool" else find(name))
    assert unsupported_reason("Pendulum-v1") == 'EnvPool is not installed: pip install "minerva-rl[envpool]"'
    with pytest.raises(ValueError, match=r"backend: EnvPool is not installed: .*; use backend gymnasium, or auto"):
        pool("Pendulum-v1")
    backend, why = choose_backend("ALE/Pong-v5", num_envs=32)
    assert backend == "gymnasium"
    assert why.startswith("auto: EnvPool is not installed")


@with_pool
def test_an_unsupported_environment_is_an_error() -> None:
    for name, kwargs in (("LunarLander-v3", {}), (Noisy, {}), ("CartPole-v1", {"sutton_barto_reward": True})):
        with pytest.raises(ValueError, match=r"backend: EnvPool.*; use backend gymnasium, or auto for EnvPool"):
            make(name, 8, backend="envpool", env_kwargs=kwargs)
    with pytest.raises(ValueError, match="env: no environment is called 'HalfCheeta-v5'"):
        pool("HalfCheeta-v5")
    with pytest.raises(ValueError, match=r"Pendulum-v1 could not be made with \{'seed': 3\}"):
        pool("Pendulum-v1", env_kwargs={"seed": 3})  # an option of EnvPool, but not of the task


# Steps of a batch

FAMILIES: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {"max_episode_steps": 6},
    "Hopper-v4": {"max_episode_steps": 6},
    "dm_control/cheetah/run": {},
    "Pendulum-v1": {"max_episode_steps": 6},
    "CartPole-v1": {"max_episode_steps": 6},
    "Acrobot-v1": {"max_episode_steps": 6},
    "MountainCarContinuous-v0": {"max_episode_steps": 6},
}


@with_pool
@pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pool_has_the_interface_of_the_gymnasium_backend(name: str) -> None:
    kwargs = FAMILIES[name]
    there, here = pool(name, env_kwargs=kwargs), make(name, 3, env_kwargs=kwargs)
    for attribute in ("num_envs", "raw_observation_space", "observation_dim", "observation_dtype", "mask_dim"):
        assert getattr(there, attribute) == getattr(here, attribute), attribute
    assert there.action_space == here.action_space
    first = there.reset()
    assert first.shape == (3, there.observation_dim)
    assert first.dtype == np.float32
    # The same distribution of starts: within the range of many of Gymnasium's, and not all equal.
    starts = np.concatenate([here.reset() for _ in range(40)])
    spread = starts.max(0) - starts.min(0)
    assert (first >= starts.min(0) - 0.5 * spread - 1e-6).all()
    assert (first <= starts.max(0) + 0.5 * spread + 1e-6).all()
    assert len(np.unique(first, axis=0)) == 3
    kept = None
    for t, action in enumerate(actions_for(there, 16)):
        step = there.step(action)
        if kwargs:  # a time limit of six steps, and no earlier termination
            assert step.truncated.tolist() == [t % 7 == 5] * 3, t
            assert step.restarting.tolist() == [t % 7 == 6] * 3, t
            assert [episode.length for episode in step.episodes] == [6] * 3 * (t % 7 == 5)
        assert not step.terminated.any()
        assert (step.rewards[step.restarting] == 0).all()
        for part in step[:5]:
            assert isinstance(part, np.ndarray)
            assert part.flags.writeable  # torch wraps them without a copy
        if kept is not None:  # the next step does not overwrite it
            np.testing.assert_array_equal(kept[0].observations, kept[1])
        kept = step, step.observations.copy()
    there.close()
    here.close()


@with_pool
def test_parts_of_an_observation_have_gymnasiums_order() -> None:
    batch = pool("dm_control/walker/walk", 2)
    assert isinstance(batch, EnvPoolBatch)
    space = batch.raw_observation_space
    assert isinstance(space, spaces.Dict)
    first = batch.reset()
    observation, *_ = batch._pool.step(np.zeros((2, 6)))
    rows = batch._rows(observation)
    assert rows.shape == first.shape == (2, 24)
    for i in range(2):
        parts = {key: observation[key][i].reshape(part.shape) for key, part in space.spaces.items()}
        np.testing.assert_array_equal(rows[i], np.asarray(spaces.flatten(space, parts), dtype=np.float32))


@with_pool
def test_terminations_and_time_limits_are_different() -> None:
    def ends(limit: int) -> list[tuple[int, bool, bool]]:
        batch = pool("InvertedPendulum-v5", 1, env_kwargs={"max_episode_steps": limit})
        batch.reset()
        found = []
        for _ in range(40):
            step = batch.step(np.full((1, 1), 3.0, dtype=np.float32))
            found += [(episode.length, bool(step.terminated[0]), bool(step.truncated[0])) for episode in step.episodes]
        batch.close()
        return found

    natural = ends(1000)
    assert len(natural) > 3
    assert {(terminated, truncated) for _, terminated, truncated in natural} == {(True, False)}
    length = natural[0][0]
    assert ends(length - 1)[0] == (length - 1, False, True)
    # If an episode terminates at its time limit, Gymnasium reports both, but EnvPool only the time limit.
    assert ends(length)[0] == (length, False, True)


@with_pool
@pytest.mark.parametrize("name", ["HalfCheetah-v5", "CartPole-v1"])
def test_the_same_seed_gives_the_same_run_with_any_number_of_threads(name: str) -> None:
    one, other, third = pool(name, seed=7, pool_threads=1), pool(name, seed=7, pool_threads=3), pool(name, seed=8)
    assert one.description == "EnvPool, 3 environments, 1 thread"
    assert other.description == "EnvPool, 3 environments, 3 threads"
    first = one.reset()
    np.testing.assert_array_equal(first, other.reset())
    starts = np.concatenate([first, third.reset()])  # neighboring seeds share no environment
    assert len(np.unique(starts, axis=0)) == 6
    for action in actions_for(one, 60):
        mine, theirs = one.step(action), other.step(action)
        for a, b in zip(mine[:5], theirs[:5], strict=True):
            np.testing.assert_array_equal(a, b)
        assert mine.episodes == theirs.episodes


@with_pool
def test_environments_are_the_same_where_other_processes_hold_the_others_of_a_run() -> None:
    whole, part = pool("Pendulum-v1", 4), pool("Pendulum-v1", 2, first=2, total=4)
    np.testing.assert_array_equal(whole.reset()[2:], part.reset())
    for action in actions_for(whole, 5):
        np.testing.assert_array_equal(whole.step(action).observations[2:], part.step(action[2:]).observations)


@with_pool
def test_threads_by_default() -> None:
    assert pool("Pendulum-v1", 1).description == "EnvPool, 1 environment, 1 thread"
    assert isinstance(pool("Pendulum-v1", 2, seed=2**31 + 5), EnvPoolBatch)  # too large for a C++ int


@with_pool
@pytest.mark.parametrize("name", ["Pendulum-v1", "HalfCheetah-v5"])
def test_actions_are_clipped_to_the_box(name: str) -> None:
    one, other = pool(name, seed=2), pool(name, seed=2)
    one.reset()
    other.reset()
    box = one.action_space
    assert isinstance(box, spaces.Box)
    wild = actions_for(one, 1)[0] * 9
    tame = np.clip(wild, box.low, box.high).astype(np.float32)
    assert not np.array_equal(wild, tame)
    np.testing.assert_array_equal(one.step(wild).observations, other.step(tame).observations)


# Saved and resumed


@with_pool
def test_a_resumed_pool_starts_new_episodes_and_says_so() -> None:
    one = pool("Pendulum-v1", seed=4)
    first = one.reset()
    actions = actions_for(one, 20)
    for action in actions[:10]:
        one.step(action)
    state = one.state_dict()
    resumed = []
    for _ in range(2):
        other = pool("Pendulum-v1", seed=4)
        note = other.load_state_dict(state)
        assert note is not None
        assert note.startswith("EnvPool cannot resume a saved episode: new ones start here")
        step = other.step(actions[10])
        assert step.restarting.all()
        assert not (step.terminated | step.truncated).any()
        assert step.rewards.tolist() == [0, 0, 0]
        assert step.episodes == []
        resumed.append(step.observations)
        lengths = [episode.length for action in [*actions, *actions] * 6 for episode in other.step(action).episodes]
        assert lengths == [200] * 3  # steps of the old episode do not count
    # Every resume gives the same episodes, but not those of the start of the run.
    np.testing.assert_array_equal(resumed[0], resumed[1])
    assert not np.isin(resumed[0], first).any()
    assert other.state_dict() == {"generation": 1}
    from_gymnasium = make("Pendulum-v1", 3)
    from_gymnasium.reset()
    assert other.load_state_dict(from_gymnasium.state_dict()) is not None
    assert other.step(actions[0]).restarting.all()


@with_pool
def test_a_reset_starts_over() -> None:
    batch = pool("CartPole-v1")
    batch.reset()
    for action in actions_for(batch, 7):
        batch.step(action)
    batch.reset()
    episode = next(e for action in actions_for(batch, 300) for e in batch.step(action).episodes)
    assert episode.episode_return == episode.length  # a reward of 1 per step, none from before
    batch.close()
    batch.close()


# Failures


@pytest.mark.parametrize("allowed", [False, True])
def test_values_that_are_not_finite(allowed: bool) -> None:
    factories: list[EnvFactory] = [Noisy, partial(Failing, "nan observation", 1)]
    stand_in = stand_in_pool(factories, 0)
    batch = EnvPoolBatch(
        stand_in._make_pool, 2, stand_in.raw_observation_space, stand_in.action_space, 0, "", allow_non_finite=allowed
    )
    batch.reset()
    if allowed:
        assert np.isnan(batch.step(np.zeros((2, 1), dtype=np.float32)).observations[1, 1])
    else:
        with pytest.raises(EnvironmentFailureError, match="environment 1 returned an observation with nan at position"):
            batch.step(np.zeros((2, 1), dtype=np.float32))


# In a run


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="vectorization: must be 'sync' with backend 'envpool'"):
        RunConfig(backend="envpool", vectorization="subprocess")
    with pytest.raises(ValueError, match="backend: must be 'auto', 'gymnasium', 'mujoco' or 'envpool', got 'pool'"):
        RunConfig(backend="pool")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pool_threads: must be at least 1, got 0"):
        RunConfig(pool_threads=0)
    assert RunConfig().backend == "gymnasium"  # by default, a killed run resumes bit for bit


@with_pool
def test_a_run_with_the_pool_is_resumed_with_a_note(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 4, "rollout_steps": 8, "minibatch_size": 16, "update_epochs": 1}
    settings |= {
        "eval_episodes": 1,
        "console": False,
        "backend": "envpool",
        "device": "cpu",
        "policy_layer_sizes": (8,),
    }
    trainer = PPOTrainer("Pendulum-v1", **settings)
    assert any("EnvPool, 4 environments" in note for note in trainer.notes)
    trainer.train(64, tmp_path / "run")
    trainer.close()
    resumed = PPOTrainer("Pendulum-v1", **settings)
    resumed.load(tmp_path / "run")
    assert any("Note: EnvPool cannot resume a saved episode" in note for note in resumed.notes)
    with pytest.warns(RuntimeWarning, match="Note: EnvPool cannot resume a saved episode"):
        assert resumed.train(128).env_steps == 128
    resumed.close()
