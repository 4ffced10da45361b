"""The MuJoCo backend: the same bits whatever runs beside them, exact resuming, and failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva.environments import EnvironmentFailureError, MujocoBatch, Step, make
from minerva.environments.mujoco_backend import make_mujoco_batch
from minerva.utils.structure import StructureError
from tests.environments.optional import needs
from tests.environments.tiny_envs import Noisy

pytestmark = needs("mujoco", "dm_control", "shimmy")

# One of each way to step: rollouts, with sensors, with starts that settle, with fields, with starts drawn again.
NAMES = ("Hopper-v5", "dm_control/walker/run", "dm_control/cheetah/run", "Ant-v5", "dm_control/finger/spin")
SHORT = {"Hopper-v5": 1.0, "Ant-v5": 1.0}


def actions_at(step: int, environments: range, dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Actions that depend on the step and the environment's number only."""
    rows = [np.random.default_rng([step, i]).uniform(-1, 1, dim) for i in environments]
    return np.array(rows, dtype=np.float32)


@contextmanager
def batch_of(name: str, *arguments: Any, limit: float = 7, **options: Any) -> Iterator[MujocoBatch]:
    batch = make_mujoco_batch(name, *arguments, **options)
    batch._time_limit = limit
    try:
        yield batch
    finally:
        batch.close()


def run(batch: MujocoBatch, steps: int, start: int = 0, first: int = 0) -> list[Step]:
    numbers = range(first, first + batch.num_envs)
    return [batch.step(actions_at(start + t, numbers, batch._low.shape[1])) for t in range(steps)]


def same_steps(ours: list[Step], theirs: list[Step], rows: Any = slice(None), others: Any = slice(None)) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for mine, yours in zip(one[:5], other[:5], strict=True):
            assert mine[rows].tobytes() == yours[others].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_threads_and_neighbors_change_no_bit(name: str) -> None:
    steps = {}
    for threads in (1, 2, 5):
        with batch_of(name, 8, 3, threads=threads) as batch:
            assert batch.description.endswith(f"8 environments, {threads} thread{'s' * (threads > 1)}")
            batch.reset()
            steps[threads] = run(batch, 18)
    same_steps(steps[1], steps[2])
    same_steps(steps[1], steps[5])
    assert any(step.restarting.any() for step in steps[1])
    with batch_of(name, 64, 3, threads=2) as batch:
        batch.reset()
        many = run(batch, 18)
    same_steps(steps[1], many, rows=3, others=3)
    with batch_of(name, 3, 3, threads=2, first=2) as batch:  # a part of a run of several processes
        batch.reset()
        same_steps(steps[1], run(batch, 18, first=2), rows=3, others=1)
    assert steps[1][-1].observations[0].tolist() != steps[1][-1].observations[1].tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [0, 5, 7, 8])
def test_a_resumed_batch_continues_bit_for_bit(name: str, stop: int) -> None:
    with batch_of(name, 3, 1) as batch:
        batch.reset()
        run(batch, stop)
        state = batch.state_dict()
        saved = json.loads(json.dumps({key: part for key, part in state.items() if key != "simulations"}))
        whole = run(batch, 12, start=stop)
        at_the_end = batch.state_dict()
    saved["simulations"] = {key: part.clone() for key, part in state["simulations"].items()}
    with batch_of(name, 3, 99, threads=2) as other:  # with another seed, so that all comes from the state
        other.check_state(saved, "env")
        assert other.load_state_dict(saved) is None
        same_steps(whole, run(other, 12, start=stop))
        again = other.state_dict()
    assert again.keys() == at_the_end.keys()
    for key in again.keys() - {"simulations"}:
        assert again[key] == at_the_end[key]
    for key, part in again["simulations"].items():
        assert part.numpy().tobytes() == at_the_end["simulations"][key].numpy().tobytes()
        assert part.shape == saved["simulations"][key].shape  # however long it runs


def test_the_time_limit_truncates_and_lengths_are_counted() -> None:
    with batch_of("dm_control/pendulum/swingup", 2, 0, limit=5) as batch:
        batch.reset()
        steps = run(batch, 13)
    assert [step.truncated.tolist() for step in steps] == [[t in (4, 10)] * 2 for t in range(13)]
    assert not any(step.terminated.any() for step in steps)
    assert [episode.length for step in steps for episode in step.episodes] == [5] * 4
    returns = [float(sum(step.rewards[0] for step in part)) for part in (steps[:5], steps[6:11])]
    assert [episode.episode_return for step in steps for episode in step.episodes if episode.env_index == 0] == returns


def test_the_limit_is_the_environments() -> None:
    for name, env_kwargs, limit in (
        ("Reacher-v5", {}, 50),
        ("HalfCheetah-v5", {"max_episode_steps": 9}, 9),
        ("dm_control/humanoid/run", {}, 1000),
    ):
        batch = make_mujoco_batch(name, 1, 0, env_kwargs=env_kwargs)
        assert batch._time_limit == limit
        batch.close()


def test_actions_are_clipped_to_the_box() -> None:
    with batch_of("HalfCheetah-v5", 2, 0) as one, batch_of("HalfCheetah-v5", 2, 0) as other:
        for batch, scale in ((one, 100.0), (other, 1.0)):
            batch.reset()
            step = batch.step(np.full((2, 6), scale, dtype=np.float32))
        first = one.step(np.full((2, 6), -50.0, dtype=np.float32))
        step = other.step(np.full((2, 6), -1.0, dtype=np.float32))
        np.testing.assert_array_equal(first.observations, step.observations)
        np.testing.assert_array_equal(first.rewards, step.rewards)


def test_a_step_does_not_overwrite_the_previous_result() -> None:
    with batch_of("Hopper-v5", 2, 0) as batch:
        first = batch.reset()
        kept = first.copy()
        step = run(batch, 1)[0]
        copies = [part.copy() for part in step[:5]]
        run(batch, 9)
        np.testing.assert_array_equal(first, kept)
        for part, copied in zip(step[:5], copies, strict=True):
            np.testing.assert_array_equal(part, copied)


def test_a_reset_starts_over() -> None:
    with batch_of("Hopper-v5", 2, 0) as batch:
        first = batch.reset()
        run(batch, 3)
        assert not np.isin(batch.reset(), first).any()
        assert batch.restarts_next.tolist() == [False, False]
        ended = [episode.length for step in run(batch, 7) for episode in step.episodes]
        assert ended == [7, 7]


# Failures


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["HalfCheetah-v5", "dm_control/cheetah/run", "Ant-v5"])
@pytest.mark.parametrize("allow", [False, True])
def test_a_simulation_that_diverges_is_reported(
    name: str, allow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log
    with batch_of(name, 4, 0, allow_non_finite=allow) as batch:
        batch.reset()
        batch._simulations.physics[2, -1] = 1e12  # a velocity
        before = batch.state_dict()
        with pytest.raises(EnvironmentFailureError, match="environment 2: the simulation diverged"):
            run(batch, 1)
        with pytest.raises(EnvironmentFailureError, match="an environment failed before"):
            run(batch, 1)
        assert torch.equal(batch.state_dict()["simulations"]["physics"], before["simulations"]["physics"])


def test_a_failed_restart_has_drawn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with batch_of("Hopper-v5", 2, 0, limit=3) as batch:
        batch.reset()
        run(batch, 3)
        before = batch.state_dict()
        assert before["ended"] == [True, True]
        monkeypatch.setattr(batch.task, "observation", lambda now: now.qpos * np.nan)
        with pytest.raises(EnvironmentFailureError, match=r"the task's observations must be \(2, 11\) numbers"):
            run(batch, 1)
        after = batch.state_dict()
    assert after["generators"] == before["generators"]
    assert torch.equal(after["simulations"]["physics"], before["simulations"]["physics"])


def test_values_that_are_not_finite() -> None:
    for allow in (False, True):
        with batch_of("HalfCheetah-v5", 2, 0, allow_non_finite=allow) as batch:
            batch.reset()
            actions = np.zeros((2, 6), dtype=np.float32)
            actions[1, 3] = np.nan  # as MuJoCo itself, it applies no control; the cost of controls is not a number
            if not allow:
                with pytest.raises(EnvironmentFailureError, match="environment 1 returned the reward nan"):
                    batch.step(actions)
                continue
            step = batch.step(actions)
            assert np.isnan(step.rewards).tolist() == [False, True]
            assert np.isfinite(step.observations).all()


def test_a_task_or_argument_that_it_does_not_have_is_refused() -> None:
    def refused(env: Any, env_kwargs: dict[str, Any] | None = None) -> str:
        with pytest.raises(ValueError, match=r"^backend: .*; use backend gymnasium, or auto") as caught:
            make(env, 2, env_kwargs=env_kwargs, backend="mujoco")
        return str(caught.value)

    assert "the MuJoCo backend has no task CartPole-v1" in refused("CartPole-v1")
    assert "does not accept xml_file (in env_kwargs)" in refused("HalfCheetah-v5", {"xml_file": "mine.xml"})
    assert "runs tasks by their id, not environments from your own function" in refused(Noisy)
    assert "does not accept task_kwargs" in refused("dm_control/cheetah/run", {"task_kwargs": {"time_limit": 3}})
    with pytest.raises(ValueError, match="env: no environment is called 'HalfCheeta-v5'"):
        make("HalfCheeta-v5", 2, backend="mujoco")
    with pytest.raises(ValueError, match=r"Ant-v5 could not be made with .*main_body"):
        make("Ant-v5", 2, env_kwargs={"main_body": "tail"}, backend="mujoco")


def test_states_of_other_backends_start_new_episodes() -> None:
    with batch_of("Hopper-v5", 2, 0) as batch:
        other = make("Hopper-v5", 2, 0)
        other.reset()
        batch.reset()
        run(batch, 2)
        for state in (other.state_dict(), {"generation": 1}):
            batch.check_state(state, "env")
            note = batch.load_state_dict(state)
            assert note == "the run was saved with another backend, so new episodes start here"
            assert batch.restarts_next.tolist() == [True, True]
        other.check_state(batch.state_dict(), "env")
        assert "another backend" in str(other.load_state_dict(batch.state_dict()))
        other.close()
        wrong = batch.state_dict()
        wrong["simulations"]["physics"] = wrong["simulations"]["physics"][:1]
        with pytest.raises(StructureError, match=r"env\.simulations\.physics: must be a float64 tensor"):
            batch.check_state(wrong, "env")
