from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from minerva.objectives import kl
from tests.objectives import oracle_mpo as oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use names that jax has deprecated
    import jax
    import rlax


def random_policies(seed: int, batch: int = 6, dims: int = 3) -> list[torch.Tensor]:
    """Return mean, log std, old mean and old log std, ``[B, A]`` in float64."""
    rng = np.random.default_rng(seed)
    mean, old_mean = rng.normal(size=(2, batch, dims))
    log_std, old_log_std = rng.normal(size=(2, batch, dims)) * 0.5 - 0.3
    return [torch.tensor(x) for x in (mean, log_std, old_mean, old_log_std)]


@pytest.mark.formula(
    "minerva.objectives.kl",
    r"D_{\mu,j} = \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j'^2}",
    r"\Delta_j = \log \sigma_j - \log \sigma'_j",
    r"D_{\sigma,j} = \tfrac12 \left( \frac{\sigma_j'^2}{\sigma_j^2} - 1 + 2 \Delta_j \right)",
)
def test_by_hand() -> None:
    # A distance of 1 at sigma 1/2: 1 / (2/4) = 2. Sigma from 1 to 2: (1/4 - 1 + 2 log 2) / 2.
    mean, old_mean, old_log_std = torch.tensor([[1.5]]), torch.tensor([[0.5]]), torch.tensor([[math.log(0.5)]])
    assert kl.kl_of_means(mean, old_mean, old_log_std).item() == pytest.approx(2.0)
    found = kl.kl_of_stds(torch.tensor([[math.log(2.0)]]), torch.tensor([[0.0]]))
    assert found.item() == pytest.approx(-0.375 + math.log(2))
    # The other direction differs: (4 - 1 - 2 log 2) / 2.
    found = kl.kl_of_stds(torch.tensor([[0.0]]), torch.tensor([[math.log(2.0)]]))
    assert found.item() == pytest.approx(1.5 - math.log(2))


@pytest.mark.formula(
    "minerva.objectives.kl",
    r"D_{\mu,j} = \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j'^2}",
    r"\Delta_j = \log \sigma_j - \log \sigma'_j",
    r"D_{\sigma,j} = \tfrac12 \left( \frac{\sigma_j'^2}{\sigma_j^2} - 1 + 2 \Delta_j \right)",
)
def test_each_entry_against_the_oracle() -> None:
    mean, log_std, old_mean, old_log_std = random_policies(0)
    of_means = kl.kl_of_means(mean, old_mean, old_log_std)
    of_stds = kl.kl_of_stds(log_std, old_log_std)
    assert of_means.shape == of_stds.shape == (6, 3)
    for index in np.ndindex(6, 3):
        m, om = mean[index].item(), old_mean[index].item()
        s, os = log_std[index].exp().item(), old_log_std[index].exp().item()
        assert of_means[index].item() == pytest.approx(oracle.gaussian_kl(om, os, m, os), rel=1e-12)
        assert of_stds[index].item() == pytest.approx(oracle.gaussian_kl(om, os, om, s), rel=1e-12)


@pytest.mark.formula(
    "minerva.objectives.kl",
    r"D_{\mu,j} = \frac{(\mu_j - \mu'_j)^2}{2 \sigma_j'^2}",
    r"\Delta_j = \log \sigma_j - \log \sigma'_j",
    r"D_{\sigma,j} = \tfrac12 \left( \frac{\sigma_j'^2}{\sigma_j^2} - 1 + 2 \Delta_j \right)",
)
def test_values_and_gradients_against_rlax() -> None:
    mean, log_std, old_mean, old_log_std = random_policies(1)

    def rlax_kl(mean: object, log_std: object, weights: object) -> object:
        # One Gaussian per dimension: its last axis has length 1.
        new = jax.numpy.expand_dims(mean, -1), jax.numpy.exp(jax.numpy.expand_dims(log_std, -1))
        old = old_mean.numpy()[..., None], np.exp(old_log_std.numpy())[..., None]
        return jax.numpy.sum(weights * rlax.multivariate_normal_kl_divergence(*old, *new))

    weights = torch.tensor(np.random.default_rng(2).normal(size=(6, 3)))
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # rlax recommends distrax instead
        arrays = [x.numpy() for x in (mean, log_std, weights)]
        with_gradient = jax.jit(jax.value_and_grad(rlax_kl, argnums=(0, 1)))
        value_mean, (mean_gradient, _) = with_gradient(arrays[0], old_log_std.numpy(), arrays[2])
        value_std, (_, std_gradient) = with_gradient(old_mean.numpy(), arrays[1], arrays[2])
    mean.requires_grad_(), log_std.requires_grad_()
    found_mean = (weights * kl.kl_of_means(mean, old_mean, old_log_std)).sum()
    found_std = (weights * kl.kl_of_stds(log_std, old_log_std)).sum()
    assert found_mean.item() == pytest.approx(float(value_mean), rel=1e-10)
    assert found_std.item() == pytest.approx(float(value_std), rel=1e-10)
    (found,) = torch.autograd.grad(found_mean, mean)
    np.testing.assert_allclose(found.numpy(), np.asarray(mean_gradient), rtol=1e-10, atol=1e-12)
    (found,) = torch.autograd.grad(found_std, log_std)
    np.testing.assert_allclose(found.numpy(), np.asarray(std_gradient), rtol=1e-10, atol=1e-12)


def test_a_half_is_the_whole_divergence_where_only_one_parameter_changes() -> None:
    mean, log_std, old_mean, old_log_std = random_policies(3)
    old = Independent(Normal(old_mean, old_log_std.exp()), 1)
    moved = Independent(Normal(mean, old_log_std.exp()), 1)
    torch.testing.assert_close(kl.kl_of_means(mean, old_mean, old_log_std).sum(-1), kl_divergence(old, moved))
    widened = Independent(Normal(old_mean, log_std.exp()), 1)
    torch.testing.assert_close(kl.kl_of_stds(log_std, old_log_std).sum(-1), kl_divergence(old, widened))


def test_zero_for_no_change_and_never_negative() -> None:
    mean, log_std, old_mean, old_log_std = random_policies(4, batch=400)
    assert not kl.kl_of_means(old_mean, old_mean, old_log_std).any()
    assert not kl.kl_of_stds(old_log_std, old_log_std).any()
    assert (kl.kl_of_means(mean, old_mean, old_log_std) > 0).all()
    assert (kl.kl_of_stds(log_std, old_log_std) > 0).all()


@pytest.mark.parametrize("change", [1e-5, 1e-4, -1e-4, 1e-3, -1e-2, 0.5])
def test_small_steps_keep_their_digits_in_float32(change: float) -> None:
    # Bounds of 1e-6 are common, and a sum of a few such steps is compared with them.
    log_std = torch.tensor([change], requires_grad=True)
    exact = log_std.detach().double()
    found = kl.kl_of_stds(log_std, torch.zeros(1))
    expected = exact.item() + 0.5 * math.expm1(-2 * exact.item())
    assert found.item() == pytest.approx(expected, rel=2e-3)
    (slope,) = torch.autograd.grad(found, log_std)
    assert slope.item() == pytest.approx(-math.expm1(-2 * exact.item()), rel=1e-2)
    old_mean = torch.tensor([0.5])
    distance = (old_mean + change).double() - 0.5
    of_mean = kl.kl_of_means(old_mean + change, old_mean, torch.zeros(1)).item()
    assert of_mean == pytest.approx(distance.item() ** 2 / 2, rel=1e-5)


def test_small_steps_are_never_negative_in_float32() -> None:
    steps = torch.cat([torch.linspace(-1e-2, 1e-2, 20_001), torch.logspace(-12, 1, 20_001)])
    assert (kl.kl_of_stds(steps, torch.zeros(())) >= 0).all()
    assert (kl.kl_of_stds(-steps, torch.zeros(())) >= 0).all()


def test_gradients_reach_the_new_policy_and_any_shape_works() -> None:
    mean, log_std, old_mean, old_log_std = (x.reshape(2, 3, 3).requires_grad_() for x in random_policies(5))
    of_means, of_stds = kl.kl_of_means(mean, old_mean, old_log_std), kl.kl_of_stds(log_std, old_log_std)
    assert of_means.shape == of_stds.shape == (2, 3, 3)
    (gradient,) = torch.autograd.grad(of_means.sum(), mean)
    torch.testing.assert_close(gradient, ((mean - old_mean) / (2 * old_log_std).exp()).detach())
    (gradient,) = torch.autograd.grad(of_stds.sum(), log_std)
    torch.testing.assert_close(gradient, (1 - (2 * (old_log_std - log_std)).exp()).detach())
