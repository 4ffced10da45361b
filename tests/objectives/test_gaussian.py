from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minerva.objectives import gaussian
from tests.objectives import oracle_ppo as oracle


def random_gaussian(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    mean, actions = rng.normal(size=(7, 3)), rng.normal(size=(7, 3)) * 2
    log_std = rng.normal(size=(1, 3)) * 0.7
    return torch.tensor(mean, dtype=dtype), torch.tensor(log_std, dtype=dtype), torch.tensor(actions, dtype=dtype)


@pytest.mark.formula(
    "minerva.objectives.gaussian",
    r"z_j = \frac{a_j - \mu_j}{\sigma_j}",
    r"\log \mathcal{N}(a; \mu, \sigma) = \sum_j \left( -\tfrac12 z_j^2 - \log \sigma_j - \tfrac12 \log 2\pi \right)",
)
def test_log_prob_by_hand() -> None:
    # One dimension at the mean with sigma 1, one two sigmas away with sigma 1/2.
    mean, log_std = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(0.5)]])
    expected = -0.5 * math.log(2 * math.pi) + (-2.0 - math.log(0.5) - 0.5 * math.log(2 * math.pi))
    assert gaussian.gaussian_log_prob(mean, log_std, torch.tensor([[1.0, 1.0]])).item() == pytest.approx(expected)


@pytest.mark.formula(
    "minerva.objectives.gaussian",
    r"z_j = \frac{a_j - \mu_j}{\sigma_j}",
    r"\log \mathcal{N}(a; \mu, \sigma) = \sum_j \left( -\tfrac12 z_j^2 - \log \sigma_j - \tfrac12 \log 2\pi \right)",
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_log_prob_against_the_oracle_and_torch(dtype: torch.dtype, tolerance: float) -> None:
    mean, log_std, actions = random_gaussian(dtype)
    found = gaussian.gaussian_log_prob(mean, log_std, actions)
    assert found.shape == (7,) and found.dtype == dtype
    expected = oracle.log_prob(mean.double().numpy(), log_std.double().exp()[0].numpy(), actions.double().numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)
    normal = torch.distributions.Normal(mean, log_std.exp().expand_as(mean))
    torch.testing.assert_close(found, normal.log_prob(actions).sum(-1), rtol=tolerance, atol=tolerance)  # type: ignore[no-untyped-call]


@pytest.mark.formula(
    "minerva.objectives.gaussian",
    r"H = \sum_j \left( \tfrac12 + \tfrac12 \log 2\pi + \log \sigma_j \right)",
)
def test_entropy_against_the_oracle_and_torch() -> None:
    _, log_std, _ = random_gaussian(torch.float64)
    found = gaussian.gaussian_entropy(log_std)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(oracle.entropy(log_std.exp()[0].numpy()), rel=1e-13)
    normal = torch.distributions.Normal(torch.zeros(1, 3).double(), log_std.exp())
    torch.testing.assert_close(found, normal.entropy().sum(-1))  # type: ignore[no-untyped-call]


def test_any_batch_shape() -> None:
    mean, log_std, actions = random_gaussian(torch.float64)
    flat = gaussian.gaussian_log_prob(mean[:6], log_std, actions[:6])
    shaped = gaussian.gaussian_log_prob(mean[:6].reshape(2, 3, 3), log_std, actions[:6].reshape(2, 3, 3))  # [T, N, A]
    assert torch.equal(shaped, flat.reshape(2, 3))
    assert gaussian.gaussian_entropy(log_std.expand(2, 5, 3)).shape == (2, 5)


def test_density_integrates_to_one_and_its_mean_log_is_the_entropy() -> None:
    log_std = torch.tensor([[0.3]], dtype=torch.float64)
    grid = torch.linspace(-15, 15, 20_001, dtype=torch.float64)[:, None]
    log_prob = gaussian.gaussian_log_prob(torch.full_like(grid, 0.5), log_std, grid)
    density = log_prob.exp()
    width = 30 / 20_000
    assert (density.sum() * width).item() == pytest.approx(1.0, abs=1e-9)
    assert (-(density * log_prob).sum() * width).item() == pytest.approx(gaussian.gaussian_entropy(log_std).item())


def test_gradients_are_the_analytic_ones() -> None:
    mean, log_std, actions = (x.requires_grad_() for x in random_gaussian(torch.float64))
    z = ((actions - mean) / log_std.exp()).detach()
    gaussian.gaussian_log_prob(mean, log_std, actions).sum().backward()  # type: ignore[no-untyped-call]
    assert mean.grad is not None and log_std.grad is not None and actions.grad is not None
    torch.testing.assert_close(mean.grad, (z / log_std.exp()).detach())
    torch.testing.assert_close(actions.grad, -(z / log_std.exp()).detach())
    torch.testing.assert_close(log_std.grad, (z**2 - 1).sum(0, keepdim=True))
    log_std.grad = None
    gaussian.gaussian_entropy(log_std).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_std.grad, torch.ones_like(log_std))


@pytest.mark.formula(
    "minerva.objectives.gaussian",
    r"v_j = \frac{\sigma_j'^2 + (\mu'_j - \mu_j)^2}{\sigma_j^2}",
    r"H(\mathcal{N}', \mathcal{N}) = \sum_j \left( \tfrac12 v_j + \log \sigma_j + \tfrac12 \log 2\pi \right)",
)
def test_cross_entropy_is_the_entropy_and_the_divergence_that_torch_gives() -> None:
    mean, log_std, old_mean = random_gaussian(torch.float64)
    old_log_std = log_std.flip(-1) - 0.2
    found = gaussian.gaussian_cross_entropy(mean, log_std, old_mean, old_log_std)
    assert found.shape == (7,)
    old = torch.distributions.Normal(old_mean, old_log_std.exp().expand_as(old_mean))
    new = torch.distributions.Normal(mean, log_std.exp().expand_as(mean))
    divergence = torch.distributions.kl_divergence(old, new)
    torch.testing.assert_close(found, (old.entropy() + divergence).sum(-1), rtol=1e-12, atol=1e-12)  # type: ignore[no-untyped-call]


def test_cross_entropy_with_itself_is_the_entropy() -> None:
    mean, log_std, _ = random_gaussian(torch.float64)
    found = gaussian.gaussian_cross_entropy(mean, log_std, mean, log_std)
    torch.testing.assert_close(found, gaussian.gaussian_entropy(log_std).expand(7))
