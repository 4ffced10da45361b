from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributions import Categorical, kl_divergence

from minerva.objectives import categorical

Float64 = NDArray[np.float64]


def oracle_probabilities(logits: Float64) -> Float64:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    p: Float64 = shifted / shifted.sum(-1, keepdims=True)
    return p


def oracle_entropy(logits: Float64) -> list[float]:
    return [-sum(x * math.log(x) for x in row if x > 0) for row in oracle_probabilities(logits)]


def oracle_kl(logits: Float64, other: Float64) -> list[float]:
    rows = zip(oracle_probabilities(logits), oracle_probabilities(other), strict=True)
    return [sum(x * (math.log(x) - math.log(y)) for x, y in zip(p, q, strict=True) if x > 0) for p, q in rows]


def random_logits(seed: int, batch: int = 9, n: int = 5, scale: float = 2.0) -> torch.Tensor:
    """Return logits ``[B, n]`` in float64."""
    return torch.tensor(np.random.default_rng(seed).normal(size=(batch, n)) * scale)


def random_mask(seed: int, batch: int = 9, n: int = 5) -> torch.Tensor:
    """Return masks ``[B, n]``, 0 or 1, with at least one 1 per row and at least one 0 in total."""
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, size=(batch, n))
    mask[np.arange(batch), rng.integers(0, n, size=batch)] = 1
    assert not mask.all()
    return torch.tensor(mask, dtype=torch.float32)


@pytest.mark.formula("minerva.objectives.categorical", r"\log p_i = l_i - \log \sum_k e^{l_k}")
@pytest.mark.formula("minerva.objectives.categorical", r"H = -\sum_i p_i \log p_i")
@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"\Delta_i = \log p_i - \log q_i",
    r"\delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)",
    r"D = \sum_i \left( p_i \Delta_i + \delta_i \right)",
)
def test_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2.
    logits, other = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 1.0, 2.0]]).log() + 7
    assert categorical.categorical_log_prob(logits, torch.tensor([0])).item() == pytest.approx(math.log(0.5))
    assert categorical.categorical_log_prob(other, torch.tensor([0])).item() == pytest.approx(math.log(0.25))
    assert categorical.categorical_entropy(logits).item() == pytest.approx(1.5 * math.log(2))
    # log 2 with probability 1/2, -log 2 with probability 1/4.
    assert categorical.categorical_kl(logits, other).item() == pytest.approx(0.25 * math.log(2))


@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"\log p_i = l_i - \log \sum_k e^{l_k}",
    r"H = -\sum_i p_i \log p_i",
    r"\Delta_i = \log p_i - \log q_i",
    r"\delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)",
    r"D = \sum_i \left( p_i \Delta_i + \delta_i \right)",
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("scale", [0.3, 2.0, 40.0])
def test_against_the_oracle_and_torch(dtype: torch.dtype, tolerance: float, scale: float) -> None:
    logits, other = random_logits(0, scale=scale).to(dtype), random_logits(1, scale=scale).to(dtype)
    exact, exact_other = logits.double().numpy(), other.double().numpy()
    outcomes = torch.arange(9) % 5
    tolerance *= max(1.0, scale)

    log_prob = categorical.categorical_log_prob(logits, outcomes)
    assert log_prob.shape == (9,) and log_prob.dtype == dtype
    expected = np.log(oracle_probabilities(exact)[np.arange(9), outcomes.numpy()])
    np.testing.assert_allclose(log_prob.numpy(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(log_prob, Categorical(logits=logits).log_prob(outcomes), rtol=1e-5, atol=1e-6)  # type: ignore[no-untyped-call]
    assert torch.equal(log_prob, categorical.categorical_log_prob(logits, outcomes.float()))

    entropy = categorical.categorical_entropy(logits)
    assert entropy.shape == (9,) and entropy.dtype == dtype
    np.testing.assert_allclose(entropy.numpy(), oracle_entropy(exact), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(entropy, Categorical(logits=logits).entropy(), rtol=1e-5, atol=1e-6 * max(1.0, scale))  # type: ignore[no-untyped-call]

    kl = categorical.categorical_kl(logits, other)
    assert kl.shape == (9,) and kl.dtype == dtype
    np.testing.assert_allclose(kl.numpy(), oracle_kl(exact, exact_other), rtol=tolerance, atol=tolerance)
    of_torch = kl_divergence(Categorical(logits=logits), Categorical(logits=other))
    positive = (Categorical(logits=other).probs > 0).all(-1)  # where one rounds to 0, torch returns ∞
    torch.testing.assert_close(kl[positive], of_torch[positive], rtol=1e-5, atol=1e-5)


@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"\Delta_i = \log p_i - \log q_i",
    r"\delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)",
    r"D = \sum_i \left( p_i \Delta_i + \delta_i \right)",
)
@pytest.mark.parametrize("step", [1e-5, 1e-4, 1e-3, 1e-2, 0.3])
def test_the_divergence_of_small_steps_keeps_its_digits_in_float32(step: float) -> None:
    logits = random_logits(2, batch=200).float()
    other = logits + step * random_logits(3, batch=200, scale=1.0).float()
    found = categorical.categorical_kl(logits, other)
    assert (found >= 0).all()
    expected = oracle_kl(logits.double().numpy(), other.double().numpy())
    # The remaining error is the rounding of the log-probabilities, 1e-7 relative to the step.
    np.testing.assert_allclose(found.numpy(), expected, rtol=max(2e-5, 2e-6 / step), atol=1e-13)


def test_no_divergence_from_itself() -> None:
    logits = random_logits(4, scale=20).float()
    assert not categorical.categorical_kl(logits, logits.clone()).any()
    masked = categorical.masked_logits(logits, random_mask(4))
    assert not categorical.categorical_kl(masked, masked.clone()).any()


@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"\Delta_i = \log p_i - \log q_i",
    r"\delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)",
    r"D = \sum_i \left( p_i \Delta_i + \delta_i \right)",
)
def test_a_divergence_where_a_probability_rounds_to_0() -> None:
    # The first outcome has e^-200 of p and nearly all of q; p is on the second, whose log q is -200.
    logits, other = torch.tensor([[-200.0, 0.0]]), torch.tensor([[200.0, 0.0]])
    assert categorical.categorical_kl(logits, other).item() == pytest.approx(200.0)
    # Infinite where q forbids an outcome that p allows.
    allowed = torch.tensor([[1.0, 0.0]])
    assert categorical.categorical_kl(torch.zeros(1, 2), categorical.masked_logits(torch.zeros(1, 2), allowed)).isinf()
    # 0 log (0 / 0) = 0: p rounds to 0 where q is 0.
    assert categorical.categorical_kl(-logits, categorical.masked_logits(-logits, allowed)).item() == 0.0


def test_the_gradient_of_a_very_large_divergence() -> None:
    # q / p overflows float32, but p is not 0.
    logits, other = torch.tensor([[-90.0, 0.0]], requires_grad=True), torch.tensor([[90.0, 0.0]], requires_grad=True)
    assert (logits.softmax(-1) > 0).all()
    of_p, of_q = torch.autograd.grad(categorical.categorical_kl(logits, other).sum(), (logits, other))
    torch.testing.assert_close(of_p, torch.zeros(1, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(of_q, torch.tensor([[1.0, -1.0]]))


@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"l_i \leftarrow l_i + \log m_i",
    r"\log p_i = l_i - \log \sum_k e^{l_k}",
    r"H = -\sum_i p_i \log p_i",
)
@pytest.mark.formula(
    "minerva.objectives.categorical",
    r"\Delta_i = \log p_i - \log q_i",
    r"\delta_i = q_i - p_i = p_i (e^{-\Delta_i} - 1)",
    r"D = \sum_i \left( p_i \Delta_i + \delta_i \right)",
)
def test_a_mask_leaves_the_distribution_of_what_is_allowed() -> None:
    logits, other, mask = random_logits(5), random_logits(6), random_mask(5)
    masked, masked_other = categorical.masked_logits(logits, mask), categorical.masked_logits(other, mask)
    for row in range(9):
        allowed = mask[row] > 0
        alone, other_alone = logits[row, allowed], other[row, allowed]
        every = categorical.categorical_log_prob(masked[row].expand(5, 5), torch.arange(5)).exp()
        np.testing.assert_allclose(every[allowed], oracle_probabilities(alone.numpy()), rtol=1e-12)
        assert (every[~allowed] == 0).all()
        entropy, kl = (
            categorical.categorical_entropy(masked[row]),
            categorical.categorical_kl(masked, masked_other)[row],
        )
        assert entropy.item() == pytest.approx(oracle_entropy(alone.numpy()[None])[0], rel=1e-12, abs=1e-12)
        expected = oracle_kl(alone.numpy()[None], other_alone.numpy()[None])[0]
        assert kl.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_mask_that_allows_everything_changes_no_bit() -> None:
    logits = random_logits(7, batch=50).float()
    for ones in (torch.ones(50, 5), torch.ones(50, 5, dtype=torch.uint8), torch.ones(50, 5, dtype=torch.bool)):
        assert torch.equal(categorical.masked_logits(logits, ones), logits)


def test_gradients_with_a_mask_are_those_of_what_is_allowed() -> None:
    logits, other, mask = random_logits(8), random_logits(9), random_mask(8)
    outcomes = mask.argmax(-1)

    def losses(logits: torch.Tensor, other: torch.Tensor, outcomes: torch.Tensor) -> torch.Tensor:
        log_prob = categorical.categorical_log_prob(logits, outcomes)
        kl = categorical.categorical_kl(logits, other)
        return log_prob + 0.3 * categorical.categorical_entropy(logits) + 0.7 * kl

    def masked_losses(logits: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        masked = categorical.masked_logits(logits, mask), categorical.masked_logits(other, mask)
        return losses(*masked, outcomes).sum()

    gradients = torch.func.grad(masked_losses, argnums=(0, 1))(logits, other)
    for row in range(9):
        allowed = mask[row] > 0
        alone = logits[row, allowed].requires_grad_(), other[row, allowed].requires_grad_()
        value = losses(*alone, torch.tensor(0))  # the first allowed one
        for gradient, expected in zip(gradients, torch.autograd.grad(value, alone), strict=True):
            torch.testing.assert_close(gradient[row, allowed], expected, rtol=1e-10, atol=1e-12)
            assert (gradient[row, ~allowed] == 0).all()


def test_gradients_are_the_analytic_ones() -> None:
    logits, other = random_logits(10).requires_grad_(), random_logits(11).requires_grad_()
    p, q = logits.detach().softmax(-1), other.detach().softmax(-1)
    (gradient,) = torch.autograd.grad(categorical.categorical_log_prob(logits, torch.full((9,), 2)).sum(), logits)
    torch.testing.assert_close(gradient, torch.eye(5).double()[2] - p)
    entropy = categorical.categorical_entropy(logits)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    torch.testing.assert_close(gradient, -p * (p.log() + entropy.detach()[:, None]))
    kl = categorical.categorical_kl(logits, other)
    of_p, of_q = torch.autograd.grad(kl.sum(), (logits, other))
    torch.testing.assert_close(of_p, p * ((p / q).log() - kl.detach()[:, None]))
    torch.testing.assert_close(of_q, q - p)


def test_any_batch_shape() -> None:
    logits, other, outcomes = random_logits(12, batch=6), random_logits(13, batch=6), torch.arange(6) % 5
    shape = (2, 3, 5)  # [T, N, n]
    log_prob = categorical.categorical_log_prob(logits.reshape(shape), outcomes.reshape(2, 3))
    assert torch.equal(log_prob, categorical.categorical_log_prob(logits, outcomes).reshape(2, 3))
    entropy, kl = categorical.categorical_entropy(logits), categorical.categorical_kl(logits, other)
    assert torch.equal(categorical.categorical_entropy(logits.reshape(shape)), entropy.reshape(2, 3))
    assert torch.equal(categorical.categorical_kl(logits.reshape(shape), other.reshape(shape)), kl.reshape(2, 3))
    assert categorical.categorical_entropy(logits[0]).shape == ()
    uniform = torch.linspace(0, 0.99, 6)
    found = categorical.categorical_sample(logits.reshape(shape), uniform.reshape(2, 3))
    assert torch.equal(found.flatten(), categorical.categorical_sample(logits, uniform))
    assert torch.equal(categorical.categorical_mode(logits.reshape(shape)).flatten(), logits.argmax(-1))


@pytest.mark.formula(
    "minerva.objectives.categorical", r"F_i = \sum_{k \le i} p_k", r"a = \min \{ i : p_i > 0,\; F_i > u \}"
)
def test_a_sample_inverts_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.5, 0.125, 0.375]).log().expand(6, 3)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.62, 0.63, 0.999])
    assert categorical.categorical_sample(logits, uniform).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.formula(
    "minerva.objectives.categorical", r"F_i = \sum_{k \le i} p_k", r"a = \min \{ i : p_i > 0,\; F_i > u \}"
)
def test_samples_are_as_frequent_as_they_are_probable() -> None:
    logits = categorical.masked_logits(random_logits(14, batch=1, n=6, scale=1.0), torch.tensor([0, 1, 1, 0, 1, 0]))
    count = 200_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(0))
    found = categorical.categorical_sample(logits.expand(count, 6), uniform).bincount(minlength=6) / count
    p = torch.from_numpy(oracle_probabilities(logits.numpy()))[0]
    assert (found[p == 0] == 0).all()
    assert (found - p).abs().max() < 4 * math.sqrt(0.25 / count)


NUMBERS = (0.0, 1e-45, 2**-24, 0.1, 0.5, 0.9, 1 - 2**-20, 1 - 2**-24, 1.0)
"""The smallest and the largest number of a float32 generator, and 1, to which a larger type may round."""


@pytest.mark.parametrize("uniform", NUMBERS)
@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_nothing_masked_is_sampled_or_the_mode(uniform: float, n: int) -> None:
    for seed in range(5):
        logits = random_logits(seed, batch=400, n=n, scale=(0.01, 1.0, 30.0, 100.0, 1000.0)[seed]).float()
        mask = torch.from_numpy(np.random.default_rng(seed).random((400, n)) < (0.5, 0.1, 0.9, 0.02, 0.5)[seed])
        mask[torch.arange(400), torch.arange(400) % n] = True
        masked = categorical.masked_logits(logits, mask)
        found = categorical.categorical_sample(masked, torch.full((400,), uniform))
        assert mask.gather(-1, found[:, None]).all()
        assert mask.gather(-1, categorical.categorical_mode(masked)[:, None]).all()
        assert categorical.categorical_log_prob(masked, found).isfinite().all()


@pytest.mark.formula("minerva.objectives.categorical", r"a = \arg\max_i l_i")
def test_the_mode_is_the_most_likely_and_the_first_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 2.0], [9.0, 1.0, 2.0]])
    assert categorical.categorical_mode(logits).tolist() == [1, 0, 0]
    masked = categorical.masked_logits(logits, torch.tensor([[1, 0, 1], [0, 1, 1], [0, 1, 1]]))
    assert categorical.categorical_mode(masked).tolist() == [2, 2, 2]


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, 0.0]], requires_grad=True)
    entropy = categorical.categorical_entropy(logits)
    np.testing.assert_allclose(entropy.detach(), [0, math.log(3), math.log(2)], atol=1e-6)
    total = entropy.sum() + categorical.categorical_log_prob(logits, torch.tensor([0, 1, 1])).sum()
    assert torch.autograd.grad(total, logits)[0].isfinite().all()
