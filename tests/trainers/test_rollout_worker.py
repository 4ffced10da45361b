"""Rollout workers in this process, without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva import environments
from minerva.environments import Episode, GymnasiumBatch
from minerva.environments.history import EpisodeActions, without_older_actions
from minerva.storage.replay import ReplayBuffer
from minerva.trainers.actor import Shapes
from minerva.trainers.mpo.config import MPOConfig
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.rollout_worker import RolloutWorker, Segment, Setup, check_segment
from minerva.utils.structure import StructureError
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo.small_run import same

if os.environ.get("CI") != "true":  # there it must be installed
    pytest.importorskip("ray", reason='Ray is not installed: pip install "minerva-rl[ray]"')

from minerva.trainers.rollout_workers import _State
from minerva.trainers.segment_collectors import SegmentReplayCollector, acting_weights

SHARE, STEPS, SEED = 2, 12, 5
FIELDS: dict[str, Any] = {"policy_layer_sizes": (8,), "critic_layer_sizes": (8,), "num_envs": 4, "compile": False}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A worker takes one thread for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def short() -> Any:
    return gymnasium.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=7)


def batch(first: int, count: int = SHARE) -> Any:
    return environments.make(short, count, SEED, first=first, total=4)


def builder(algorithm: str) -> Callable[[], Any]:
    env = batch(0, 1)
    shapes = Shapes(env.raw_observation_space, env.action_space, env.observation_dim)
    if algorithm == "mpo":
        return partial(MPOTrainer.build_agent, MPOConfig(**FIELDS), shapes, torch.device("cpu"))
    config = PPOConfig(**FIELDS, lstm_units=4, rollout_steps=STEPS, minibatch_size=STEPS)
    return partial(PPOTrainer.build_agent, config, shapes, torch.device("cpu"))


def worker(number: int, algorithm: str = "ppo") -> RolloutWorker:
    made = RolloutWorker(partial(batch, SHARE * number))
    made.prepare(Setup(builder(algorithm), number, STEPS, algorithm == "mpo"))
    return made


def test_a_segment_is_what_these_environments_answer_to_its_actions() -> None:
    one, alone = worker(1), batch(2)
    first, _ = one.begin(acting_weights(builder("ppo")()))
    np.testing.assert_array_equal(first, alone.reset())
    segment, _ = one.collect(acting_weights(builder("ppo")()))
    for t, step in enumerate(segment.steps()):
        again = alone.step(segment.actions[t])
        for mine, other in zip(step, again, strict=True):
            np.testing.assert_array_equal(mine, other)
    assert [(t, episode.env_index) for t, episode in segment.episodes] == [(6, 0), (6, 1)]


def test_a_worker_that_takes_over_continues_with_the_same_bits() -> None:
    weights = acting_weights(builder("ppo")())
    one, other = worker(0), worker(0)
    kept = _State(one.begin(weights)[1])
    kept.follow(one.collect(weights)[1], STEPS)
    state = kept.whole()
    other.check_state(state, "state")
    note, restarting = other.load_state_dict(state)
    assert note is None and not restarting.any()
    (mine, after), (its, after_it) = one.collect(weights), other.collect(weights)
    assert same(mine.to_plain(), its.to_plain()) and same(after, after_it)


def test_states_stay_small_and_are_put_together_whole() -> None:
    factories = [partial(Noisy, length) for length in (5, 40, 12, 11)]  # shorter and longer than a segment, and as long
    env = GymnasiumBatch(factories, SEED)
    env.reset()
    actions = EpisodeActions()
    actions.begin(env.state_dict())
    rng, longest = np.random.default_rng(0), 0
    for _ in range(9):
        for _ in range(STEPS):
            env.step(rng.normal(size=(4, 1)).astype(np.float32))
        whole = env.state_dict()
        sent = without_older_actions(whole, STEPS)
        longest = max(longest, *whole["action_counts"])
        assert len(sent["actions"]) <= 4 * STEPS
        actions.add(sent, STEPS)
        assert same(actions.whole(sent), whole)
    assert longest > 2 * STEPS


def test_workers_need_no_critic_but_a_recurrent_one() -> None:
    agent = builder("mpo")()
    assert all(name.startswith("policy.") for name in acting_weights(agent))
    recurrent = acting_weights(builder("ppo")())
    assert any("value_core" in name for name in recurrent)
    plain = PPOTrainer("Pendulum-v1", 1, "cpu", console=False, compile=False)
    names = acting_weights(plain.agent)
    plain.close()
    assert not any("value_" in name for name in names) and "obs_normalizer.mean" in names


def test_segments_are_joined_in_the_order_of_workers() -> None:
    weights = acting_weights(builder("ppo")())
    segments = []
    for number in range(2):
        one = worker(number)
        one.begin(weights)
        segments.append(one.collect(weights)[0])
    joined = Segment.join(segments)
    np.testing.assert_array_equal(joined.actions[:, :SHARE], segments[0].actions)
    np.testing.assert_array_equal(joined.observations[:, SHARE:], segments[1].observations)
    np.testing.assert_array_equal(joined.recurrent_state[SHARE:], segments[1].recurrent_state)
    assert [(t, episode.env_index) for t, episode in joined.episodes] == [(6, i) for i in range(4)]
    rest = joined.rest(5)
    assert len(rest.rewards) == STEPS - 5 and [t for t, _ in rest.episodes] == [1] * 4
    assert same(Segment.from_plain(rest.to_plain()).to_plain(), rest.to_plain())
    check_segment(rest.to_plain(), "segment", joined.rest(STEPS - 1), 4, STEPS - 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": torch.zeros(3, 2)}, "segment.rewards: must have 12 steps, got a float32 tensor"),
        ({"actions": torch.zeros(12, 2, 3)}, "segment.actions: must be a float32 tensor of shape"),
        ({"episodes": [[12, 0, 0.0, 1]]}, "segment.episodes: must be of the segment's steps and environments"),
        ({"episodes": [[0, 4, 0.0, 1]]}, "segment.episodes: must be of the segment's steps and environments"),
    ],
)
def test_a_damaged_segment_is_refused(change: dict[str, Any], message: str) -> None:
    one, weights = worker(0), acting_weights(builder("ppo")())
    one.begin(weights)
    segment, _ = one.collect(weights)
    with pytest.raises(StructureError) as caught:
        check_segment({**segment.to_plain(), **change}, "segment", segment.rest(STEPS - 1), 4, STEPS)
    assert str(caught.value).startswith(message)


class InTurns:
    """Workers of this process that hand over segments in an order that is given."""

    count, num_envs, observation_dim, observation_dtype = 2, 2 * SHARE, 3, np.dtype(np.float32)

    def __init__(self, order: list[int]) -> None:
        self.workers = [worker(number, "mpo") for number in range(2)]
        self.weights = acting_weights(builder("mpo")())
        self.order = iter(order)
        self.taken: list[tuple[NDArray[Any], Segment]] = []  # with the observations before
        self.latest: list[Any] = []

    def reset(self) -> Any:
        self.latest = [each.begin(self.weights)[0] for each in self.workers]
        return np.concatenate(self.latest)

    def take(self, stopping: Any, lead: int) -> tuple[int, Segment]:
        number = next(self.order)
        segment, _ = self.workers[number].collect(self.weights)
        self.taken.append((self.latest[number], segment))
        self.latest[number] = segment.observations[-1]
        return number, segment


def test_no_sample_crosses_from_one_asynchronous_segment_to_another_worker_s() -> None:
    workers: Any = InTurns([0, 1, 1, 0])
    replay = ReplayBuffer(1000, SHARE, 3, 1, log_probs=True)
    collector = SegmentReplayCollector(workers, replay, None, None, asynchronous=True)  # type: ignore[arg-type]
    collector.begin()
    episodes: list[Episode] = []
    for _ in range(4 * STEPS):
        assert collector.wait(lambda: False)
        episodes += collector.step().episodes
    true: dict[bytes, tuple[Any, ...]] = {}  # by the observation: what follows
    real = 0
    for before, segment in workers.taken:
        observations = np.concatenate([before[None], segment.observations])
        for t, i in np.argwhere(~segment.restarting).tolist():
            rewards = np.float32(segment.rewards[t, i])
            true[observations[t, i].tobytes()] = (segment.actions[t, i], rewards, observations[t + 1, i])
            real += 1
    assert collector.transitions == len(replay) == len(true) == real
    assert {episode.env_index for episode in episodes} == {0, 1, 2, 3} and len(episodes) == 3 * 4
    windows = replay.sample_windows(2000, 4, np.random.default_rng(0))
    for b in range(2000):
        for t in range(4):
            action, reward, following = true[windows.obs[b, t].tobytes()]
            np.testing.assert_array_equal(windows.actions[b, t], action)
            np.testing.assert_array_equal(windows.next_obs[b, t], following)
            assert windows.rewards[b, t] in (reward, 0)
            if windows.ended[b, t]:
                break
    crossing = replay.sample(2000, np.random.default_rng(1))
    assert all(row.tobytes() in true for row in crossing.obs)
