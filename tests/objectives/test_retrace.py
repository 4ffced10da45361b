from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva.objectives.retrace import retrace_target
from tests.objectives import oracle_mpo as oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use names that jax has deprecated
    import jax
    import rlax

Array = NDArray[np.float64]
GAMMA, LAM = 0.93, 0.8


def random_sequences(seed: int, batch: int = 7, steps: int = 6) -> list[Array]:
    """Return Q, V', r, d, e and log ratios, ``[B, T]`` each; no episode ends."""
    rng = np.random.default_rng(seed)
    q, v, r = rng.normal(size=(3, batch, steps))
    return [3 * q, 3 * v, r, np.zeros((batch, steps)), np.zeros((batch, steps)), rng.normal(size=(batch, steps))]


def target(sequences: list[Array], gamma: float = GAMMA, lam: float = LAM) -> Array:
    q, v, r, d, e, log_ratios = (torch.tensor(x) for x in sequences)
    found: Array = retrace_target(q, v, r, d, e, log_ratios, gamma, lam).numpy()
    return found


def recursion(sequences: list[Array]) -> Array:
    q, v, r, d, e, log_ratios = sequences
    return oracle.retrace(q, v, r, d, e, log_ratios, GAMMA, LAM)


@pytest.mark.formula(
    "minerva.objectives.retrace",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - Q'(s_t, a_t)",
    r"c_t = \lambda \min\left(1, \frac{\pi'(a_t|s_t)}{b(a_t|s_t)}\right)",
    r"g_t = \gamma^t \prod_{i=1}^{t} c_i",
    r"Q_{\mathrm{ret}} = Q'(s_0, a_0) + \delta_0 + \sum_{t \ge 1} m_t g_t \delta_t",
)
def test_by_hand() -> None:
    # Two pairs: delta_0 = 1 + 0.5 * 4 - 2 = 1, delta_1 = 3 + 0.5 * 2 - 6 = -2, c_1 = 0.8 * 0.25 = 0.2.
    first = [[2.0, 6.0]], [[4.0, 2.0]], [[1.0, 3.0]], [[0.0, 0.0]], [[0.0, 0.0]], [[9.0, math.log(0.25)]]
    assert target([np.array(x) for x in first], gamma=0.5).tolist() == pytest.approx([2 + 1 + 0.5 * 0.2 * -2])
    # A ratio of 4 counts as 1.
    clipped = [*first[:-1], [[0.0, math.log(4.0)]]]
    assert target([np.array(x) for x in clipped], gamma=0.5).tolist() == pytest.approx([2 + 1 + 0.5 * 0.8 * -2])


@pytest.mark.formula(
    "minerva.objectives.retrace",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - Q'(s_t, a_t)",
    r"c_t = \lambda \min\left(1, \frac{\pi'(a_t|s_t)}{b(a_t|s_t)}\right)",
    r"g_t = \gamma^t \prod_{i=1}^{t} c_i",
    r"Q_{\mathrm{ret}} = Q'(s_0, a_0) + \delta_0 + \sum_{t \ge 1} m_t g_t \delta_t",
)
@pytest.mark.parametrize("steps", [2, 3, 8])
def test_against_rlax(steps: int) -> None:
    sequences = random_sequences(steps, steps=steps)
    q, v, r, d, _, log_rhos = sequences
    with jax.enable_x64(True):
        errors = jax.vmap(rlax.retrace_continuous, in_axes=(0, 0, 0, 0, 0, 0, None))(
            q, q[:, 1:], v, r, GAMMA * (1 - d), log_rhos[:, 1:], LAM
        )
    np.testing.assert_allclose(target(sequences), q[:, 0] + np.asarray(errors)[:, 0], rtol=1e-10, atol=1e-12)


def test_against_rlax_where_episodes_terminate_on_their_last_step() -> None:
    sequences = random_sequences(11)
    q, v, r, d, e, log_rhos = sequences
    d[:4, -1] = e[:4, -1] = 1
    with jax.enable_x64(True):
        errors = jax.vmap(rlax.retrace_continuous, in_axes=(0, 0, 0, 0, 0, 0, None))(
            q, q[:, 1:], v, r, GAMMA * (1 - d), log_rhos[:, 1:], LAM
        )
    np.testing.assert_allclose(target(sequences), q[:, 0] + np.asarray(errors)[:, 0], rtol=1e-10, atol=1e-12)


@pytest.mark.formula(
    "minerva.objectives.retrace",
    r"\delta_t = r_t + \gamma (1 - d_t) V(s_{t+1}) - Q'(s_t, a_t)",
    r"c_t = \lambda \min\left(1, \frac{\pi'(a_t|s_t)}{b(a_t|s_t)}\right)",
    r"m_t = \prod_{i<t} (1 - e_i)",
    r"g_t = \gamma^t \prod_{i=1}^{t} c_i",
    r"m_t g_t \delta_t",
    r"Q_{\mathrm{ret}} = Q'(s_0, a_0) + \delta_0 + \sum_{t \ge 1} m_t g_t \delta_t",
)
@pytest.mark.parametrize("seed", range(3))
def test_against_the_recursion_with_ends_in_the_middle(seed: int) -> None:
    sequences = random_sequences(seed, batch=60)
    d, e = sequences[3], sequences[4]
    rng = np.random.default_rng(100 + seed)
    d[:] = rng.random(d.shape) < 0.15
    e[:] = np.maximum(d, rng.random(d.shape) < 0.15)
    assert (e > d)[:, :-1].any() and d[:, 1:-1].any() and d[:, 0].any()
    np.testing.assert_allclose(target(sequences), recursion(sequences), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, 1e30, -1e30])
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_steps_after_the_end_are_ignored(kind: str, garbage: float) -> None:
    sequences = random_sequences(20)
    for b in range(6):
        sequences[3][b, b] = kind == "terminated"
        sequences[4][b, b] = 1
    expected = recursion(sequences)
    for b in range(6):
        for x in (*sequences[:3], sequences[5]):
            x[b, b + 1 :] = garbage
        sequences[3][b, b + 1 :], sequences[4][b, b + 1 :] = b % 2, b % 3 == 0  # any flags are allowed there too
    np.testing.assert_allclose(target(sequences), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("where", range(6))
@pytest.mark.parametrize("which", ["q", "v", "r", "log ratio"])
def test_a_real_step_that_is_not_a_number_shows_in_the_target(which: str, where: int) -> None:
    sequences = random_sequences(21)
    sequences[{"q": 0, "v": 1, "r": 2, "log ratio": 5}[which]][2, where] = math.nan
    bad = ~np.isfinite(target(sequences))
    used = not (which == "log ratio" and where == 0)
    assert bad.tolist() == [used and b == 2 for b in range(7)]


def test_the_first_ratio_does_not_matter() -> None:
    sequences = random_sequences(22)
    other = [x.copy() for x in sequences]
    other[5][:, 0] = 50.0
    assert target(other).tolist() == target(sequences).tolist()


def test_ratios_too_large_for_exp_count_as_one() -> None:
    sequences = random_sequences(23)
    ones = [*sequences[:5], np.zeros_like(sequences[5])]
    sequences[5][:] = 1e4
    np.testing.assert_allclose(target(sequences), target(ones))
    # Very small ratios cut the trace.
    sequences[5][:] = -1e4
    np.testing.assert_allclose(target(sequences), sequences[2][:, 0] + GAMMA * sequences[1][:, 0])


def test_one_step_and_no_trace_are_the_plain_target() -> None:
    q, v, r, d, e, log_ratios = random_sequences(24)
    d[2, 0] = e[2, 0] = 1
    plain = r[:, 0] + GAMMA * (1 - d[:, 0]) * v[:, 0]
    np.testing.assert_allclose(target([x[:, :1] for x in (q, v, r, d, e, log_ratios)]), plain)
    np.testing.assert_allclose(target([q, v, r, d, e, log_ratios], lam=0.0), plain)


def test_on_policy_with_lambda_one_it_is_the_discounted_return() -> None:
    # With one action in each state, V = Q: the sum telescopes to the n-step return.
    q, v, r, d, e, log_ratios = random_sequences(25)
    v[:, :-1] = q[:, 1:]
    log_ratios[:] = 0
    discounts = GAMMA ** np.arange(6)
    expected = (discounts * r).sum(1) + GAMMA**6 * v[:, -1]
    np.testing.assert_allclose(target([q, v, r, d, e, log_ratios], lam=1.0), expected)


def test_true_values_do_not_change() -> None:
    # Q(s, a) = r + gamma V(s'): every delta is 0 for any ratios.
    q, v, r, d, e, log_ratios = random_sequences(26)
    d[1, 3] = e[1, 3] = 1
    r[:] = q - GAMMA * (1 - d) * v
    np.testing.assert_allclose(target([q, v, r, d, e, log_ratios]), q[:, 0], atol=1e-12)


def test_float32_stays_float32() -> None:
    q, v, r, d, e, log_ratios = (torch.tensor(x, dtype=torch.float32) for x in random_sequences(27))
    found = retrace_target(q, v, r, d, e, log_ratios, GAMMA, LAM)
    assert found.dtype == torch.float32 and found.shape == (7,)
    np.testing.assert_allclose(found.numpy(), recursion(random_sequences(27)), rtol=1e-4, atol=1e-5)
