from __future__ import annotations

import numpy as np
import pytest
import torch

from minerva.environments import RewardNormalizer


def normalize(
    normalizer: RewardNormalizer, rewards: list[float], ended: list[bool], restarting: list[bool]
) -> list[float]:
    values: list[float] = normalizer.normalize(np.array(rewards), np.array(ended), np.array(restarting)).tolist()
    return values


def by_hand(returns: list[float]) -> float:
    """Compute the deviation of the returns so far, plus 1e-4 of a sample with mean 0 and variance 1."""
    total = len(returns) + 1e-4
    mean = sum(returns) / total
    return float(np.sqrt((sum((x - mean) ** 2 for x in returns) + 1e-4 * (1 + mean**2)) / total + 1e-8))


@pytest.mark.formula(
    "minerva.environments.normalizers",
    r"G_t = r_t + \gamma (1 - e_{t-1}) G_{t-1}",
    r"\sigma_G = \sqrt{\mathrm{Var}[G] + \epsilon}",
    r"\hat{r}_t = \mathrm{clip}\left( \frac{r_t}{\sigma_G},\; -c,\; c \right)",
)
def test_by_hand() -> None:
    normalizer = RewardNormalizer(2, gamma=0.5)
    first = normalize(normalizer, [1.0, -2.0], [False, True], [False, False])
    assert first == pytest.approx([1 / by_hand([1, -2]), -2 / by_hand([1, -2])], rel=1e-12)
    # Environment 1 restarts: its 0 is no reward. Environment 0 continues: 4 + 0.5 · 1.
    second = normalize(normalizer, [4.0, 0.0], [True, False], [False, True])
    assert second == pytest.approx([4 / by_hand([1, -2, 4.5]), 0.0], rel=1e-12)
    # The other way round; the return of environment 1 has restarted from 0.
    third = normalize(normalizer, [0.0, 3.0], [False, False], [True, False])
    assert third == pytest.approx([0.0, 3 / by_hand([1, -2, 4.5, 3])], rel=1e-12)
    fourth = normalize(normalizer, [1.0, 1.0], [False, False], [False, False])
    assert fourth == pytest.approx([1 / by_hand([1, -2, 4.5, 3, 1, 2.5])] * 2, rel=1e-12)


def test_steps_one_by_one_and_all_at_once_are_the_same() -> None:
    rng = np.random.default_rng(0)
    rewards = 1000 + rng.normal(size=(40, 3))
    ended, restarting = rng.random((2, 40, 3)) < 0.2
    restarting[7] = True
    rewards[restarting] = 0
    one, other = RewardNormalizer(3, gamma=0.9), RewardNormalizer(3, gamma=0.9)
    single = np.stack([one.normalize(*step) for step in zip(rewards, ended, restarting, strict=True)])
    first = other.normalize_all(rewards[:25], ended[:25], restarting[:25])
    second = other.normalize_all(rewards[25:], ended[25:], restarting[25:])
    np.testing.assert_allclose(np.concatenate([first, second]), single, rtol=1e-12)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-12, atol=0)


def test_all_restarting_changes_nothing() -> None:
    normalizer = RewardNormalizer(2, gamma=0.9)
    normalize(normalizer, [1.0, 2.0], [True, True], [False, False])
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    assert normalize(normalizer, [0.0, 0.0], [False, False], [True, True]) == [0.0, 0.0]
    assert all(torch.equal(before[name], value) for name, value in normalizer.state_dict().items())


@pytest.mark.formula(
    "minerva.environments.normalizers",
    r"\hat{r}_t = \mathrm{clip}\left( \frac{r_t}{\sigma_G},\; -c,\; c \right)",
)
def test_large_rewards_are_clipped_on_both_sides() -> None:
    normalizer = RewardNormalizer(1, gamma=0.0)
    rng = np.random.default_rng(0)
    for reward in rng.normal(size=200):
        normalize(normalizer, [reward], [False], [False])
    assert normalize(normalizer, [1e4], [False], [False]) == [10.0]
    assert RewardNormalizer(1, gamma=0.0).normalize(np.array([-1.0]), np.array([False]), np.array([False])) == [-10.0]


def test_rewards_are_not_centered() -> None:
    normalizer = RewardNormalizer(1, gamma=0.0)
    values = [normalize(normalizer, [5.0 + (-1) ** n], [False], [False])[0] for n in range(500)]
    # Alternating rewards 6 and 4: deviation 1, mean 5.
    assert values[-2:] == pytest.approx([6.0, 4.0], rel=1e-3)


def test_the_state_resumes_exactly() -> None:
    one, other = RewardNormalizer(2, gamma=0.9), RewardNormalizer(2, gamma=0.9)
    normalize(one, [1.0, 2.0], [False, True], [False, False])
    other.load_state_dict(one.state_dict())
    neither = [False, False]
    assert normalize(one, [3.0, 0.0], neither, [False, True]) == normalize(other, [3.0, 0.0], neither, [False, True])
    assert all(torch.equal(x, y) for x, y in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


# Outliers


def rollouts(normalizer: RewardNormalizer, rewards: np.ndarray) -> np.ndarray:
    no = np.zeros((100, 1), np.bool_)
    return np.concatenate([normalizer.normalize_all(part, no, no) for part in np.split(rewards, len(rewards) // 100)])


@pytest.mark.parametrize("absurd", [1e300, -3e38, 1e15])
@pytest.mark.parametrize("at", [0, 50, 250])
def test_an_absurd_reward_does_not_ruin_the_statistics(absurd: float, at: int) -> None:
    rewards = np.random.default_rng(0).normal(size=(20_000, 1)) + 1.0
    broken = rewards.copy()
    broken[at] = absurd
    expected = rollouts(RewardNormalizer(1, gamma=0.9), rewards)
    with pytest.warns(RuntimeWarning, match="a reward is .*check the environment"):
        normalized = rollouts(RewardNormalizer(1, gamma=0.9), broken)
    assert abs(normalized[at, 0]) > 2 and np.sign(normalized[at, 0]) == np.sign(absurd)
    assert np.isfinite(normalized).all()
    np.testing.assert_allclose(normalized[10_000:], expected[10_000:], rtol=0.05)


@pytest.mark.parametrize("scale", [1e6, 1e12])
def test_large_rewards_count_as_they_are(scale: float) -> None:
    rewards = np.random.default_rng(0).normal(size=(1_000, 1)) + 1.0
    small, large = (rollouts(RewardNormalizer(1, gamma=0.9), rewards * factor) for factor in (1e3, scale))
    np.testing.assert_allclose(large[10:], small[10:], rtol=1e-4)  # apart from the start's variance of 1
