from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from minerva.objectives import lagrange, vmpo
from minerva.objectives.gaussian import gaussian_cross_entropy, gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.weighted import weighted_mean
from tests.objectives import oracle_vmpo as oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use names that jax has deprecated
    import rlax


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return advantages, restarting weights and importance weights."""
    generator = torch.Generator().manual_seed(seed)
    advantages = 2 * torch.randn(rows, generator=generator) + 0.5
    restarting = (torch.rand(rows, generator=generator) < 0.8).float()
    importance = torch.rand(rows, generator=generator) + 0.5
    return advantages, restarting, importance


def e_step(
    advantages: torch.Tensor, restarting: torch.Tensor, importance: torch.Tensor, eta: torch.Tensor, fraction: float
) -> tuple[vmpo.Selection, vmpo.EStep]:
    scaled = vmpo.scale_advantages(advantages, restarting, eta)
    selected = vmpo.select_top(scaled, restarting, fraction)
    return selected, vmpo.e_step(scaled, selected.weights, importance, eta, epsilon=0.1)


# Against RLax


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"s_t = \frac{w_t \hat{A}_t}{\eta}",
    r"\tau = \min\, \mathrm{top}_k\, \{ s_t : w_t > 0 \}",
    r"\bar{w}_t = w_t\, \mathbb{1}[ s_t \ge \tau ]",
    r"\tilde{\psi}_t = \bar{w}_t\, \omega_t \exp(s_t - s_{\max}), \quad s_{\max} = \max_{u:\, \bar{w}_u > 0} s_u",
    r"\psi_t = \frac{\tilde{\psi}_t}{\sum_u \tilde{\psi}_u}",
    r"L_\eta = \eta \left( \epsilon_\eta + \log \sum_t \tilde{\psi}_t + s_{\max} - \log \sum_t \bar{w}_t \right)",
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("fraction", "restarts"),
    # RLax's fraction includes restarting rows; both agree if there are none, or if all rows are kept.
    [(0.5, False), (0.3, False), (1.0, False), (1.0, True)],
)
def test_weights_and_temperature_loss_equal_rlax(fraction: float, restarts: bool, seed: int) -> None:
    advantages, restarting, importance = draw(64, seed)
    if not restarts:
        restarting = torch.ones(64)
    eta = torch.tensor(0.7, requires_grad=True)
    _, found = e_step(advantages, restarting, importance, eta, fraction)
    (slope,) = torch.autograd.grad(found.temperature_loss, eta)

    def reference(eta: Any) -> Any:
        loss, weights, count = rlax.vmpo_compute_weights_and_temperature_loss(
            jnp.asarray(advantages.numpy()), jnp.asarray(restarting.numpy()), jnp.asarray(importance.numpy()),
            rlax.LagrangePenalty(eta, jnp.asarray(0.1)), lambda x: x, fraction,
        )  # fmt: skip
        return loss, (weights, count)

    (loss, (weights, _)), expected_slope = jax.value_and_grad(reference, has_aux=True)(jnp.asarray(0.7))
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-5, atol=1e-7)
    assert found.temperature_loss.item() == pytest.approx(float(loss), rel=1e-5)
    assert slope.item() == pytest.approx(float(expected_slope), rel=1e-4, abs=1e-5)


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"k = \lfloor \rho N \rfloor",
    r"\tau = \min\, \mathrm{top}_k\, \{ s_t : w_t > 0 \}",
)
@pytest.mark.parametrize("fraction", [0.5, 0.25])
def test_the_fraction_is_of_the_rows_that_count(fraction: float) -> None:
    advantages, restarting, importance = draw(60, 5)
    real = restarting > 0
    assert 0 < real.sum() < 60
    _, found = e_step(advantages, restarting, importance, torch.tensor(0.7), fraction)
    loss, weights, _ = rlax.vmpo_compute_weights_and_temperature_loss(
        *(jnp.asarray(x[real].numpy()) for x in (advantages, restarting, importance)),
        rlax.LagrangePenalty(jnp.asarray(0.7), jnp.asarray(0.1)), lambda x: x, fraction,
    )  # fmt: skip
    np.testing.assert_allclose(found.weights[real].numpy(), weights, rtol=1e-5, atol=1e-7)
    assert not found.weights[~real].any()
    assert found.temperature_loss.item() == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.formula("minerva.objectives.vmpo", r"L_{\mathrm{NLL}} = -\sum_t \psi_t \log \pi(a_t | s_t)")
@pytest.mark.parametrize("seed", range(3))
def test_all_parts_of_the_loss_equal_rlax(seed: int) -> None:
    advantages, _, importance = draw(40, seed)
    generator = torch.Generator().manual_seed(seed)
    mean, log_std, old_mean, old_log_std = (0.5 * torch.randn(40, 3, generator=generator) for _ in range(4))
    log_probs = torch.randn(40, generator=generator)
    inputs = [mean, log_std, log_probs]
    alphas = torch.tensor([1.3, 0.4])
    for x in (*inputs, alphas):
        x.requires_grad_()
    selected, found = e_step(advantages, torch.ones(40), importance, torch.tensor(0.7), 0.5)
    d_mu = weighted_mean(kl_of_means(mean, old_mean, old_log_std).sum(-1), selected.weights)
    d_sigma = weighted_mean(kl_of_stds(log_std, old_log_std).sum(-1), selected.weights)
    nll = vmpo.weighted_nll(log_probs, found.weights)
    penalty = lagrange.kl_penalty(alphas[0], d_mu) + lagrange.kl_penalty(alphas[1], d_sigma)
    alpha_loss = lagrange.alpha_loss(alphas[0], d_mu, 0.01) + lagrange.alpha_loss(alphas[1], d_sigma, 0.02)
    gradients = torch.autograd.grad(nll + penalty + alpha_loss, [*inputs, alphas])

    arrays = [jnp.asarray(x.detach().numpy()) for x in (mean, log_std, log_probs, alphas)]
    old = jnp.asarray(old_mean.numpy()), jnp.asarray(old_log_std.numpy())

    def reference(mean: Any, log_std: Any, log_probs: Any, alphas: Any) -> Any:
        kl_mean = (0.5 * (mean - old[0]) ** 2 / jnp.exp(2 * old[1])).sum(-1)
        ratio = jnp.exp(2 * (old[1] - log_std))
        kl_std = (0.5 * (ratio - 1 - jnp.log(ratio))).sum(-1)
        constraints = [
            (kl_mean, rlax.LagrangePenalty(alphas[0], jnp.asarray(0.01))),
            (kl_std, rlax.LagrangePenalty(alphas[1], jnp.asarray(0.02))),
        ]
        _, parts = rlax.vmpo_loss(
            log_probs, jnp.asarray(advantages.numpy()), rlax.LagrangePenalty(jnp.asarray(0.7), jnp.asarray(0.1)),
            constraints, lambda x: x, importance_weights=jnp.asarray(importance.numpy()), top_k_fraction=0.5,
        )  # fmt: skip
        top = (parts.normalized_weights > 0).astype(jnp.float32)
        # One value per sample; the constraints are averaged over the kept samples.
        kl_loss, alpha_loss = (jnp.sum(top * x) / jnp.sum(top) for x in (parts.kl_loss, parts.alpha_loss))
        results = parts.policy_loss.mean(), kl_loss, alpha_loss
        return sum(results), results

    (_, parts), expected = jax.value_and_grad(reference, argnums=(0, 1, 2, 3), has_aux=True)(*arrays)
    for value, part in zip((nll, penalty, alpha_loss), parts, strict=True):
        assert value.item() == pytest.approx(float(part), rel=1e-5)
    for gradient, slope in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-4, atol=1e-6)


# By hand


@pytest.mark.formula("minerva.objectives.vmpo", r"\hat{A} = \frac{A - \mathbb{E}[A]}{\sqrt{\mathrm{Var}[A]} + 10^{-8}}")
def test_advantages_are_normalized_by_the_population_deviation_of_the_rows_that_count() -> None:
    found = vmpo.normalize_advantages(t64(1, 3, 5, 100), t64(1, 1, 1, 0))
    assert found[:3].tolist() == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    # The constant is added to the deviation, not to the variance.
    tiny = vmpo.normalize_advantages(t64(-1e-8, 1e-8), t64(1, 1))
    assert tiny.tolist() == pytest.approx([-0.5, 0.5])
    assert vmpo.normalize_advantages(t64(4, 4), t64(1, 1)).tolist() == [0.0, 0.0]


@pytest.mark.formula("minerva.objectives.vmpo", r"s_t = \frac{w_t \hat{A}_t}{\eta}")
def test_scaling_by_hand() -> None:
    assert vmpo.scale_advantages(t64(1, -3, 5), t64(1, 1, 0), t64(2)[0]).tolist() == [0.5, -1.5, 0.0]


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"k = \lfloor \rho N \rfloor",
    r"\tau = \min\, \mathrm{top}_k\, \{ s_t : w_t > 0 \}",
    r"\bar{w}_t = w_t\, \mathbb{1}[ s_t \ge \tau ]",
)
@pytest.mark.parametrize(
    ("scaled", "weights", "fraction", "expected", "threshold"),
    [
        ((1, 4, 3, 2), (1, 1, 1, 1), 0.5, (0, 1, 1, 0), 3),
        ((1, 4, 3, 2), (1, 1, 1, 1), 0.75, (0, 1, 1, 1), 2),
        ((1, 4, 3, 2), (1, 1, 1, 1), 0.74, (0, 1, 1, 0), 3),  # rounded down
        ((1, 4, 3, 2), (1, 1, 1, 1), 1.0, (1, 1, 1, 1), 1),
        ((5, 4, 5, 5, 1, 0), (1, 1, 1, 1, 1, 1), 0.34, (1, 0, 1, 1, 0, 0), 5),  # ties are kept
        # The 0 of a restarting row is the largest, but it is neither kept nor counted.
        ((-1, 0, -3, -2, -4), (1, 0, 1, 1, 1), 0.5, (1, 0, 0, 1, 0), -2),
        ((-1, 0, -3, -2), (1, 0, 1, 1), 1.0, (1, 0, 1, 1), -3),
        ((0, 0, 0), (0, 0, 0), 1.0, (1, 1, 1), 0),  # none count: keep all
    ],
)
def test_selection_by_hand(
    scaled: tuple[float, ...],
    weights: tuple[float, ...],
    fraction: float,
    expected: tuple[float, ...],
    threshold: float,
) -> None:
    found = vmpo.select_top(t64(*scaled), t64(*weights), fraction)
    assert found.weights.tolist() == list(expected)
    assert found.threshold.item() == threshold


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.1, math.nan])
def test_a_fraction_outside_the_interval_is_an_error(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"topk_fraction: must lie in \(0, 1\], got {fraction}"):
        vmpo.select_top(t64(1, 2), t64(1, 1), fraction)


def test_a_fraction_that_keeps_nothing() -> None:
    assert vmpo.select_top(t64(1, 2, 3, 4), t64(1, 1, 1, 0), 0.3).weights.tolist() == [0, 0, 0, 0]
    assert vmpo.select_top(t64(0, 0), t64(0, 0), 0.5).weights.tolist() == [0, 0]


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"\tilde{\psi}_t = \bar{w}_t\, \omega_t \exp(s_t - s_{\max}), \quad s_{\max} = \max_{u:\, \bar{w}_u > 0} s_u",
    r"\psi_t = \frac{\tilde{\psi}_t}{\sum_u \tilde{\psi}_u}",
    r"L_\eta = \eta \left( \epsilon_\eta + \log \sum_t \tilde{\psi}_t + s_{\max} - \log \sum_t \bar{w}_t \right)",
)
def test_e_step_by_hand() -> None:
    eta = t64(0.5)[0]
    scaled = t64(2, 0, 4) * math.log(2)
    found = vmpo.e_step(scaled, t64(1, 0, 1), t64(3, 1, 2), eta, epsilon=0.25)
    # 3 * 4 and 2 * 16 of 44.
    assert found.weights.tolist() == pytest.approx([12 / 44, 0, 32 / 44])
    assert found.temperature_loss.item() == pytest.approx(0.5 * (0.25 + math.log(44 / 2)))


@pytest.mark.formula("minerva.objectives.vmpo", r"L_{\mathrm{NLL}} = -\sum_t \psi_t \log \pi(a_t | s_t)")
def test_weighted_nll_by_hand() -> None:
    log_probs = t64(-1, -2, -8).requires_grad_()
    loss = vmpo.weighted_nll(log_probs, t64(0.25, 0.75, 0))
    assert loss.item() == 1.75
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert gradient.tolist() == [-0.25, -0.75, 0.0]


# Analytic facts


@pytest.mark.formula("minerva.objectives.vmpo", r"\psi_t = \frac{\tilde{\psi}_t}{\sum_u \tilde{\psi}_u}")
def test_no_gradient_passes_through_weights_threshold_and_importance() -> None:
    advantages, restarting, importance = (x.double().requires_grad_() for x in draw(20, 0))
    eta = t64(0.7)[0].requires_grad_()
    scaled = vmpo.scale_advantages(advantages, restarting.detach(), eta)
    selected = vmpo.select_top(scaled, restarting.detach(), 0.5)
    found = vmpo.e_step(scaled, selected.weights, importance, eta, 0.1)
    assert not (found.weights.requires_grad or selected.weights.requires_grad or selected.threshold.requires_grad)
    (slope,) = torch.autograd.grad(found.temperature_loss, importance, allow_unused=True)
    assert slope is None


def test_slope_of_the_temperature_loss_is_the_bound_less_the_divergence() -> None:
    # d L_η / d η = ε - KL(ψ ‖ importance weights of the kept samples): 0 where the bound is tight.
    advantages, restarting, importance = (x.double() for x in draw(50, 3))
    eta = t64(0.7)[0].requires_grad_()
    selected, found = e_step(advantages, restarting, importance, eta, 0.5)
    (slope,) = torch.autograd.grad(found.temperature_loss, eta)
    psi = found.weights[selected.weights > 0]
    base = importance[selected.weights > 0] / (selected.weights > 0).sum()
    assert slope.item() == pytest.approx(0.1 - (psi * (psi / base).log()).sum().item(), rel=1e-9)


def test_temperature_converges_to_where_its_bound_is_tight() -> None:
    advantages, restarting, _ = (x.double() for x in draw(200, 4))
    eta = t64(5)[0].requires_grad_()
    for _ in range(400):
        selected, found = e_step(advantages, restarting, torch.ones(200).double(), eta, 0.5)
        (slope,) = torch.autograd.grad(found.temperature_loss, eta)
        with torch.no_grad():
            eta -= 2 * slope
    psi = found.weights[selected.weights > 0]
    assert (psi * (psi * len(psi)).log()).sum().item() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"s_t = \frac{w_t \hat{A}_t}{\eta}",
    r"k = \lfloor \rho N \rfloor",
    r"\tau = \min\, \mathrm{top}_k\, \{ s_t : w_t > 0 \}",
    r"\bar{w}_t = w_t\, \mathbb{1}[ s_t \ge \tau ]",
    r"L_\eta = \eta \left( \epsilon_\eta + \log \sum_t \tilde{\psi}_t + s_{\max} - \log \sum_t \bar{w}_t \right)",
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_against_the_oracle(fraction: float, seed: int) -> None:
    advantages, restarting, importance = (x.double() for x in draw(30, seed))
    selected, found = e_step(advantages, restarting, importance, t64(0.7)[0], fraction)
    real = (restarting > 0).numpy()
    values, factors = advantages.numpy()[real], importance.numpy()[real]
    kept, threshold = oracle.keep_top(values / 0.7, fraction)
    assert np.flatnonzero(selected.weights.numpy()[real]).tolist() == kept
    assert selected.threshold.item() == pytest.approx(threshold)
    expected = oracle.temperature_loss(0.7, values, factors, kept, 0.1)
    assert found.temperature_loss.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [1e3, -1e3])
def test_large_advantages_neither_overflow_nor_vanish(size: float) -> None:
    # The 0 of a restarting row is a thousand above or below the rest.
    advantages = torch.tensor([size, size - 1, size - 2, 0.0])
    restarting = torch.tensor([1.0, 1.0, 1.0, 0.0])
    _, found = e_step(advantages, restarting, torch.ones(4), torch.tensor(1.0), 1.0)
    expected = torch.softmax(torch.tensor([0.0, -1.0, -2.0]), 0)
    torch.testing.assert_close(found.weights[:3], expected, rtol=1e-4, atol=0)
    assert found.temperature_loss.isfinite()


@pytest.mark.parametrize("change", [lambda x: x + 3, lambda x: 5 * x])
def test_shift_and_scale_do_not_change_normalized_advantages(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    advantages, restarting, _ = (x.double() for x in draw(30, 0))
    found = vmpo.normalize_advantages(advantages, restarting)
    torch.testing.assert_close(vmpo.normalize_advantages(change(advantages), restarting), found)


# The control variate


def gaussians(rows: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    mean, old_mean = (torch.randn(rows, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    log_std, old_log_std = (0.5 * torch.randn(rows, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    return mean, log_std, old_mean, old_log_std


@pytest.mark.formula(
    "minerva.objectives.vmpo",
    r"n_t = f_t \left( -\log \mathcal{N}(u_t; \mu_t, \sigma_t) - H(\mathcal{N}'_t, \mathcal{N}_t) \right)",
)
def test_the_samples_noise_by_hand() -> None:
    # Sampled from N(1, 1/2), scored by N(0, 2): -log N(3; 0, 2) = 9/8 + log 2 + c; its mean (1/4 + 1)/8 + log 2 + c.
    mean, log_std, old_mean, old_log_std = t64(0.0), t64(math.log(2)), t64(1.0), t64(math.log(0.5))
    log_prob = gaussian_log_prob(mean, log_std, t64(3.0))
    cross_entropy = gaussian_cross_entropy(mean, log_std, old_mean, old_log_std)
    for exactness in (1.0, 0.5, 0.0):
        noise = vmpo.sampling_noise(log_prob, cross_entropy, t64(exactness))
        assert noise.item() == pytest.approx(exactness * (9 / 8 - 1.25 / 8))


def test_the_samples_noise_is_zero_on_average_and_so_is_its_slope_whatever_the_new_policy() -> None:
    mean, log_std, old_mean, old_log_std = gaussians(5, seed=0)
    mean.requires_grad_()
    log_std.requires_grad_()
    # Three points are exact for polynomials up to degree 5; the log-density has degree 2.
    points, shares = (torch.from_numpy(x) for x in np.polynomial.hermite_e.hermegauss(3))
    total = torch.zeros((), dtype=torch.float64)
    for (x, share), (y, other) in itertools.product(zip(points, shares, strict=True), repeat=2):
        drawn = old_mean + old_log_std.exp() * torch.stack([x, y])
        scores = gaussian_log_prob(mean, log_std, drawn)
        cross_entropy = gaussian_cross_entropy(mean, log_std, old_mean, old_log_std)
        noise = vmpo.sampling_noise(scores, cross_entropy, torch.ones_like(scores))
        assert noise.abs().max() > 0.1
        total = total + (noise * share * other / (2 * math.pi)).sum()
    slopes = torch.autograd.grad(total, [mean, log_std])
    assert total.item() == pytest.approx(0, abs=1e-12)
    assert max(slope.abs().max().item() for slope in slopes) < 1e-12


@pytest.mark.parametrize("signal", [0.0, 0.5])
def test_the_control_variate_reduces_the_variance_of_the_gradient_and_keeps_its_mean(signal: float) -> None:
    # One state, acting policy = fitted policy, and a larger action may be better.
    generator = torch.Generator().manual_seed(0)
    zeros, ones, eta = (torch.full((64, 1), x, dtype=torch.float64) for x in (0.0, 1.0, 2.0))
    plain, reduced = [], []
    for _ in range(2_000):
        drawn = torch.randn(64, 1, generator=generator, dtype=torch.float64)
        advantages = signal * drawn + torch.randn(64, 1, generator=generator, dtype=torch.float64)
        counted = ones[:, 0]
        _, result = e_step(vmpo.normalize_advantages(advantages[:, 0], counted), counted, counted, eta[0, 0], 0.5)
        mean = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        log_probs = gaussian_log_prob(mean, zeros, drawn)
        nll = vmpo.weighted_nll(log_probs, result.weights)
        noise = vmpo.sampling_noise(log_probs, gaussian_cross_entropy(mean, zeros, zeros, zeros), counted).mean()
        plain.append(torch.autograd.grad(nll, mean, retain_graph=True)[0].item())
        reduced.append(torch.autograd.grad(nll - noise, mean)[0].item())
    difference = np.subtract(plain, reduced)
    assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(plain))
    if signal:
        assert np.mean(plain) < -0.3  # towards larger actions
    else:
        # Weights w = exp(A/2) of the better half of normal advantages: E[w^2] becomes Var[w].
        left = 1 - math.exp(-0.25) * normal_share(0.5) ** 2 / normal_share(1.0)
        assert np.var(reduced) / np.var(plain) == pytest.approx(left, rel=0.1)


def normal_share(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2
