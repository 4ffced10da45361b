from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva.environments import BatchedEnvironment, GymnasiumBatch, Step, history, make, resolve
from minerva.environments.ids import EnvFactory
from tests.environments.backends import BACKENDS
from tests.environments.tiny_envs import EndsEarlyWhenRepeated, FailsWhenRepeated, Forgetful, Noisy, Tiny, Writing

# Short episodes, so that a few steps reach their ends.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "HalfCheetah-v5": ("HalfCheetah-v5", {"max_episode_steps": 12}),
    "Ant-v5": ("Ant-v5", {"max_episode_steps": 12}),
    "dm_control/cheetah/run": ("dm_control/cheetah/run", {"task_kwargs": {"time_limit": 0.12}}),
    "Pendulum-v1": ("Pendulum-v1", {"max_episode_steps": 12}),
}


def actions_for(batch: BatchedEnvironment, steps: int, seed: int = 0) -> NDArray[np.float32]:
    width = int(np.prod(batch.action_space.shape or ()))
    return np.random.default_rng(seed).normal(size=(steps, batch.num_envs, width)).astype(np.float32)


def assert_same(one: Step, other: Step) -> None:
    for name in ("observations", "rewards", "terminated", "truncated", "restarting"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.episodes == other.episodes


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
@pytest.mark.parametrize("task", TASKS)
def test_a_saved_batch_resumes_bit_for_bit(task: str, vectorization: Any) -> None:
    name, kwargs = TASKS[task]

    def fresh() -> BatchedEnvironment:
        return make(name, 2, seed=3, vectorization=vectorization, num_workers=2, env_kwargs=kwargs)

    one, other = fresh(), fresh()
    actions = actions_for(one, 40)
    one.reset()
    # Within an episode, at its end, after the restart, before the first step, and within the second episode. The same
    # second batch loads all of them: its earlier steps must not matter.
    saves = {7: "middle", 12: "end", 13: "restart", 0: "first", 22: "second"}
    states: dict[int, dict[str, Any]] = {}
    steps: list[Step] = []
    for t in range(40):
        if t in saves:
            states[t] = through_a_file(one.state_dict())
        steps.append(one.step(actions[t]))
    assert steps[11].truncated.all()
    assert steps[12].restarting.all()
    for t, state in states.items():
        assert other.load_state_dict(state) is None
        assert_plain_equal(other.state_dict(), state)
        for s in range(t, min(t + 16, 40)):
            assert_same(other.step(actions[s]), steps[s])
    one.close()
    other.close()


def assert_plain_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_plain_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for x, y in zip(one, other, strict=True):
            assert_plain_equal(x, y)
    else:
        assert one == other


def test_episodes_that_end_at_different_times_are_saved_exactly() -> None:
    factories = [partial(Noisy, length) for length in (3, 5, 8)]
    one = GymnasiumBatch(factories, 0)
    actions = actions_for(one, 60)
    one.reset()
    states, steps = [], []
    for t in range(60):
        states.append(through_a_file(one.state_dict()))
        steps.append(one.step(actions[t]))
    for t in range(0, 60, 1):
        other = GymnasiumBatch(factories, 99)
        assert other.load_state_dict(states[t]) is None
        for s in range(t, min(t + 10, 60)):
            assert_same(other.step(actions[s]), steps[s])


def test_a_long_episode_is_saved_exactly() -> None:
    one, other = make(partial(Noisy, 10**6), 2, seed=1), make(partial(Noisy, 10**6), 2, seed=1)
    actions = actions_for(one, 2500)
    one.reset()
    for t in range(2400):
        if t in (1023, 1024, 1025, 2048, 2049):
            assert other.load_state_dict(one.state_dict()) is None
            assert other.state_dict()["actions"][t:].tolist() == np.clip(actions[:t, 1], -1, 1).tolist()
        one.step(actions[t])
    assert other.load_state_dict(through_a_file(one.state_dict())) is None
    for t in range(2400, 2500):
        assert_same(one.step(actions[t]), other.step(actions[t]))


def test_an_environment_that_writes_into_its_action_is_saved_exactly() -> None:
    one, other = make(partial(Writing, 50), seed=1), make(partial(Writing, 50), seed=1)
    actions = actions_for(one, 20) / 4
    one.reset()
    for t in range(10):
        one.step(actions[t])
    assert other.load_state_dict(one.state_dict()) is None
    assert_same(one.step(actions[10]), other.step(actions[10]))


REASONS: dict[str, tuple[Callable[[Path], gymnasium.Env[Any, Any]], str]] = {
    "not deterministic": (lambda mark: Forgetful(9), "it is not deterministic given its seed and actions"),
    "ends early": (EndsEarlyWhenRepeated, "its episode ended earlier than it did before"),
    "raises": (FailsWhenRepeated, "it raised RuntimeError while its actions were repeated"),
}


@pytest.mark.parametrize("vectorization", ["sync", "subprocess"])
@pytest.mark.parametrize("why", REASONS)
def test_an_environment_that_does_not_come_back_starts_a_new_episode(
    why: str, vectorization: Any, tmp_path: Path
) -> None:
    make_env, reason = REASONS[why]
    factories: list[EnvFactory] = [partial(Noisy, 9), partial(make_env, tmp_path / "made"), partial(Noisy, 9)]

    def fresh() -> GymnasiumBatch:
        return GymnasiumBatch(factories, 0, vectorization, num_workers=1)

    one, other = fresh(), fresh()
    actions = actions_for(one, 8)
    one.reset()
    for t in range(4):
        one.step(actions[t])
    state = through_a_file(one.state_dict())
    note = other.load_state_dict(state)
    assert note == (
        f"environment 1 did not return to its saved state, because {reason}: it starts a new episode here, so this run "
        "is not bit for bit the uninterrupted one"
    )
    assert other.restarts_next.tolist() == [False, True, False]
    kept, resumed = one.step(actions[4]), other.step(actions[4])
    assert resumed.restarting.tolist() == [False, True, False]
    assert resumed.rewards[1] == 0
    assert resumed.observations[1, 1] == 0, "the observation is not the first of an episode"
    for name in ("observations", "rewards", "truncated"):  # the others go on exactly
        np.testing.assert_array_equal(getattr(resumed, name)[[0, 2]], getattr(kept, name)[[0, 2]])
    assert other.statistics.lengths.tolist() == [5, 0, 5]
    one.close()
    other.close()


def test_an_episode_too_long_to_replay_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MIN_LIMIT", 2000)
    monkeypatch.setattr(history, "TOTAL_BYTES", 0)
    factories = [partial(Noisy, 10**6), partial(Noisy, 1500)]
    one, other = GymnasiumBatch(factories, 0), GymnasiumBatch(factories, 0)
    one.reset()
    for action in actions_for(one, 4000):
        one.step(action)
    state = one.state_dict()
    assert len(state["actions"]) < 1500, "the endless episode fills the checkpoint"
    note = other.load_state_dict(state)
    assert note is not None
    assert note.startswith("environment 0 did not return to its saved state, because its episode had more than 2,000")
    assert other.restarts_next.tolist() == [True, False]


def test_the_streams_of_environments_are_spawned_from_the_seed() -> None:
    """Each environment has the same stream in a batch of any size, and none of another seed's."""
    sequence = np.random.SeedSequence([20, zlib.crc32(b"environments")])
    expected = [int(np.random.default_rng(child).integers(2**31)) for child in sequence.spawn(3)]
    batch = GymnasiumBatch([Noisy] * 3, 20)
    first = batch.reset()
    assert batch.state_dict()["episode_seeds"] == expected
    np.testing.assert_array_equal(first[:2], GymnasiumBatch([Noisy] * 2, 20).reset())
    # And where other processes hold the others of a run.
    np.testing.assert_array_equal(first[1:], make(Noisy, 2, 20, first=1, total=3).reset())


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name.startswith("gymnasium")])
def test_runs_of_neighboring_seeds_share_no_environment(backend: str) -> None:
    firsts: set[float] = set()
    for seed in range(5):
        batch = BACKENDS[backend]([partial(Noisy, 1)] * 8, seed)
        batch.reset()
        for _ in range(6):  # every second step restarts
            firsts |= set(batch.step(np.zeros((8, 1), dtype=np.float32)).observations[:, 0].tolist())
        batch.close()
    assert len(firsts) == 5 * 8 * 6


def test_every_episode_has_its_own_seed() -> None:
    batch = GymnasiumBatch([partial(Noisy, 1)], 5)
    firsts = [float(batch.reset()[0, 0])]
    for _ in range(5):
        batch.step(np.zeros((1, 1), dtype=np.float32))
        firsts.append(float(batch.step(np.zeros((1, 1), dtype=np.float32)).observations[0, 0]))
    assert len(set(firsts)) == 6


@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_trajectories_everywhere(task: str) -> None:
    name, kwargs = TASKS[task]
    one = make(name, 3, seed=11, env_kwargs=kwargs)
    other = make(name, 3, seed=11, vectorization="subprocess", num_workers=2, env_kwargs=kwargs)
    actions = actions_for(one, 30)
    np.testing.assert_array_equal(one.reset(), other.reset())
    for action in actions:
        assert_same(one.step(action), other.step(action))
    one.close()
    other.close()


@pytest.mark.parametrize("make_env", [lambda: resolve("dm_control/cheetah/run")(), lambda: gymnasium.make("Ant-v5")])
def test_a_batch_of_one_equals_the_environment(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    batch, env = GymnasiumBatch([make_env], 4), make_env()
    observations = batch.reset()
    observation, _ = env.reset(seed=batch.state_dict()["episode_seeds"][0])
    flat = gymnasium.spaces.flatten(env.observation_space, observation)
    np.testing.assert_array_equal(observations[0], np.asarray(flat, dtype=np.float32))
    for action in actions_for(batch, 20):
        assert isinstance(env.action_space, gymnasium.spaces.Box)
        clipped = np.clip(action[0], env.action_space.low, env.action_space.high).astype(env.action_space.dtype)
        observation, reward, terminated, truncated, _ = env.step(clipped)
        step = batch.step(action)
        flat = gymnasium.spaces.flatten(env.observation_space, observation)
        np.testing.assert_array_equal(step.observations[0], np.asarray(flat, dtype=np.float32))
        assert step.rewards[0] == reward
        assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
    assert batch.observation_dim == gymnasium.spaces.flatdim(env.observation_space)
    assert batch.raw_observation_space == env.observation_space
    env.close()
    batch.close()


def test_dict_observations_of_a_real_task() -> None:
    batch = make("dm_control/cheetah/run", 2)
    assert isinstance(batch.raw_observation_space, gymnasium.spaces.Dict)
    assert batch.observation_dim == 17
    observations = batch.reset()
    assert observations.shape == (2, 17)
    assert observations.dtype == np.float32
    batch.close()


def test_a_step_does_not_overwrite_the_previous_result() -> None:
    batch = GymnasiumBatch([partial(Tiny, "terminates")], 0)
    first = batch.reset()
    kept = first.copy()
    step = batch.step(np.zeros((1, 1), dtype=np.float32))
    observations, ended = step.observations.copy(), step.terminated.copy()
    batch.step(np.zeros((1, 1), dtype=np.float32))
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(step.observations, observations)
    np.testing.assert_array_equal(step.terminated, ended)


def test_a_run_saved_with_another_backend_starts_new_episodes() -> None:
    batch = GymnasiumBatch([Noisy] * 2, 0)
    batch.reset()
    batch.step(np.zeros((2, 1), dtype=np.float32))
    note = batch.load_state_dict({"generation": 0})
    assert note == "the run was saved with another backend, so new episodes start here"
    step = batch.step(np.zeros((2, 1), dtype=np.float32))
    assert step.restarting.all()
    assert step.observations[:, 1].tolist() == [0, 0]


def test_discrete_actions_reach_the_environment() -> None:
    batch = make("CartPole-v1", 2, seed=0)
    batch.reset()
    step = batch.step(np.array([[0.0], [1.0]], dtype=np.float32))
    # Pushed to the left and to the right.
    assert step.observations[0, 1] < 0 < step.observations[1, 1]
    batch.close()


def test_the_description_names_the_backend() -> None:
    for vectorization, words in (("sync", "in process"), ("subprocess", "2 worker processes")):
        batch = GymnasiumBatch([Noisy] * 2, 0, vectorization, 2)  # type: ignore[arg-type]
        assert batch.description == f"Gymnasium, 2 environments, {words}"
        batch.close()
