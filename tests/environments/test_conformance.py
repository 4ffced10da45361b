"""The conformance suite: check the guarantees of docs/conformance.md on every backend.

The expected values come from the episodes: at step t of environment i, whose episodes have L steps, episode
k = t // (L + 1) is running, and t % (L + 1) of its steps are done. Flags of a backend are never used to compute what
that backend should return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.environments import Episode, RewardNormalizer, Step
from minerva.objectives.returns import Advantages, bootstrapped_returns, generalized_advantage_estimation
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.collector import RolloutCollector
from minerva.trainers.ppo.agent import Agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Batch, coefficients_at, make_batch, minibatch_losses
from minerva.utils.running_norm import RunningNorm
from tests.environments.backends import BACKENDS
from tests.environments.tiny_envs import KINDS, Tiny, reward_of

STEPS = 13  # per rollout: its end cuts episodes of every length somewhere
ROLLOUTS = 2
CASES = [
    (backend, kind, num_envs)
    for backend in BACKENDS
    for kind in KINDS
    for num_envs in (1, 3)
    if not (backend == "gymnasium, 2 workers" and num_envs == 1)
]
GAMMA, LAMBDA = 0.5, 0.5  # every product and sum below is exact in float64

every_case = pytest.mark.parametrize(("backend", "kind", "num_envs"), CASES)
Array = NDArray[np.float64]
EstimatorName = Literal["gae", "returns"]


# Expected values


class Moment(NamedTuple):
    """The expected result of one step of one environment."""

    observation: tuple[float, float, float, float]
    reward: float
    terminated: bool
    truncated: bool
    restarting: bool


def action_at(t: int, index: int) -> float:
    return ((3 * t + 5 * index) % 16 - 8) / 4  # from -2 to 1.75: some are outside the box


def expected(kind: str, index: int, t: int) -> Moment:
    length = KINDS[kind].length_of(index)
    episode, taken = divmod(t, length + 1)
    if taken == length:
        return Moment((index, episode + 1, 0, 0), 0.0, False, False, True)
    endings = KINDS[kind].endings
    terminated, truncated = endings[episode % len(endings)] if taken + 1 == length else (False, False)
    action = min(1.0, max(-1.0, action_at(t, index)))
    reward = reward_of(index, episode, taken + 1)
    return Moment((index, episode, taken + 1, action), reward, terminated, truncated, False)


def expected_observation(kind: str, index: int, t: int) -> tuple[float, float, float, float]:
    """Return the observation before step t."""
    return (index, 0, 0, 0) if t == 0 else expected(kind, index, t - 1).observation


class Piece(NamedTuple):
    """The real steps of one episode that fall into one rollout."""

    env: int
    times: range
    terminated: bool  # whether its last step terminated the episode


def pieces(kind: str, num_envs: int, start: int, stop: int) -> Iterator[Piece]:
    """Split the steps from start to stop into episodes, without restarting steps."""
    for index in range(num_envs):
        length = KINDS[kind].length_of(index)
        for episode in range(stop // (length + 1) + 1):
            first = episode * (length + 1)
            times = range(max(first, start), min(first + length, stop))
            if times:
                whole = times.stop == first + length
                yield Piece(index, times, whole and KINDS[kind].endings[episode % len(KINDS[kind].endings)][0])


def expected_estimates(
    kind: str, start: int, stop: int, values: Array, gamma: float, lam: float | None
) -> tuple[Array, Array]:
    """Compute advantages and returns by explicit sums over each piece, NaN where restarting.

    Without `lam`, advantages are discounted returns minus values. `values` are of the observations before steps start,
    …, stop, ``[T+1, N]``.
    """
    advantages = np.full((stop - start, values.shape[1]), np.nan)
    returns = advantages.copy()
    for index, times, terminated in pieces(kind, values.shape[1], start, stop):
        v = [values[t - start, index] for t in times]
        v_last = 0.0 if terminated else values[times.stop - start, index]
        r = [expected(kind, index, t).reward for t in times]
        deltas = [r_j + gamma * v_next - v_j for r_j, v_j, v_next in zip(r, v, [*v[1:], v_last], strict=True)]
        for j, t in enumerate(times):
            if lam is None:
                tail = r[j:]
                total = sum(gamma**n * x for n, x in enumerate(tail)) + gamma ** len(tail) * v_last
                advantage = total - v[j]
            else:
                advantage = sum((gamma * lam) ** n * delta for n, delta in enumerate(deltas[j:]))
                total = advantage + v[j]
            advantages[t - start, index], returns[t - start, index] = advantage, total
    return advantages, returns


# Collected data


class Transcript(NamedTuple):
    """The data that a real collector gets from a backend."""

    steps: list[Step]
    rollouts: list[RolloutBuffer]
    obs_normalizer: RunningNorm | None
    reward_normalizer: RewardNormalizer | None


@cache
def transcript(backend: str, kind: str, num_envs: int, normalize: bool = False) -> Transcript:
    factories = [partial(Tiny, kind, index) for index in range(num_envs)]
    env = BACKENDS[backend](factories, 7)
    moment = 0

    def act(obs: Any, recurrent_state: Any, episode_starts: Any) -> tuple[Any, Any, None]:
        nonlocal moment
        actions = [[action_at(moment, index)] for index in range(num_envs)]
        moment += 1
        return np.array(actions, dtype=np.float32), recurrent_state, None

    obs_normalizer = RunningNorm(4) if normalize else None
    reward_normalizer = RewardNormalizer(num_envs, GAMMA) if normalize else None
    rollout = RolloutBuffer(STEPS, num_envs, env.observation_dim, 1, torch.device("cpu"))
    collector = RolloutCollector(env, rollout, act, obs_normalizer, reward_normalizer)
    steps: list[Step] = []
    rollouts: list[RolloutBuffer] = []
    try:
        collector.begin()
        for _ in range(ROLLOUTS):
            while not rollout.full:
                steps.append(collector.step())
            kept = RolloutBuffer(STEPS, num_envs, env.observation_dim, 1, torch.device("cpu"))
            kept.load_state_dict(rollout.state_dict())
            rollouts.append(kept)
            rollout.carry_over()
    finally:
        env.close()
    return Transcript(steps, rollouts, obs_normalizer, reward_normalizer)


def value_of(obs: Tensor) -> Tensor:
    """Compute the value of an exact critic that differs for all observations."""
    return (obs.double() * torch.tensor([2.0, 0.25, -0.5, 0.125], dtype=torch.float64)).sum(-1) + 3


# The guarantees


@every_case
def test_steps_are_the_episodes_one_after_the_other(backend: str, kind: str, num_envs: int) -> None:
    for t, step in enumerate(transcript(backend, kind, num_envs).steps):
        moments = [expected(kind, index, t) for index in range(num_envs)]
        assert step.observations.dtype == np.float32
        assert step.observations.tolist() == [list(moment.observation) for moment in moments]
        assert step.rewards.tolist() == [moment.reward for moment in moments]
        assert step.terminated.tolist() == [moment.terminated for moment in moments]
        assert step.truncated.tolist() == [moment.truncated for moment in moments]
        assert step.restarting.tolist() == [moment.restarting for moment in moments]


@every_case
def test_episode_statistics_use_raw_rewards(backend: str, kind: str, num_envs: int) -> None:
    for normalize in (False, True):
        ended = [episode for step in transcript(backend, kind, num_envs, normalize).steps for episode in step.episodes]
        by_hand = []
        for index in range(num_envs):
            length = KINDS[kind].length_of(index)
            # An episode ends with its last real step: the restarting step belongs to no episode.
            for episode in range((ROLLOUTS * STEPS + 1) // (length + 1)):
                total = sum(reward_of(index, episode, step) for step in range(1, length + 1))
                by_hand.append(Episode(index, total, length))
        assert sorted(ended) == sorted(by_hand)


@every_case
def test_a_rollout_holds_the_observations_actions_and_results(backend: str, kind: str, num_envs: int) -> None:
    for number, rollout in enumerate(transcript(backend, kind, num_envs).rollouts):
        start, envs = number * STEPS, range(num_envs)
        obs = [[list(expected_observation(kind, i, start + t)) for i in envs] for t in range(STEPS + 1)]
        moments = [[expected(kind, i, start + t) for i in envs] for t in range(STEPS)]
        assert rollout.obs.tolist() == obs
        # The actions of the policy, before clipping.
        assert rollout.actions.tolist() == [[[action_at(start + t, i)] for i in envs] for t in range(STEPS)]
        assert rollout.rewards.tolist() == [[moment.reward for moment in row] for row in moments]
        assert rollout.terminated.tolist() == [[moment.terminated for moment in row] for row in moments]
        assert rollout.truncated.tolist() == [[moment.truncated for moment in row] for row in moments]
        assert rollout.restarting.tolist() == [[moment.restarting for moment in row] for row in moments]


Estimator = Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Advantages]


def check_estimates(case: tuple[str, str, int], estimator: Estimator, lam: float | None) -> None:
    _, kind, num_envs = case
    for number, rollout in enumerate(transcript(*case).rollouts):
        start = number * STEPS
        values = value_of(rollout.obs)
        advantages, returns = expected_estimates(kind, start, start + STEPS, values.numpy(), GAMMA, lam)
        got = estimator(
            rollout.rewards.double(), values, rollout.terminated.double(), rollout.truncated.double(), GAMMA, LAMBDA
        )
        real = ~np.isnan(advantages)
        assert real.sum() > STEPS * num_envs // 3
        np.testing.assert_array_equal(got.advantages.numpy()[real], advantages[real])
        np.testing.assert_array_equal(got.returns.numpy()[real], returns[real])


def returns_estimator(r: Tensor, v: Tensor, d: Tensor, u: Tensor, gamma: float, lam: float) -> Advantages:
    return bootstrapped_returns(r, v, d, u, gamma)


@every_case
def test_generalized_advantages_are_exact(backend: str, kind: str, num_envs: int) -> None:
    check_estimates((backend, kind, num_envs), generalized_advantage_estimation, LAMBDA)


@every_case
def test_discounted_returns_are_exact(backend: str, kind: str, num_envs: int) -> None:
    check_estimates((backend, kind, num_envs), returns_estimator, None)


def check_batch(
    case: tuple[str, str, int], estimator: EstimatorName, spoil: Callable[[Batch], Batch] = lambda batch: batch
) -> None:
    """Check the batch of PPO's update, and that its losses ignore restarting steps."""
    _, kind, num_envs = case
    config = PPOConfig(
        rollout_steps=STEPS, num_envs=num_envs, minibatch_size=1, advantage_estimator=estimator, ent_coef=0.01
    )
    torch.manual_seed(0)
    agent = Agent(4, 1, (8,), (8,), normalize_obs=False)
    for number, rollout in enumerate(transcript(*case).rollouts):
        start = number * STEPS
        batch = spoil(make_batch(agent.policy, rollout, config))
        with torch.no_grad():
            inputs = rollout.obs, rollout.first_recurrent_state, rollout.episode_starts
            values = agent.policy.forward_sequence(*inputs).value.double().numpy()
        lam = config.gae_lambda if estimator == "gae" else None
        advantages, returns = expected_estimates(kind, start, start + STEPS, values, config.gamma, lam)
        real = ~np.isnan(advantages).flatten()
        assert batch.weights.tolist() == real.astype(float).tolist()
        np.testing.assert_allclose(batch.advantages.numpy()[real], advantages.flatten()[real], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch.returns.numpy()[real], returns.flatten()[real], rtol=1e-5, atol=1e-5)
        # Change the policy a little, so that no term of the loss is trivial.
        with torch.no_grad():
            agent.actor_logstd.add_(0.1)
        filtered = Batch(*(part[torch.from_numpy(real)] for part in batch))
        garbage = torch.where(batch.weights == 1, 0.0, 77.0)
        spoiled = batch._replace(
            advantages=batch.advantages + garbage,
            returns=batch.returns - garbage,
            log_probs=batch.log_probs + garbage / 77,
            values=batch.values + garbage,
        )
        coefficients = coefficients_at(1.0, config, batch.values)
        _, losses = minibatch_losses(agent.policy, batch, config, coefficients)
        for other in (filtered, spoiled):
            torch.testing.assert_close(losses, minibatch_losses(agent.policy, other, config, coefficients)[1])


@every_case
def test_ppo_learns_only_from_real_steps(backend: str, kind: str, num_envs: int) -> None:
    check_batch((backend, kind, num_envs), "gae")
    check_batch((backend, kind, num_envs), "returns")


def moments_with_prior(samples: Array) -> tuple[Array, Array]:
    """Compute mean and variance of the samples ``[n, O]`` plus 1e-4 of a sample with mean 0 and variance 1."""
    total = len(samples) + 1e-4
    mean = samples.sum(0) / total
    variance = (((samples - mean) ** 2).sum(0) + 1e-4 * (1 + mean**2)) / total
    return mean, variance


@every_case
def test_the_normalizer_gets_each_observation_once(backend: str, kind: str, num_envs: int) -> None:
    result = transcript(backend, kind, num_envs, normalize=True)
    seen: list[tuple[float, ...]] = []
    for t in range(ROLLOUTS * STEPS + 1):
        now = [expected_observation(kind, index, t) for index in range(num_envs)]
        seen += now
        mean, variance = moments_with_prior(np.array(seen))
        normalized = np.clip((np.array(now) - mean) / np.sqrt(variance + 1e-8), -10, 10)
        for number, rollout in enumerate(result.rollouts):
            if number * STEPS <= t <= (number + 1) * STEPS:
                np.testing.assert_allclose(rollout.obs[t - number * STEPS], normalized, rtol=1e-5, atol=1e-5)
    assert result.obs_normalizer is not None
    assert result.obs_normalizer.count.item() == pytest.approx(len(seen) + 1e-4, rel=1e-14)
    np.testing.assert_allclose(result.obs_normalizer.mean, mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(result.obs_normalizer.var, variance, rtol=1e-12, atol=1e-13)


@every_case
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(backend: str, kind: str, num_envs: int) -> None:
    result = transcript(backend, kind, num_envs, normalize=True)
    returns: dict[int, list[float]] = {}  # of real steps, by step
    for piece in pieces(kind, num_envs, 0, ROLLOUTS * STEPS):
        rewards = [expected(kind, piece.env, t).reward for t in piece.times]
        for j, t in enumerate(piece.times):
            discounted = sum(GAMMA ** (j - n) * reward for n, reward in enumerate(rewards[: j + 1]))
            returns.setdefault(t, []).append(discounted)
    seen: list[float] = []
    for t in range(ROLLOUTS * STEPS):
        seen += returns.get(t, [])
        _, variance = moments_with_prior(np.array(seen)[:, None])
        raw = np.array([expected(kind, index, t).reward for index in range(num_envs)])
        normalized = np.clip(raw / np.sqrt(variance + 1e-8), -10, 10)
        number, row = divmod(t, STEPS)
        np.testing.assert_allclose(result.rollouts[number].rewards[row], normalized, rtol=1e-6)
    normalizer = result.reward_normalizer
    assert normalizer is not None
    mean, variance = moments_with_prior(np.array(seen)[:, None])
    assert normalizer.statistics.count.item() == pytest.approx(len(seen) + 1e-4, rel=1e-14)
    np.testing.assert_allclose(normalizer.statistics.mean, mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(normalizer.statistics.var, variance, rtol=1e-12)


# The suite detects the three classic mistakes


def no_bootstrap_at_a_time_limit(r: Tensor, v: Tensor, d: Tensor, u: Tensor, gamma: float, lam: float) -> Advantages:
    return generalized_advantage_estimation(r, v, torch.maximum(d, u), u, gamma, lam)


def recursion_not_cut_at_a_time_limit(
    r: Tensor, v: Tensor, d: Tensor, u: Tensor, gamma: float, lam: float
) -> Advantages:
    return generalized_advantage_estimation(r, v, d, torch.zeros_like(u), gamma, lam)


@pytest.mark.parametrize("wrong", [no_bootstrap_at_a_time_limit, recursion_not_cut_at_a_time_limit])
@pytest.mark.parametrize("kind", ["truncates", "alternates", "one step"])
def test_a_wrong_time_limit_is_detected(wrong: Estimator, kind: str) -> None:
    with pytest.raises(AssertionError, match="not equal"):
        check_estimates(("gymnasium, sync", kind, 3), wrong, LAMBDA)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "step number"])
def test_a_missing_restarting_mask_is_detected(kind: str) -> None:
    with pytest.raises(AssertionError):
        check_batch(
            ("gymnasium, sync", kind, 3), "gae", lambda batch: batch._replace(weights=torch.ones_like(batch.weights))
        )
