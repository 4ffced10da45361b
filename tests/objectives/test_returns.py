from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer

from minerva.objectives import critic, returns
from tests.objectives import oracle_ppo as oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use names that jax has deprecated
    import rlax

Array = NDArray[np.float64]
GAMMA, LAM = 0.93, 0.88


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.tensor(np.asarray(array), dtype=torch.float64) for array in arrays]


def gae(rollout: Iterable[Any], gamma: float = GAMMA, lam: float = LAM) -> returns.Advantages:
    rewards, values, terminated, truncated = tensors(*rollout)
    return returns.generalized_advantage_estimation(rewards, values, terminated, truncated, gamma, lam)


def bootstrapped(rollout: Iterable[Any], gamma: float = GAMMA) -> returns.Advantages:
    rewards, values, terminated, truncated = tensors(*rollout)
    return returns.bootstrapped_returns(rewards, values, terminated, truncated, gamma)


def random_rollout(seed: int, truncations: bool = True) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(40, 5)), rng.normal(size=(41, 5)) * 3
    terminated = (rng.random((40, 5)) < 0.15).astype(np.float64)
    truncated = (rng.random((40, 5)) < 0.15) * (1 - terminated) * truncations
    # In the last step: a termination, a truncation, and no end.
    terminated[-1], truncated[-1] = [1, 0, 0, 0, 0], [0, float(truncations), 0, 0, 0]
    return rewards, values, terminated, truncated


# By hand: gamma = lambda = 1/2, rewards 1, values 2, 4, 6, 8, 10 in each of three environments.
# Environment 0 does not end, environment 1 terminates at t = 1, environment 2 is truncated at t = 1.
REWARDS = np.ones((4, 3))
VALUES = np.tile(np.array([[2.0], [4.0], [6.0], [8.0], [10.0]]), (1, 3))
TERMINATED = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
TRUNCATED = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])


@pytest.mark.formula("minerva.objectives.returns", r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)")
def test_temporal_difference_by_hand() -> None:
    rewards, values, terminated = tensors(REWARDS, VALUES, TERMINATED)
    # 1 + 4/2 - 2 = 1, 1 + 6/2 - 4 = 0 (or 1 - 4 at the terminal), 1 + 8/2 - 6 = -1, 1 + 10/2 - 8 = -2
    expected = [[1.0, 1.0, 1.0], [0.0, -3.0, 0.0], [-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0]]
    assert returns.temporal_difference(rewards, values, terminated, 0.5).tolist() == expected


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"x_t = b_t + c_t\, x_{t+1}",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)",
    r"1 - e_t = (1 - d_t)(1 - u_t)",
    r"A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}",
    r"R_t = A_t + V(s_t)",
)
def test_gae_by_hand() -> None:
    rewards, values, terminated, truncated = tensors(REWARDS, VALUES, TERMINATED, TRUNCATED)
    advantages, targets = returns.generalized_advantage_estimation(rewards, values, terminated, truncated, 0.5, 0.5)
    # From the end, each plus a quarter of the next: -2; -1 - 2/4 = -1.5; 0 - 1.5/4 (cut: delta only); 1 + a quarter.
    expected = [[1 - 0.09375, 0.25, 1.0], [-0.375, -3.0, 0.0], [-1.5, -1.5, -1.5], [-2.0, -2.0, -2.0]]
    assert advantages.tolist() == expected
    assert targets.tolist() == (np.array(expected) + VALUES[:-1]).tolist()


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"x_t = b_t + c_t\, x_{t+1}",
    r"b_t = r_t + \gamma (1 - d_t)\, u_t V(s_{t+1})",
    r"R_t = b_t + \gamma (1 - d_t)(1 - u_t) R_{t+1}, \quad R_T = V(s_T)",
    r"A_t = R_t - V(s_t)",
)
def test_bootstrapped_returns_by_hand() -> None:
    rewards, values, terminated, truncated = tensors(REWARDS, VALUES, TERMINATED, TRUNCATED)
    advantages, targets = returns.bootstrapped_returns(rewards, values, terminated, truncated, 0.5)
    # From the end: 1 + 10/2 = 6, 1 + 6/2 = 4, 1 + 4/2 = 3 (terminal: 1; truncated: 1 + 6/2 = 4), 1 + half of that.
    expected = [[2.5, 1.5, 3.0], [3.0, 1.0, 4.0], [4.0, 4.0, 4.0], [6.0, 6.0, 6.0]]
    assert targets.tolist() == expected
    assert advantages.tolist() == (np.array(expected) - VALUES[:-1]).tolist()


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"x_t = b_t + c_t\, x_{t+1}",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)",
    r"1 - e_t = (1 - d_t)(1 - u_t)",
    r"A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}",
    r"R_t = A_t + V(s_t)",
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("gamma", "lam"), [(GAMMA, LAM), (0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.9)])
def test_gae_against_the_oracle(seed: int, gamma: float, lam: float) -> None:
    rollout = random_rollout(seed)
    found = gae(rollout, gamma, lam)
    for mine, expected in zip(found, oracle.gae(*rollout, gamma, lam), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"x_t = b_t + c_t\, x_{t+1}",
    r"b_t = r_t + \gamma (1 - d_t)\, u_t V(s_{t+1})",
    r"R_t = b_t + \gamma (1 - d_t)(1 - u_t) R_{t+1}, \quad R_T = V(s_T)",
    r"A_t = R_t - V(s_t)",
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gamma", [GAMMA, 1.0, 0.0])
def test_bootstrapped_returns_against_the_oracle(seed: int, gamma: float) -> None:
    rollout = random_rollout(seed)
    found = bootstrapped(rollout, gamma)
    for mine, expected in zip(found, oracle.bootstrapped_returns(*rollout, gamma), strict=True):
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)",
    r"1 - e_t = (1 - d_t)(1 - u_t)",
    r"A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}",
    r"R_t = A_t + V(s_t)",
)
@pytest.mark.parametrize("truncations", [False, True])
def test_gae_against_stable_baselines3(truncations: bool) -> None:
    rewards, values, terminated, truncated = random_rollout(4, truncations)
    steps, envs = rewards.shape
    buffer = RolloutBuffer(
        steps, spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), "cpu", gae_lambda=LAM, gamma=GAMMA, n_envs=envs
    )
    ended = np.maximum(terminated, truncated)
    # SB3 has one kind of end, marked at the next step, and adds the bootstrap of a time limit to the reward.
    buffer.rewards[:] = rewards + GAMMA * truncated * values[1:]
    buffer.values[:] = values[:-1]
    buffer.episode_starts[1:] = ended[:-1]
    buffer.compute_returns_and_advantage(torch.tensor(values[-1]), ended[-1].astype(bool))
    found = gae((rewards, values, terminated, truncated))
    np.testing.assert_allclose(found.advantages.numpy(), buffer.advantages, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.returns.numpy(), buffer.returns, rtol=1e-4, atol=1e-4)


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - V(s_t)",
    r"1 - e_t = (1 - d_t)(1 - u_t)",
    r"A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}",
)
@pytest.mark.parametrize("truncations", [False, True])
def test_gae_against_rlax(truncations: bool) -> None:
    rewards, values, terminated, truncated = random_rollout(5, truncations)
    found = gae((rewards, values, terminated, truncated))
    for n in range(rewards.shape[1]):
        expected = rlax.truncated_generalized_advantage_estimation(
            rewards[:, n],
            GAMMA * (1 - terminated[:, n]),
            LAM * (1 - truncated[:, n]),  # a time limit cuts the trace, not the bootstrap
            values[:, n],
        )
        np.testing.assert_allclose(found.advantages[:, n].numpy(), np.asarray(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.formula(
    "minerva.objectives.returns",
    r"b_t = r_t + \gamma (1 - d_t)\, u_t V(s_{t+1})",
    r"R_t = b_t + \gamma (1 - d_t)(1 - u_t) R_{t+1}, \quad R_T = V(s_T)",
)
@pytest.mark.parametrize("truncations", [False, True])
def test_bootstrapped_returns_against_rlax(truncations: bool) -> None:
    rewards, values, terminated, truncated = random_rollout(6, truncations)
    found = bootstrapped((rewards, values, terminated, truncated))
    for n in range(rewards.shape[1]):
        series = (rewards[:, n], GAMMA * (1 - terminated[:, n]), values[1:, n])
        # lambda 0 at a time limit gives the one-step return there.
        expected = rlax.lambda_returns(*series, 1 - truncated[:, n])
        np.testing.assert_allclose(found.returns[:, n].numpy(), np.asarray(expected), rtol=1e-4, atol=1e-4)
        if not truncations:
            discounted = rlax.discounted_returns(*series)
            np.testing.assert_allclose(found.returns[:, n].numpy(), np.asarray(discounted), rtol=1e-4, atol=1e-4)


def test_lambda_one_gives_the_bootstrapped_returns() -> None:
    a, b = gae(random_rollout(7), lam=1.0), bootstrapped(random_rollout(7))
    torch.testing.assert_close(a.advantages, b.advantages)
    torch.testing.assert_close(a.returns, b.returns)


def test_perfect_values_leave_no_advantage() -> None:
    rewards, _, terminated, truncated = random_rollout(8)
    values = np.zeros((41, 5))
    values[-1] = 3.0
    for t in reversed(range(40)):
        values[t] = rewards[t] + GAMMA * (1 - terminated[t]) * values[t + 1]
    found = gae((rewards, values, terminated, truncated))
    assert found.advantages.abs().max().item() < 1e-12


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_after_an_episodes_end_reaches_what_came_before(end: str) -> None:
    rewards, values, terminated, truncated = (x.copy() for x in random_rollout(9, truncations=False))
    terminated[:] = truncated[:] = 0
    (terminated if end == "terminated" else truncated)[10] = 1
    other_rewards, other_values = rewards.copy(), values.copy()
    other_rewards[11:] += 100  # step 11 is restarting
    other_values[12:] -= 100
    if end == "terminated":
        other_values[11] = 1e6  # not even the value of the last observation
    estimators: list[Callable[[Iterable[Any]], returns.Advantages]] = [gae, bootstrapped]
    for estimate in estimators:
        before = estimate((rewards, values, terminated, truncated))
        after = estimate((other_rewards, other_values, terminated, truncated))
        assert torch.equal(before.advantages[:11], after.advantages[:11])
        assert torch.equal(before.returns[:11], after.returns[:11])


@pytest.mark.formula("minerva.objectives.returns", r"x_t = b_t + c_t\, x_{t+1}")
def test_recursion_by_hand_and_input_untouched() -> None:
    terms, decays, last = tensors([[1.0], [2.0]], [[0.5], [3.0]], [4.0])
    assert returns.backward_recursion(terms, decays, last).tolist() == [[8.0], [14.0]]
    assert (terms.tolist(), decays.tolist(), last.tolist()) == ([[1.0], [2.0]], [[0.5], [3.0]], [4.0])


def test_gradients_against_finite_differences() -> None:
    rewards, values, terminated, truncated = (x[:6] for x in tensors(*random_rollout(1)))
    inputs = (rewards.requires_grad_(), values.requires_grad_())
    terminated, truncated = terminated[:5], truncated[:5]

    def advantages(r: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *returns.generalized_advantage_estimation(r[:5], v, terminated, truncated, GAMMA, LAM),
            *returns.bootstrapped_returns(r[:5], v, terminated, truncated, GAMMA),
        )

    assert all(output.requires_grad for output in advantages(*inputs))
    assert torch.autograd.gradcheck(advantages, inputs)
    weights = torch.ones(6, 5).double()
    weights[2] = 0
    assert torch.autograd.gradcheck(lambda r, v: critic.explained_variance(r, v, weights), inputs)


def test_float32_stays_float32() -> None:
    rewards, values, terminated, truncated = (x.float() for x in tensors(*random_rollout(0)))
    for found in (
        returns.generalized_advantage_estimation(rewards, values, terminated, truncated, GAMMA, LAM),
        returns.bootstrapped_returns(rewards, values, terminated, truncated, GAMMA),
    ):
        assert found.advantages.dtype == found.returns.dtype == torch.float32
