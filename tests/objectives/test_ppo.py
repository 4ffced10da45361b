from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minerva.objectives import ppo
from minerva.objectives.critic import value_loss
from minerva.objectives.weighted import weighted_mean
from tests.objectives import oracle_ppo as oracle

EPS = 0.2


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient(loss: torch.Tensor, *inputs: torch.Tensor) -> list[list[float]]:
    return [g.tolist() for g in torch.autograd.grad(loss.sum(), inputs)]


@pytest.mark.formula(
    "minerva.objectives.ppo",
    r"s_A^2 = \frac{1}{\sum_b w_b - k} \sum_b w_b \left( A_b - \mathbb{E}[A] \right)^2",
    r"\hat{A} = \frac{A - \mathbb{E}[A]}{s_A + 10^{-8}}",
)
def test_normalize_advantages_by_hand() -> None:
    # Mean 3, unbiased variance (4 + 0 + 4) / 2 = 4; the last row does not count.
    found = ppo.normalize_advantages(t64(1, 3, 5, 100), t64(1, 1, 1, 0))
    assert found[:3].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-8)


def test_normalized_advantages_have_mean_zero_and_unbiased_deviation_one() -> None:
    advantages = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 7 + 3
    found = ppo.normalize_advantages(advantages, torch.ones(64).double())
    assert found.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert found.std(unbiased=True).item() == pytest.approx(1.0, abs=1e-8)
    # Shifting or scaling the advantages changes nothing.
    torch.testing.assert_close(ppo.normalize_advantages(5 * advantages - 9, torch.ones(64).double()), found)


@pytest.mark.formula("minerva.objectives.ppo", r"\hat{A} = \frac{A - \mathbb{E}[A]}{s_A + 10^{-8}}")
def test_the_small_constant_is_added_to_the_deviation() -> None:
    # Deviation 2e-8 plus the constant 1e-8: two thirds of the result without it.
    found = ppo.normalize_advantages(t64(-2e-8, 0, 2e-8), t64(1, 1, 1))
    assert found.tolist() == pytest.approx([-2 / 3, 0.0, 2 / 3])
    assert ppo.normalize_advantages(t64(4, 4), t64(1, 1)).tolist() == [0.0, 0.0]


def test_one_sample_is_not_normalized() -> None:
    assert ppo.normalize_advantages(t64(5), t64(1)).tolist() == [5.0]
    assert ppo.normalize_advantages(t64(5, 8, 9), t64(0, 1, 0))[1].item() == 8.0
    assert ppo.normalize_advantages(t64(5, 8), t64(0, 0)).tolist() == [5.0, 8.0]
    two = ppo.normalize_advantages(t64(5, 8), t64(1, 1)).tolist()
    assert two == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


@pytest.mark.formula(
    "minerva.objectives.ppo",
    r"\rho = \frac{\pi(a|s)}{\pi_{\mathrm{old}}(a|s)} = e^{\log \rho}",
    (
        r"\ell_{\mathrm{pg}} = \max\left(-\hat{A} \rho,\; -\hat{A}\, \mathrm{clip}(\rho, 1 - \epsilon, 1 + "
        r"\epsilon)\right)"
    ),
)
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # The surrogate is -A rho with slope -A rho in log rho, and flat where clipping makes the loss larger.
        (1.0, 3.0, -3.0, -3.0),
        (1.0, -3.0, 3.0, 3.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),
        (1.5, -2.0, 3.0, 3.0),
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_clipped_policy_loss_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_ratio = t64(math.log(ratio)).requires_grad_()
    found = ppo.clipped_policy_loss(log_ratio, t64(advantage), EPS)
    assert found.item() == pytest.approx(loss)
    assert gradient(found, log_ratio)[0][0] == pytest.approx(slope)


def test_policy_gradient_at_ratio_one_is_the_plain_policy_gradient() -> None:
    # E[-A grad log pi] for any epsilon.
    advantages = t64(0.5, -2.0, 3.0)
    for eps in (0.01, 0.2, 0.9):
        log_ratio = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        assert gradient(ppo.clipped_policy_loss(log_ratio, advantages, eps), log_ratio) == [(-advantages).tolist()]


@pytest.mark.formula("minerva.objectives.critic", r"\ell_V = \tfrac12 (V - R)^2")
def test_value_loss_by_hand() -> None:
    values = t64(3.0, -1.0).requires_grad_()
    found = value_loss(values, t64(1.0, 1.0))
    assert found.tolist() == [2.0, 2.0]
    assert gradient(found, values) == [[2.0, -2.0]]


@pytest.mark.formula(
    "minerva.objectives.ppo",
    r"V_{\mathrm{clip}} = V_{\mathrm{old}} + \mathrm{clip}(V - V_{\mathrm{old}}, -\epsilon, \epsilon)",
    r"\ell_V = \tfrac12 \max\left((V - R)^2,\; (V_{\mathrm{clip}} - R)^2\right)",
)
@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (1.1, 1.0, 2.0, 0.405, -0.9),  # within epsilon: the plain loss
        (1.5, 1.0, 2.0, 0.32, 0.0),  # beyond epsilon towards the target: no gradient
        (0.5, 1.0, 2.0, 1.125, -1.5),  # away from the target: the plain loss is larger
        (0.5, 1.0, 0.0, 0.32, 0.0),
        (1.5, 1.0, 0.0, 1.125, 1.5),
    ],
)
def test_clipped_value_loss_by_hand(value: float, old: float, target: float, loss: float, slope: float) -> None:
    values = t64(value).requires_grad_()
    found = ppo.clipped_value_loss(values, t64(old), t64(target), EPS)
    assert found.item() == pytest.approx(loss)
    assert gradient(found, values)[0][0] == pytest.approx(slope)


@pytest.mark.formula("minerva.objectives.ppo", r"k_3 = \rho - 1 - \log \rho")
def test_kl_estimate_by_hand() -> None:
    log_ratio = t64(0.0, math.log(2.0), math.log(0.5)).requires_grad_()
    found = ppo.kl_estimate(log_ratio)
    assert found.tolist() == pytest.approx([0.0, 1 - math.log(2.0), -0.5 + math.log(2.0)])
    assert gradient(found, log_ratio)[0] == pytest.approx([0.0, 1.0, -0.5])  # rho - 1


def test_kl_estimate_is_never_negative_and_keeps_its_digits_near_zero() -> None:
    small = torch.tensor([1e-4, -1e-4, 1e-3], dtype=torch.float32)
    np.testing.assert_allclose(ppo.kl_estimate(small).numpy(), (small.double() ** 2 / 2).numpy(), rtol=0.15)
    assert (ppo.kl_estimate(torch.linspace(-3, 3, 1001)) >= 0).all()


def test_kl_estimate_is_unbiased() -> None:
    # KL between unit Gaussians with means 1/2 apart is 1/8.
    actions = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_ratio = -0.5 * (actions - 0.5) ** 2 + 0.5 * actions**2
    assert ppo.kl_estimate(log_ratio).mean().item() == pytest.approx(0.125, rel=0.01)


@pytest.mark.formula("minerva.objectives.ppo", r"\mathbb{1}\left[\,|\rho - 1| > \epsilon\,\right]")
def test_is_clipped_by_hand() -> None:
    log_ratio = torch.log(t64(1.0, 1.19, 1.21, 0.81, 0.79, 3.0))
    found = ppo.is_clipped(log_ratio, EPS)
    assert found.tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert found.dtype == torch.float64
    assert ppo.is_clipped(t64(0.0), 0.0).tolist() == [0.0]  # outside the range, not at its edge


@pytest.mark.formula(
    "minerva.objectives.ppo",
    r"s_A^2 = \frac{1}{\sum_b w_b - k} \sum_b w_b \left( A_b - \mathbb{E}[A] \right)^2",
    r"\hat{A} = \frac{A - \mathbb{E}[A]}{s_A + 10^{-8}}",
    r"\rho = \frac{\pi(a|s)}{\pi_{\mathrm{old}}(a|s)} = e^{\log \rho}",
    (
        r"\ell_{\mathrm{pg}} = \max\left(-\hat{A} \rho,\; -\hat{A}\, \mathrm{clip}(\rho, 1 - \epsilon, 1 + "
        r"\epsilon)\right)"
    ),
    r"V_{\mathrm{clip}} = V_{\mathrm{old}} + \mathrm{clip}(V - V_{\mathrm{old}}, -\epsilon, \epsilon)",
    r"\ell_V = \tfrac12 \max\left((V - R)^2,\; (V_{\mathrm{clip}} - R)^2\right)",
    r"k_3 = \rho - 1 - \log \rho",
    r"\mathbb{1}\left[\,|\rho - 1| > \epsilon\,\right]",
)
@pytest.mark.parametrize("norm_adv", [True, False])
@pytest.mark.parametrize("clip_vloss", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_whole_loss_against_the_oracle(seed: int, clip_vloss: bool, norm_adv: bool) -> None:
    rng = np.random.default_rng(seed)
    size = 50
    old, new = rng.normal(size=size), rng.normal(size=size)
    new = old + 0.3 * new
    old_values, values, targets = rng.normal(size=(3, size))
    advantages = rng.normal(size=size) * 4 + 1
    weights = (rng.random(size) < 0.8).astype(np.float64)
    expected = oracle.losses(
        oracle.Minibatch(old, old_values, advantages, targets, weights), new, values, 0.0, EPS, 0.0, 0.5, norm_adv,
        clip_vloss,
    )  # fmt: skip
    w, log_ratio, v, v_old, r, a = (
        torch.tensor(x) for x in (weights, new - old, values, old_values, targets, advantages)
    )
    if norm_adv:
        a = ppo.normalize_advantages(a, w)
    value_losses = ppo.clipped_value_loss(v, v_old, r, EPS) if clip_vloss else value_loss(v, r)

    def near(x: float) -> object:
        return pytest.approx(x, rel=1e-12, abs=1e-14)

    assert weighted_mean(ppo.clipped_policy_loss(log_ratio, a, EPS), w).item() == near(expected.policy)
    assert weighted_mean(value_losses, w).item() == near(expected.value)
    assert weighted_mean(ppo.kl_estimate(log_ratio), w).item() == near(expected.approx_kl)
    assert weighted_mean(ppo.is_clipped(log_ratio, EPS), w).item() == near(expected.clipfrac)


@pytest.mark.parametrize("name", ["policy", "value", "clipped value", "kl", "normalize", "mean"])
def test_gradients_against_finite_differences(name: str) -> None:
    rng = np.random.default_rng(3)
    x, a, b = (torch.tensor(rng.normal(size=20)) for _ in range(3))
    weights = torch.tensor((rng.random(20) < 0.7).astype(np.float64))
    functions = {
        "policy": lambda x: ppo.clipped_policy_loss(x, a, EPS),
        "value": lambda x: value_loss(x, a),
        "clipped value": lambda x: ppo.clipped_value_loss(x, b, a, EPS),
        "kl": ppo.kl_estimate,
        "normalize": lambda x: ppo.normalize_advantages(x, weights),
        "mean": lambda x: weighted_mean(x, weights),
    }
    assert torch.autograd.gradcheck(functions[name], (x.requires_grad_(),))
