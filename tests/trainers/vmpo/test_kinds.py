from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from minerva.networks.heads import BernoulliHead, CategoricalHead, MultiCategoricalHead
from minerva.objectives import lagrange, vmpo
from minerva.objectives.weighted import weighted_mean
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.trainers.vmpo.gaussian_mlp_policy import SquashedGaussianPolicy
from minerva.trainers.vmpo.kinds import ActionKind, ContinuousActions, DiscreteActions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it stands on uses names that jax has deprecated
    import rlax

CONFIG = VMPOConfig(epsilon_mu=0.02, epsilon_sigma=0.03)


KINDS: dict[str, ActionKind] = {
    "gaussian": ContinuousActions(SquashedGaussianPolicy(3, 2), CONFIG),
    "choice": DiscreteActions(CategoricalHead(4), [4], CONFIG),
    "choices": DiscreteActions(MultiCategoricalHead([3, 2]), [3, 2], CONFIG),
    "switches": DiscreteActions(BernoulliHead(3), [2, 2, 2], CONFIG),
}


def draw(size: int, seed: int, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_names_and_bounds() -> None:
    gaussian = KINDS["gaussian"]
    assert gaussian.old_names == ("old_means", "old_log_stds")
    assert [(bound.epsilon, bound.multiplier) for bound in gaussian.bounds] == [(0.02, "mu"), (0.03, "sigma")]
    for name in ("choice", "choices", "switches"):
        assert KINDS[name].old_names == ("old_logits",)
        assert [(bound.epsilon, bound.multiplier) for bound in KINDS[name].bounds] == [(0.02, "policy")]


@pytest.mark.formula("minerva.trainers.vmpo.kinds", r"D_t = \mathrm{KL}(\pi'_t \,\|\, \pi_t)")
@pytest.mark.parametrize("name", ["choice", "choices", "switches"])
def test_discrete_kinds_equal_torchs_distributions(name: str) -> None:
    kind = KINDS[name]
    size = {"choice": 4, "choices": 5, "switches": 3}[name]
    logits, old = draw(size, 1), draw(size, 2)
    pairs: list[tuple[Any, Any]]
    if name == "switches":
        pairs = [(Bernoulli(logits=logits[:, j]), Bernoulli(logits=old[:, j])) for j in range(3)]
    else:
        parts = [slice(0, 4)] if name == "choice" else [slice(0, 3), slice(3, 5)]
        pairs = [(Categorical(logits=logits[:, k]), Categorical(logits=old[:, k])) for k in parts]
    actions = torch.stack([before.sample() for _, before in pairs], dim=-1).double()
    samples, log_volume = kind.unsquash(actions)
    assert torch.equal(samples, actions) and torch.equal(log_volume, torch.zeros(6, dtype=torch.float64))
    for found, expected in (
        (kind.log_prob((logits,), samples), sum(p.log_prob(actions[:, j]) for j, (p, _) in enumerate(pairs))),
        (kind.entropy((logits,)), sum(p.entropy() for p, _ in pairs)),
        (kind.divergences((logits,), (old,))[0], sum(kl_divergence(before, p) for p, before in pairs)),
    ):
        torch.testing.assert_close(found, expected)
    assert kind.metrics((logits,), torch.ones(6)) == {}


@pytest.mark.formula(
    "minerva.trainers.vmpo.kinds",
    r"D_{\mu,t} = \sum_j D_{\mu,t,j}",
    r"D_{\sigma,t} = \sum_j D_{\sigma,t,j}",
)
def test_the_gaussian_kind_equals_torchs_distributions() -> None:
    kind = KINDS["gaussian"]
    mean, log_std, old_mean, old_log_std = (draw(2, seed) for seed in range(4))
    old = Normal(old_mean, old_log_std.exp())
    found = kind.divergences((mean, log_std), (old_mean, old_log_std))
    for new, divergence in zip(
        (Normal(mean, old_log_std.exp()), Normal(old_mean, log_std.exp())),
        found,
        strict=True,
    ):
        torch.testing.assert_close(divergence, kl_divergence(old, new).sum(-1))
    both: Any = Normal(mean, log_std.exp())
    torch.testing.assert_close(kind.entropy((mean, log_std)), both.entropy().sum(-1))
    torch.testing.assert_close(kind.log_prob((mean, log_std), old_mean), both.log_prob(old_mean).sum(-1))


@pytest.mark.formula("minerva.trainers.vmpo.kinds", r"H(\pi'_t, \pi_t) = H(\pi'_t) + \mathrm{KL}(\pi'_t \,\|\, \pi_t)")
@pytest.mark.parametrize("name", ["choice", "choices", "switches"])
def test_the_cross_entropy_is_the_mean_score_of_all_actions(name: str) -> None:
    kind = KINDS[name]
    counts = {"choice": [4], "choices": [3, 2], "switches": [2, 2, 2]}[name]
    size = {"choice": 4, "choices": 5, "switches": 3}[name]
    logits, old = draw(size, 1).requires_grad_(), draw(size, 2)
    expected = torch.zeros(6, dtype=torch.float64)
    for action in torch.cartesian_prod(*(torch.arange(float(n), dtype=torch.float64) for n in counts)).reshape(
        -1, len(counts)
    ):
        actions = action.expand(6, -1)
        expected = expected - kind.log_prob((old,), actions).exp() * kind.log_prob((logits,), actions)
    found = kind.cross_entropy((logits,), (old,))
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("seed", range(2))
def test_a_categorical_policys_loss_equals_rlax(seed: int) -> None:
    kind = KINDS["choice"]
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
    nll = vmpo.weighted_nll(kind.log_prob((logits,), actions), result.weights)
    divergence = weighted_mean(kind.divergences((logits,), (old,))[0], selected.weights)
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
