"""What V-MPO needs of an action head: samples behind actions, divergences and cross-entropies."""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from minerva.networks.heads import (
    ActionHead,
    BernoulliHead,
    GaussianHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
)
from minerva.objectives import lagrange, vmpo
from minerva.objectives.weighted import weighted_mean

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it stands on uses names that jax has deprecated
    import rlax

DISCRETE: dict[str, ActionHead] = {
    "choice": MultiCategoricalHead([4]),
    "choices": MultiCategoricalHead([3, 2]),
    "switches": BernoulliHead(3),
}
GAUSSIAN: dict[str, GaussianHead] = {
    "gaussian": GaussianHead(2),
    "squashed": SquashedGaussianHead([-1.0, 0.5], [3.0, 1.0]).double(),
}


def draw(size: int, seed: int, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_a_batch_calls_the_parameters_of_the_policy_that_acted() -> None:
    assert {head.param_names for head in GAUSSIAN.values()} == {("old_means", "old_log_stds")}
    assert {head.param_names for head in DISCRETE.values()} == {("old_logits",)}


@pytest.mark.formula("minerva.networks.heads", r"D_t = \mathrm{KL}(\pi'_t \,\|\, \pi_t)")
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_heads_equal_torchs_distributions(name: str) -> None:
    head = DISCRETE[name]
    logits, old = draw(head.size, 1), draw(head.size, 2)
    pairs: list[tuple[Any, Any]]
    if name == "switches":
        pairs = [(Bernoulli(logits=logits[:, j]), Bernoulli(logits=old[:, j])) for j in range(3)]
    else:
        parts = [slice(0, 4)] if name == "choice" else [slice(0, 3), slice(3, 5)]
        pairs = [(Categorical(logits=logits[:, k]), Categorical(logits=old[:, k])) for k in parts]
    actions = torch.stack([before.sample() for _, before in pairs], dim=-1).double()
    samples, log_volume = head.unsquash(actions)
    assert torch.equal(samples, actions) and torch.equal(log_volume, torch.zeros(6, dtype=torch.float64))
    for found, expected in (
        (head.sample_log_prob((logits,), samples), sum(p.log_prob(actions[:, j]) for j, (p, _) in enumerate(pairs))),
        (head.entropy((logits,)), sum(p.entropy() for p, _ in pairs)),
        (head.divergences((logits,), (old,))[0], sum(kl_divergence(before, p) for p, before in pairs)),
    ):
        torch.testing.assert_close(found, expected)
    assert len(head.divergences((logits,), (old,))) == 1


@pytest.mark.formula(
    "minerva.networks.heads",
    r"D_{\mu,t} = \sum_j D_{\mu,t,j}",
    r"D_{\sigma,t} = \sum_j D_{\sigma,t,j}",
)
@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_heads_equal_torchs_distributions(name: str) -> None:
    head = GAUSSIAN[name]
    mean, log_std, old_mean, old_log_std = (draw(2, seed) for seed in range(4))
    old = Normal(old_mean, old_log_std.exp())
    found = head.divergences((mean, log_std), (old_mean, old_log_std))
    for new, divergence in zip(
        (Normal(mean, old_log_std.exp()), Normal(old_mean, log_std.exp())),
        found,
        strict=True,
    ):
        torch.testing.assert_close(divergence, kl_divergence(old, new).sum(-1))
    both: Any = Normal(mean, log_std.exp())
    torch.testing.assert_close(head.entropy((mean, log_std)), both.entropy().sum(-1))
    torch.testing.assert_close(head.sample_log_prob((mean, log_std), old_mean), both.log_prob(old_mean).sum(-1))
    # Divergence and entropy alike are those before any squashing.
    expected = (old.entropy() + kl_divergence(old, both)).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(head.cross_entropy((mean, log_std), (old_mean, old_log_std)), expected)


def test_a_gaussian_that_is_not_squashed_samples_its_actions() -> None:
    actions = draw(2, 5)
    samples, log_volume = GAUSSIAN["gaussian"].unsquash(actions)
    assert torch.equal(samples, actions) and torch.equal(log_volume, torch.zeros(6, dtype=torch.float64))


def test_a_squashed_gaussians_density_is_that_of_the_sample_less_the_volume() -> None:
    head, params = GAUSSIAN["squashed"], (draw(2, 1), draw(2, 2))
    actions = head.sample(params, draw(2, 3))
    samples, log_volume = head.unsquash(actions)
    torch.testing.assert_close(samples, params[0] + params[1].exp() * draw(2, 3), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(head.sample_log_prob(params, samples) - log_volume, head.log_prob(params, actions))
    # By how much an action moves with its sample.
    samples.requires_grad_()
    assert isinstance(head, SquashedGaussianHead)
    (slope,) = torch.autograd.grad(head.squash(samples).sum(), samples)
    torch.testing.assert_close(log_volume, slope.log().sum(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.formula("minerva.networks.heads", r"H(\pi'_t, \pi_t) = H(\pi'_t) + \mathrm{KL}(\pi'_t \,\|\, \pi_t)")
@pytest.mark.parametrize("name", DISCRETE)
def test_the_cross_entropy_is_the_mean_score_of_all_actions(name: str) -> None:
    head = DISCRETE[name]
    counts = {"choice": [4], "choices": [3, 2], "switches": [2, 2, 2]}[name]
    logits, old = draw(head.size, 1).requires_grad_(), draw(head.size, 2)
    expected = torch.zeros(6, dtype=torch.float64)
    for action in torch.cartesian_prod(*(torch.arange(float(n), dtype=torch.float64) for n in counts)).reshape(
        -1, len(counts)
    ):
        actions = action.expand(6, -1)
        expected = expected - head.log_prob((old,), actions).exp() * head.log_prob((logits,), actions)
    found = head.cross_entropy((logits,), (old,))
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("seed", range(2))
def test_a_categorical_policys_loss_equals_rlax(seed: int) -> None:
    head = DISCRETE["choice"]
    generator = torch.Generator().manual_seed(seed)
    logits, old = (torch.randn(40, 4, generator=generator) for _ in range(2))
    actions = torch.randint(0, 4, (40, 1), generator=generator).float()
    advantages = 2 * torch.randn(40, generator=generator) + 0.5
    alpha = torch.tensor(1.3)
    for x in (logits, alpha):
        x.requires_grad_()
    scaled = vmpo.scale_advantages(advantages, torch.ones(40), torch.tensor(0.7))
    selected = vmpo.select_top(scaled, torch.ones(40), 0.5)
    result = vmpo.e_step(scaled, selected.weights, torch.ones(40), torch.tensor(0.7), epsilon=0.1)
    nll = vmpo.weighted_nll(head.log_prob((logits,), actions), result.weights)
    divergence = weighted_mean(head.divergences((logits,), (old,))[0], selected.weights)
    penalty, alpha_loss = lagrange.kl_penalty(alpha, divergence), lagrange.alpha_loss(alpha, divergence, 0.02)
    gradients = torch.autograd.grad(nll + penalty + alpha_loss, [logits, alpha])

    def reference(logits: Any, alpha: Any) -> Any:
        log_probs = jax.nn.log_softmax(logits)[jnp.arange(40), jnp.asarray(actions[:, 0].long().numpy())]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PendingDeprecationWarning)  # rlax would rather see its own back end called
            divergences = rlax.categorical_kl_divergence(jnp.asarray(old.numpy()), logits)
        _, parts = rlax.vmpo_loss(
            log_probs, jnp.asarray(advantages.numpy()), rlax.LagrangePenalty(jnp.asarray(0.7), jnp.asarray(0.1)),
            [(divergences, rlax.LagrangePenalty(alpha, jnp.asarray(0.02)))], lambda x: x, top_k_fraction=0.5,
        )  # fmt: skip
        top = (parts.normalized_weights > 0).astype(jnp.float32)
        kl_loss, alpha_loss = (jnp.sum(top * x) / jnp.sum(top) for x in (parts.kl_loss, parts.alpha_loss))
        results = parts.policy_loss.mean(), kl_loss, alpha_loss
        return sum(results), results

    arrays = [jnp.asarray(x.detach().numpy()) for x in (logits, alpha)]
    (_, parts), expected = jax.value_and_grad(reference, argnums=(0, 1), has_aux=True)(*arrays)
    for value, part in zip((nll, penalty, alpha_loss), parts, strict=True):
        assert value.item() == pytest.approx(float(part), rel=1e-5)
    for gradient, slope in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-4, atol=1e-6)


@pytest.mark.formula(
    "minerva.networks.heads.SquashedGaussianHead.exactness",
    r"f_t = \mathrm{clip}\left( \min_j \frac{u_{\max} - |\mu'_{t,j}|}{\sigma'_{t,j}} - 2,\; 0,\; 1 \right)",
)
def test_samples_are_exact_three_deviations_away_from_where_tanh_saturates() -> None:
    limit = 0.5 * math.log((2 - 1e-6) / 1e-6)  # artanh(1 - 1e-6), about 7.25
    head, std = GAUSSIAN["squashed"], 0.5
    means = torch.tensor([0.0, limit - 3 * std, limit - 2.75 * std, limit - 2 * std, limit, 12.0], dtype=torch.float64)
    for sign in (1, -1):
        old = torch.stack([torch.zeros(6), sign * means], -1), torch.full((6, 2), math.log(std), dtype=torch.float64)
        torch.testing.assert_close(head.exactness(old), torch.tensor([1.0, 1, 0.75, 0, 0, 0], dtype=torch.float64))
    plain = GAUSSIAN["gaussian"].exactness((torch.full((2, 2), 99.0), torch.zeros(2, 2)))
    assert plain.tolist() == [1, 1]  # what is not squashed is never clipped


@pytest.mark.parametrize("mean", [4.0, 5.5, 6.0, 6.5, 7.0, 7.25, 9.0])
@pytest.mark.parametrize("std", [0.1, 0.4, 1.0])
def test_where_samples_count_as_exact_their_noise_has_mean_zero(mean: float, std: float) -> None:
    head = SquashedGaussianHead([-1.0], [1.0]).double()
    old_mean, log_std = torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[math.log(std)]])
    drawn = old_mean + std * torch.linspace(-8, 8, 20_001, dtype=torch.float64)[:, None]
    density = Normal(mean, std).log_prob(drawn[:, 0]).exp()  # type: ignore[no-untyped-call]
    samples, _ = head.unsquash(head.squash(drawn))  # those beyond the limit are clipped to it
    new = old_mean.clone().requires_grad_()
    params, old = (new.expand(20_001, 1), log_std), (old_mean, log_std)
    noise = vmpo.sampling_noise(
        head.sample_log_prob(params, samples), head.cross_entropy(params, old), head.exactness(old)
    )
    (slope,) = torch.autograd.grad(torch.trapezoid(noise * density, drawn[:, 0]), new)
    # In units of 1 / std, which is the slope of a sample one deviation away.
    assert abs(slope.item() * std) < 2e-3
