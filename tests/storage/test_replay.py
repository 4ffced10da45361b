from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from minerva import environments
from minerva.storage.replay import ReplayBuffer, Transitions, Windows
from tests.storage.oracle_replay import Oracle, StepData, Stream

OBS, A = 3, 2
GAMMA = 0.9


def begun(stream: Stream, capacity: int) -> tuple[ReplayBuffer, Oracle]:
    num_envs, obs_dim, action_dim = stream.shape
    replay = ReplayBuffer(capacity, num_envs, obs_dim, action_dim, log_probs=True)
    first = stream.observations()
    replay.begin(first)
    return replay, Oracle(capacity // num_envs * num_envs, first)


def check_transitions(batch: Transitions, oracle: Oracle, n_step: int) -> None:
    windows = oracle.windows(n_step)
    for obs, action, reward, discount, next_obs in zip(*batch, strict=True):
        window = windows[float(obs[0])]
        first, last = window[0], window[-1]
        assert obs.tolist() == first.obs.tolist()
        assert action.tolist() == first.action.tolist()
        assert next_obs.tolist() == last.next_obs.tolist()
        assert reward == pytest.approx(sum(GAMMA**i * step.reward for i, step in enumerate(window)), abs=1e-5)
        assert discount == pytest.approx(0.0 if last.terminated else GAMMA ** len(window), abs=1e-6)


def check_windows(batch: Windows, oracle: Oracle, length: int) -> None:
    windows = oracle.windows(length)
    assert batch.obs.shape[1] == length
    for b, (start, *_) in enumerate(batch.obs[:, 0]):
        window = windows[float(start)]
        k = len(window)
        padded = [*window, *[window[-1]] * (length - k)]
        assert batch.obs[b].tolist() == [step.obs.tolist() for step in padded]
        assert batch.next_obs[b].tolist() == [step.next_obs.tolist() for step in padded]
        assert batch.actions[b].tolist() == [step.action.tolist() for step in padded]
        assert batch.log_probs[b].tolist() == [step.log_prob for step in padded]
        assert batch.terminated[b].tolist() == [step.terminated for step in padded]
        assert batch.rewards[b].tolist() == [np.float32(step.reward) for step in window] + [0.0] * (length - k)
        ended = [step.ended for step in window]
        if k < length:
            ended[-1] = True
        assert batch.ended[b].tolist() == ended + [True] * (length - k)


@pytest.mark.parametrize("broken", [0.0, 0.05])
@pytest.mark.parametrize("end", [0.02, 0.25])
@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 1), (1, 20), (3, 3), (3, 60), (3, 62)])
def test_samples_equal_those_from_whole_episodes(num_envs: int, capacity: int, end: float, broken: float) -> None:
    stream = Stream(num_envs, OBS, A, seed=capacity, end=end, broken=broken)
    replay, oracle = begun(stream, capacity)
    random = np.random.default_rng(7)
    for step in range(250):  # several times around the ring
        given = stream.step()
        assert replay.add(*given) == oracle.add(given)
        held = oracle.windows(1)
        assert len(replay) == len(held) <= replay.capacity <= capacity
        assert replay.dropped == oracle.dropped
        assert np.array_equal(replay.current_obs, given.next_obs, equal_nan=True)
        if held and (step < 30 or step % 25 == 0):
            for length in (1, 2, 5, 70):
                check_transitions(replay.sample(40, random, length, GAMMA), oracle, length)
                check_windows(replay.sample_windows(40, length, random), oracle, length)
    drawn = set(replay.sample(2_000, random).obs[:, 0].tolist()) if held else set()
    assert drawn == set(held)  # every usable transition is sampled


def test_all_samples_are_finite() -> None:
    stream = Stream(3, OBS, A, seed=1, broken=0.1)
    replay, _ = begun(stream, 60)
    for _ in range(100):
        replay.add(*stream.step())
    random = np.random.default_rng(0)
    assert replay.dropped > 20
    for batch in (replay.sample(500, random, n_step=5), replay.sample_windows(500, 5, random)):
        assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in batch)


@pytest.mark.parametrize("end", [0.05, 0.5])
def test_transitions_are_sampled_uniformly(end: float) -> None:
    stream = Stream(3, OBS, A, seed=2, end=end, broken=0.02)
    replay, oracle = begun(stream, 90)
    for _ in range(100):
        oracle.add(given := stream.step())
        replay.add(*given)
    starts = sorted(oracle.windows(1))
    random = np.random.default_rng(3)
    for obs in (replay.sample(30_000, random, 3).obs, replay.sample_windows(30_000, 3, random).obs[:, 0]):
        drawn, counts = np.unique(obs[:, 0], return_counts=True)
        assert drawn.tolist() == starts
        assert stats.chisquare(counts).pvalue > 1e-3


def test_the_same_generator_gives_the_same_samples() -> None:
    stream = Stream(2, OBS, A, seed=4)
    replay, _ = begun(stream, 30)
    for _ in range(40):
        replay.add(*stream.step())
    one, two, other = (replay.sample(50, np.random.default_rng(seed), 3) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(one, two, strict=True))
    assert not np.array_equal(one.obs, other.obs)


# By hand


def filled(capacity: int, ends: str, rewards: list[float] | None = None) -> ReplayBuffer:
    """Fill a buffer: obs, action and reward t are t; "t" is terminated, "u" truncated, "r" restarting."""
    replay = ReplayBuffer(capacity, 1, 1, 1, log_probs=True)
    replay.begin([[0.0]])
    for t, end in enumerate(ends):
        reward = t if rewards is None else rewards[t]
        terminated, truncated, restarting = (np.array([end == kind]) for kind in "tur")
        replay.add([[t]], [[t + 1.0]], [reward], terminated, truncated, restarting, [-t])
    return replay


def by_start(replay: ReplayBuffer, n_step: int) -> dict[float, tuple[float, float, float]]:
    batch = replay.sample(300, np.random.default_rng(0), n_step, 0.5)
    ends = zip(batch.rewards.tolist(), batch.discounts.tolist(), batch.next_obs[:, 0].tolist(), strict=True)
    return dict(zip(batch.obs[:, 0].tolist(), ends, strict=True))


@pytest.mark.formula(
    "minerva.storage.replay",
    r"\left( \gamma^0, \gamma^1, \dots, \gamma^n \right)",
    r"R = \sum_{i=0}^{k-1} \gamma^i r_{t+i}, \quad k \le n",
    r"\gamma^k (1 - d)",
)
def test_three_step_returns_by_hand() -> None:
    assert by_start(filled(20, "--tr-ur---"), 3) == {
        0: (0 + 0.5 * 1 + 0.25 * 2, 0, 3),  # full length, terminated
        1: (1 + 0.5 * 2, 0, 3),
        2: (2, 0, 3),
        4: (4 + 0.5 * 5, 0.25, 6),  # truncated: bootstraps from its last observation
        5: (5, 0.5, 6),
        7: (7 + 0.5 * 8 + 0.25 * 9, 0.125, 10),
        8: (8 + 0.5 * 9, 0.25, 10),  # the newest: bootstraps from the current observation
        9: (9, 0.5, 10),
    }


def test_windows_stop_at_the_head_of_the_ring() -> None:
    replay = filled(4, "-------")  # five slots: 3, 4, 5, 6, and the current 7 where 2 was
    assert by_start(replay, 2) == {3: (5, 0.25, 5), 4: (6.5, 0.25, 6), 5: (8, 0.25, 7), 6: (6, 0.5, 7)}


def test_an_end_cuts_even_where_no_restarting_step_follows() -> None:
    assert by_start(filled(20, "-u-t-"), 3) == {
        0: (0.5, 0.25, 2), 1: (1, 0.5, 2), 2: (3.5, 0, 4), 3: (3, 0, 4), 4: (4, 0.5, 5),
    }  # fmt: skip


def test_a_dropped_transition_by_hand() -> None:
    replay = filled(20, "-----", rewards=[0, 1, np.nan, 3, 4])
    assert replay.dropped == 1
    assert by_start(replay, 5) == {0: (0.5, 0.25, 2), 1: (1, 0.5, 2), 3: (5, 0.25, 5), 4: (4, 0.5, 5)}


def test_a_window_by_hand() -> None:
    batch = filled(20, "-u").sample_windows(50, 4, np.random.default_rng(0))
    b = int(np.flatnonzero(batch.obs[:, 0, 0] == 0)[0])
    assert batch.obs[b, :, 0].tolist() == batch.actions[b, :, 0].tolist() == [0, 1, 1, 1]
    assert batch.next_obs[b, :, 0].tolist() == [1, 2, 2, 2]
    assert batch.log_probs[b].tolist() == [0, -1, -1, -1]
    assert batch.rewards[b].tolist() == [0, 1, 0, 0]
    assert batch.terminated[b].tolist() == [0, 0, 0, 0]
    assert batch.ended[b].tolist() == [0, 1, 1, 1]


def test_a_full_window_without_an_end_is_not_marked_as_ended() -> None:
    batch = filled(20, "----").sample_windows(50, 2, np.random.default_rng(0))
    newest = batch.obs[:, 0, 0] == 3
    assert batch.ended[newest].tolist() == [[1, 1]] * newest.sum()
    assert batch.ended[~newest].tolist() == [[0, 0]] * (~newest).sum()


def test_new_episodes_are_cut_off_from_stored_ones() -> None:
    replay = filled(20, "--")
    replay.begin([[50.0]])
    assert len(replay) == 2
    assert replay.current_obs.tolist() == [[50]]
    assert by_start(replay, 5) == {0: (0.5, 0.25, 2), 1: (1, 0.5, 2)}
    no = np.array([False])
    replay.add([[0]], [[51]], [9], no, no, no, [0])
    assert by_start(replay, 5) == {0: (0.5, 0.25, 2), 1: (1, 0.5, 2), 50: (9, 0.5, 51)}
    assert replay.dropped == 0


def test_values_that_overflow_float32_are_dropped() -> None:
    no = np.zeros(4, np.bool_)
    replay = ReplayBuffer(100, 4, 1, 1)
    replay.begin(np.zeros((4, 1)))
    actions, next_obs, rewards = np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(4)
    actions[0], next_obs[1], rewards[2] = 1e200, -1e200, 1e200
    assert replay.add(actions, next_obs, rewards, no, no, no) == 1
    assert (len(replay), replay.dropped) == (1, 3)
    assert replay.add(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(4), no, no, no) == 3
    assert replay.dropped == 4  # this step starts from the observation that was too large


def test_a_restarting_step_is_neither_a_transition_nor_dropped() -> None:
    replay = filled(20, "-tr", rewards=[0, 1, np.nan])
    assert (len(replay), replay.dropped) == (2, 0)


# Real episodes


def test_short_episodes_of_a_real_environment() -> None:
    env = environments.make("InvertedPendulum-v5", 2, 0, "sync", None, {})
    try:
        first = env.reset()
        replay, oracle = ReplayBuffer(150, 2, env.observation_dim, 1, log_probs=True), Oracle(150, first)
        replay.begin(first)
        random = np.random.default_rng(0)
        for _ in range(200):
            actions = random.normal(scale=3, size=(2, 1)).astype(np.float32)
            step = env.step(actions)
            given = StepData(actions, step.observations, *step[1:5], log_probs=np.zeros(2, np.float32))
            assert replay.add(*given) == oracle.add(given)
    finally:
        env.close()
    assert len(replay) == len(oracle.windows(1)) == 150  # although restarting steps passed through
    check_transitions(replay.sample(500, random, 5, GAMMA), oracle, 5)
    check_windows(replay.sample_windows(500, 5, random), oracle, 5)


# Size


def test_a_million_transitions_of_cheetah_run_take_under_250_mb() -> None:
    replay = ReplayBuffer(1_000_000, 1, obs_dim=17, action_dim=6, log_probs=True)
    assert replay.capacity == 1_000_000
    arrays = [array for array in vars(replay).values() if isinstance(array, np.ndarray)]
    assert replay.obs.nbytes < replay.nbytes < 250e6
    assert sum(array.nbytes for array in arrays) < 250e6


def test_log_probabilities_use_ram_only_if_requested() -> None:
    plain, wide = (ReplayBuffer(100, 1, 2, 1, log_probs) for log_probs in (False, True))
    assert wide.nbytes - plain.nbytes == 4 * 101


@pytest.mark.parametrize(("capacity", "num_envs", "holds"), [(10, 1, 10), (10, 3, 9), (3, 3, 3), (8, 4, 8)])
def test_it_holds_no_more_than_its_capacity(capacity: int, num_envs: int, holds: int) -> None:
    replay, _ = begun(stream := Stream(num_envs, OBS, A, seed=0, end=0.0), capacity)
    assert replay.capacity == holds
    sizes = [len(replay)]
    for _ in range(30):
        assert replay.add(*stream.step()) == num_envs
        sizes.append(len(replay))
    assert sizes == [min(holds, added) for added in itertools.islice(itertools.count(0, num_envs), 31)]


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 5, 100])
def test_restarting_steps_do_not_count_towards_the_capacity(length: int, num_envs: int) -> None:
    replay = ReplayBuffer(60, num_envs, 1, 1)
    replay.begin(np.zeros((num_envs, 1)))
    zeros, no = np.zeros((num_envs, 1)), np.zeros(num_envs, np.bool_)
    real: list[float] = []
    for t in range(400):
        restarts, ends = t % (length + 1) == length, t % (length + 1) == length - 1
        replay.add(zeros, zeros + t + 1, zeros[:, 0], no | ends, no, no | restarts)
        real += [float(t)] * (num_envs * (not restarts))
        assert len(replay) == min(len(real), 60)
        if t % 57 == 56:
            drawn = replay.sample(2_000, np.random.default_rng(0)).obs[:, 0]
            assert set(drawn.tolist()) == set(real[-60:])
    # Two slots per transition where episodes have one step, and close to one where they are long.
    assert replay.length <= 60 // num_envs * (1 + 1 / length) + 4


def test_a_buffer_of_transitions_that_are_not_finite_does_not_grow_without_bound() -> None:
    replay, no = ReplayBuffer(100, 1, 1, 1), np.zeros(1, np.bool_)
    replay.begin([[0.0]])
    for t in range(2_000):
        replay.add([[0]], [[t + 1]], [t if t % 50 == 0 else np.nan], no, no, no)
    assert replay.length <= 4 * 101
    assert 7 <= len(replay) <= 9  # those of the newest 400 steps
    assert set(replay.sample(100, np.random.default_rng(0)).obs[:, 0]) <= set(range(1_500, 2_000, 50))


# Errors


@pytest.mark.parametrize(("capacity", "num_envs"), [(0, 1), (-5, 1), (3, 4)])
def test_a_capacity_too_small_for_the_environments(capacity: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match=rf"capacity: .*\({num_envs}\), got {capacity}; make it larger"):
        ReplayBuffer(capacity, num_envs, OBS, A)


def test_a_capacity_too_large_for_the_machine() -> None:
    with pytest.raises(MemoryError):
        ReplayBuffer(10**15, 1, 17, 6)


def test_sampling_from_an_empty_buffer() -> None:
    replay = ReplayBuffer(10, 1, 1, 1, log_probs=True)
    replay.begin([[0.0]])
    random = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"must hold at least one transition to sample, got 0 .* add some first"):
        replay.sample(1, random)
    no = np.array([False])
    replay.add([[0]], [[1]], [np.nan], no, no, no, [0])
    with pytest.raises(ValueError, match=r"got 0 \(and 1 that were not finite\)"):
        replay.sample_windows(1, 2, random)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_window_of_no_steps(steps: int) -> None:
    replay = filled(5, "--")
    with pytest.raises(ValueError, match=f"window: must be at least 1 step long, got {steps}"):
        replay.sample(3, np.random.default_rng(0), n_step=steps)


def test_log_probabilities_that_are_missing_or_unexpected() -> None:
    no = np.array([False])
    for wanted in (True, False):
        replay = ReplayBuffer(10, 1, 1, 1, log_probs=wanted)
        replay.begin([[0.0]])
        with pytest.raises(ValueError, match="log_probs: must be given"):
            replay.add([[0]], [[1]], [0], no, no, no, None if wanted else [0.0])
    replay.add([[0]], [[1]], [0], no, no, no)
    with pytest.raises(ValueError, match="log_probs: windows need them"):
        replay.sample_windows(1, 2, np.random.default_rng(0))
