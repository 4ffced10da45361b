from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributions import Bernoulli, kl_divergence

from minerva.objectives import bernoulli

Float64 = NDArray[np.float64]


def oracle_pair(logit: float) -> tuple[float, float]:
    """Return the probabilities of 1 and 0."""
    return 1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit))


def oracle_log_prob(logits: Float64, outcomes: Float64) -> list[float]:
    rows = zip(logits, outcomes, strict=True)
    return [sum(math.log(oracle_pair(x)[0 if b else 1]) for x, b in zip(*row, strict=True)) for row in rows]


def oracle_kl(logits: Float64, other: Float64) -> list[float]:
    def of_entry(x: float, y: float) -> float:
        return sum(p * math.log(p / q) for p, q in zip(oracle_pair(x), oracle_pair(y), strict=True))

    return [sum(of_entry(x, y) for x, y in zip(*rows, strict=True)) for rows in zip(logits, other, strict=True)]


def random_logits(seed: int, batch: int = 8, scale: float = 2.0) -> torch.Tensor:
    """Return logits ``[B, A]`` in float64."""
    return torch.tensor(np.random.default_rng(seed).normal(size=(batch, 3)) * scale)


@pytest.mark.formula(
    "minerva.objectives.bernoulli",
    r"\log P(b) = \sum_j \log \sigma\left( (2 b_j - 1)\, l_j \right)",
    r"p_j = \sigma(l_j)",
    r"H = -\sum_j \left( p_j \log p_j + (1 - p_j) \log(1 - p_j) \right)",
    r"D = \sum_j \left( p_j \log \frac{p_j}{q_j} + (1 - p_j) \log \frac{1 - p_j}{1 - q_j} \right)",
)
def test_by_hand() -> None:
    # Probabilities 3/4 and 1/2, and 1/4 and 1/2 for the other.
    logits, other = torch.tensor([[3.0, 1.0]]).log(), torch.tensor([[1 / 3, 1.0]]).log()
    found = bernoulli.bernoulli_log_prob(logits, torch.tensor([[1.0, 0.0]]))
    assert found.item() == pytest.approx(math.log(3 / 8))
    found = bernoulli.bernoulli_log_prob(logits, torch.tensor([[0.0, 0.0]]))
    assert found.item() == pytest.approx(math.log(1 / 8))
    expected = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) + math.log(2)
    assert bernoulli.bernoulli_entropy(logits).item() == pytest.approx(expected)
    assert bernoulli.bernoulli_kl(logits, other).item() == pytest.approx(0.5 * math.log(3))


@pytest.mark.formula(
    "minerva.objectives.bernoulli",
    r"\log P(b) = \sum_j \log \sigma\left( (2 b_j - 1)\, l_j \right)",
    r"p_j = \sigma(l_j)",
    r"H = -\sum_j \left( p_j \log p_j + (1 - p_j) \log(1 - p_j) \right)",
    r"D = \sum_j \left( p_j \log \frac{p_j}{q_j} + (1 - p_j) \log \frac{1 - p_j}{1 - q_j} \right)",
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("scale", [0.3, 2.0, 9.0])
def test_against_the_oracle_and_torch(dtype: torch.dtype, tolerance: float, scale: float) -> None:
    logits, other = random_logits(0, scale=scale).to(dtype), random_logits(1, scale=scale).to(dtype)
    exact, exact_other = logits.double().numpy(), other.double().numpy()
    outcomes = (random_logits(2) > 0).to(dtype)
    tolerance *= max(1.0, scale)
    of_torch = Bernoulli(logits=logits)

    log_prob = bernoulli.bernoulli_log_prob(logits, outcomes)
    assert log_prob.shape == (8,) and log_prob.dtype == dtype
    np.testing.assert_allclose(log_prob, oracle_log_prob(exact, outcomes.double().numpy()), rtol=tolerance)
    torch.testing.assert_close(log_prob, of_torch.log_prob(outcomes).sum(-1), rtol=1e-5, atol=1e-6)  # type: ignore[no-untyped-call]

    entropy = bernoulli.bernoulli_entropy(logits)
    assert entropy.shape == (8,) and entropy.dtype == dtype
    expected = [-sum(p * math.log(p) for x in row for p in oracle_pair(x)) for row in exact]
    np.testing.assert_allclose(entropy, expected, rtol=tolerance)
    torch.testing.assert_close(entropy, of_torch.entropy().sum(-1), rtol=1e-5, atol=1e-5)  # type: ignore[no-untyped-call]

    kl = bernoulli.bernoulli_kl(logits, other)
    assert kl.shape == (8,) and kl.dtype == dtype
    np.testing.assert_allclose(kl, oracle_kl(exact, exact_other), rtol=tolerance, atol=tolerance)
    divergence = kl_divergence(of_torch, Bernoulli(logits=other))
    torch.testing.assert_close(kl, divergence.sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", [1e-4, 1e-3, 1e-2])
def test_the_divergence_of_small_steps_keeps_its_digits_in_float32(step: float) -> None:
    logits = random_logits(3, batch=200).float()
    other = logits + step * random_logits(4, batch=200, scale=1.0).float()
    found = bernoulli.bernoulli_kl(logits, other)
    assert (found >= 0).all()
    expected = oracle_kl(logits.double().numpy(), other.double().numpy())
    np.testing.assert_allclose(found, expected, rtol=max(2e-5, 3e-6 / step), atol=1e-13)


def test_gradients_are_the_analytic_ones() -> None:
    logits, other = random_logits(5), random_logits(6)
    outcomes = (random_logits(7) > 0).double()
    p, q = logits.sigmoid(), other.sigmoid()
    gradient = torch.func.grad(lambda x: bernoulli.bernoulli_log_prob(x, outcomes).sum())(logits)
    torch.testing.assert_close(gradient, outcomes - p)
    gradient = torch.func.grad(lambda x: bernoulli.bernoulli_entropy(x).sum())(logits)
    torch.testing.assert_close(gradient, -logits * p * (1 - p))
    gradient = torch.func.grad(lambda x: bernoulli.bernoulli_kl(logits, x).sum())(other)
    torch.testing.assert_close(gradient, q - p)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[300.0, -300.0]], requires_grad=True)
    likely = bernoulli.bernoulli_log_prob(logits, torch.tensor([[1.0, 0.0]]))
    unlikely = bernoulli.bernoulli_log_prob(logits, torch.tensor([[0.0, 1.0]]))
    entropy, kl = bernoulli.bernoulli_entropy(logits), bernoulli.bernoulli_kl(logits, -logits)
    assert (likely.item(), unlikely.item(), entropy.item(), kl.item()) == (0.0, -600.0, 0.0, 600.0)
    (gradient,) = torch.autograd.grad((likely + unlikely + entropy + kl).sum(), logits)
    assert gradient.isfinite().all()


def test_any_batch_shape() -> None:
    logits, other, outcomes = random_logits(8), random_logits(9), (random_logits(10) > 0).double()
    shape = (2, 4, 3)  # [T, N, A]
    found = bernoulli.bernoulli_log_prob(logits.reshape(shape), outcomes.reshape(shape))
    assert torch.equal(found.flatten(), bernoulli.bernoulli_log_prob(logits, outcomes))
    found = bernoulli.bernoulli_entropy(logits.reshape(shape))
    assert torch.equal(found.flatten(), bernoulli.bernoulli_entropy(logits))
    found = bernoulli.bernoulli_kl(logits.reshape(shape), other.reshape(shape))
    assert torch.equal(found.flatten(), bernoulli.bernoulli_kl(logits, other))


@pytest.mark.formula("minerva.objectives.bernoulli", r"b_j = \mathbb{1}[ u_j < \sigma(l_j) ]")
def test_a_sample_is_1_as_often_as_it_is_probable() -> None:
    logits = torch.tensor([[0.75, 0.5, 0.25]]).logit()
    uniform = torch.tensor([[0.74, 0.51, 0.24], [0.76, 0.49, 0.26], [0.0, 0.0, 0.0]])
    assert bernoulli.bernoulli_sample(logits, uniform).tolist() == [[1, 0, 1], [0, 1, 0], [1, 1, 1]]
    never_and_ever = torch.tensor([[-1000.0, 1000.0]])
    for u in (0.0, 1 - 2**-24):
        assert bernoulli.bernoulli_sample(never_and_ever, torch.full((1, 2), u)).tolist() == [[0, 1]]


@pytest.mark.formula("minerva.objectives.bernoulli", r"b_j = \mathbb{1}[ l_j > 0 ]")
def test_the_mode_is_the_more_likely_one() -> None:
    found = bernoulli.bernoulli_mode(torch.tensor([[0.1, -0.1, 0.0]]))
    assert found.tolist() == [[1, 0, 0]] and found.dtype == torch.float32
