from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minerva.objectives import kl, lagrange, mpo
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.objectives.weighted import effective_sample_size
from tests.objectives import oracle_mpo as oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its dependencies use names that jax has deprecated
    import jax
    import jax.numpy as jnp
    import rlax

Array = NDArray[np.float64]
EPS, KL_EPS, PENALTY_EPS = 0.1, 0.02, 0.001
LOW, HIGH = np.array([-1.0, -0.5]), np.array([1.0, 2.0])


def t64(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> list[Any]:
    """Return the gradients of a loss for each input; None where it does not depend on the input."""
    found: tuple[Any, ...] = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    return [None if gradient is None else gradient.tolist() for gradient in found]


def random_batch(seed: int, batch: int = 5, samples: int = 7, dims: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "mean": rng.normal(size=(batch, dims)),
        "log_std": rng.normal(size=(batch, dims)) * 0.4 - 0.2,
        "old_mean": rng.normal(size=(batch, dims)),
        "old_log_std": rng.normal(size=(batch, dims)) * 0.4 - 0.2,
        "actions": rng.normal(size=(batch, samples, dims)) * 1.5,
        "q_values": rng.normal(size=(batch, samples)) * 2 + 1,
        "temperature": np.array(0.7),
        "penalty_temperature": np.array(1.3),
        "alpha_mean": np.exp(rng.normal(size=dims)),
        "alpha_std": np.exp(rng.normal(size=dims)),
    }


PARAMETERS = ("mean", "log_std", "temperature", "alpha_mean", "alpha_std")


def minerva_losses(x: dict[str, torch.Tensor], penalize: bool) -> dict[str, torch.Tensor]:
    """Compute the losses of both steps, combined according to the specification."""
    weights = mpo.e_step_weights(x["q_values"], x["temperature"])
    temperature = mpo.temperature_loss(x["q_values"], x["temperature"], EPS).mean()
    if penalize:
        cost = mpo.out_of_bounds_cost(
            x["actions"], torch.tensor(LOW).to(x["actions"]), torch.tensor(HIGH).to(x["actions"])
        )
        weights = weights + mpo.e_step_weights(cost, x["penalty_temperature"])
        temperature = temperature + mpo.temperature_loss(cost, x["penalty_temperature"], PENALTY_EPS).mean()
    log_probs = [
        gaussian_log_prob(mean[:, None], log_std[:, None], x["actions"])
        for mean, log_std in ((x["mean"], x["old_log_std"]), (x["old_mean"], x["log_std"]))
    ]
    policy = sum((mpo.weighted_nll(p, weights).mean() for p in log_probs), torch.zeros(()))
    kl_mean = kl.kl_of_means(x["mean"], x["old_mean"], x["old_log_std"]).mean(0)
    kl_std = kl.kl_of_stds(x["log_std"], x["old_log_std"]).mean(0)
    penalty = lagrange.kl_penalty(x["alpha_mean"], kl_mean).sum() + lagrange.kl_penalty(x["alpha_std"], kl_std).sum()
    alpha = (
        lagrange.alpha_loss(x["alpha_mean"], kl_mean, KL_EPS).sum()
        + lagrange.alpha_loss(x["alpha_std"], kl_std, KL_EPS).sum()
    )
    return {"policy": policy, "temperature": temperature, "penalty": penalty, "alpha": alpha}


def rlax_losses(x: dict[str, Any], penalize: bool) -> dict[str, Any]:
    def log_prob(mean: Any, log_std: Any) -> Any:
        z = (x["actions"] - mean[:, None]) / jnp.exp(log_std[:, None])
        return jnp.sum(-0.5 * z**2 - log_std[:, None] - 0.5 * jnp.log(2 * jnp.pi), axis=-1)

    def constraint(alpha: Any, epsilon: float, per_dimension: bool = False) -> Any:
        return rlax.LagrangePenalty(alpha=alpha, epsilon=jnp.asarray(epsilon), per_dimension=per_dimension)

    def divergence(mean: Any, log_std: Any) -> Any:
        new = mean[..., None], jnp.exp(log_std)[..., None]  # one Gaussian per dimension
        old = x["old_mean"][..., None], jnp.exp(x["old_log_std"])[..., None]
        return rlax.multivariate_normal_kl_divergence(*old, *new)

    kl_constraints = [
        (divergence(x["mean"], x["old_log_std"]), constraint(x["alpha_mean"], KL_EPS, True)),
        (divergence(x["old_mean"], x["log_std"]), constraint(x["alpha_std"], KL_EPS, True)),
    ]
    log_probs = log_prob(x["mean"], x["old_log_std"]) + log_prob(x["old_mean"], x["log_std"])
    _, parts = rlax.mpo_loss(
        log_probs, x["q_values"], constraint(x["temperature"], EPS), kl_constraints, lambda x: x, sample_axis=1
    )
    policy, temperature = parts.policy_loss, parts.temperature_loss
    if penalize:
        outside = x["actions"] - jnp.clip(x["actions"], LOW, HIGH)
        cost = -jnp.sqrt(jnp.sum(outside**2, axis=-1))
        # The loss is linear in the weights, so a second set of weights is a second loss.
        _, more = rlax.mpo_loss(
            log_probs, cost, constraint(x["penalty_temperature"], PENALTY_EPS), kl_constraints, lambda x: x,
            sample_axis=1,
        )  # fmt: skip
        policy, temperature = policy + more.policy_loss, temperature + more.temperature_loss
    losses = {"policy": policy, "temperature": temperature, "penalty": parts.kl_loss, "alpha": parts.alpha_loss}
    return {name: jnp.mean(value) for name, value in losses.items()}


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}",
    r"L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)",
    r"c = -\lVert a - \mathrm{clip}(a, a_{\min}, a_{\max}) \rVert_2",
    r"L_{\pi,b} = -\sum_i q_{b,i} \log \pi(a_i | s_b)",
)
@pytest.mark.formula(
    "minerva.objectives.lagrange",
    r"\mathrm{sg}[\alpha_j]\, D_j",
    r"\alpha_j \left( \epsilon_{\mathrm{KL}} - \mathrm{sg}[D_j] \right)",
)
@pytest.mark.parametrize("penalize", [False, True])
def test_losses_and_gradients_against_rlax(penalize: bool) -> None:
    arrays = random_batch(1)
    x = {name: torch.tensor(value) for name, value in arrays.items()}
    names = (*PARAMETERS, *(["penalty_temperature"] if penalize else []))
    inputs = [x[name].requires_grad_() for name in names]
    found = minerva_losses(x, penalize)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # rlax recommends distrax instead
        expected = jax.jit(lambda x: rlax_losses(x, penalize))(arrays)
        jacobian = jax.jit(jax.jacrev(lambda x: rlax_losses(x, penalize)))(arrays)
    assert found.keys() == expected.keys()
    for loss, value in found.items():
        assert value.item() == pytest.approx(float(expected[loss]), rel=1e-9), loss
        for name, gradient in zip(names, gradients(value, *inputs), strict=True):
            wanted = np.asarray(jacobian[loss][name])
            if not wanted.any():
                assert gradient is None or not np.any(gradient), (loss, name)
            else:
                assert gradient is not None, (loss, name)
                np.testing.assert_allclose(gradient, wanted, rtol=1e-8, atol=1e-10, err_msg=f"{loss}, {name}")
    # The inputs that each loss reaches: the comparison above is not of zeros only.
    reached = {loss: {name for name in names if np.asarray(jacobian[loss][name]).any()} for loss in found}
    assert reached == {
        "policy": {"mean", "log_std"},
        "temperature": {"temperature", *(["penalty_temperature"] if penalize else [])},
        "penalty": {"mean", "log_std"},
        "alpha": {"alpha_mean", "alpha_std"},
    }


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}",
    r"L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)",
    r"c = -\lVert a - \mathrm{clip}(a, a_{\min}, a_{\max}) \rVert_2",
    r"L_{\pi,b} = -\sum_i q_{b,i} \log \pi(a_i | s_b)",
)
@pytest.mark.formula(
    "minerva.objectives.lagrange",
    r"\mathrm{sg}[\alpha_j]\, D_j",
    r"\alpha_j \left( \epsilon_{\mathrm{KL}} - \mathrm{sg}[D_j] \right)",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("penalize", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_losses_against_the_oracle(seed: int, penalize: bool, dtype: torch.dtype) -> None:
    a = random_batch(seed)
    expected = oracle.losses(
        oracle.Policies(a["mean"], np.exp(a["log_std"]), a["old_mean"], np.exp(a["old_log_std"])),
        a["actions"],
        a["q_values"],
        float(a["temperature"]),
        a["alpha_mean"],
        a["alpha_std"],
        EPS,
        KL_EPS,
        (LOW, HIGH) if penalize else None,
        float(a["penalty_temperature"]),
        PENALTY_EPS,
    )
    x = {name: torch.tensor(value, dtype=dtype) for name, value in a.items()}
    found = minerva_losses(x, penalize)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert found["policy"].item() == pytest.approx(expected.policy, rel=tolerance)
    assert found["temperature"].item() == pytest.approx(expected.temperature, rel=tolerance)
    assert found["penalty"].item() == pytest.approx(expected.penalty, rel=tolerance)
    assert found["alpha"].item() == pytest.approx(expected.alpha, rel=tolerance)


# The critic's target


@pytest.mark.formula("minerva.objectives.mpo", r"y = r + \gamma^k (1 - d)\, V(s')")
def test_td_target_by_hand() -> None:
    assert mpo.td_target(t64(1, 2), t64(0.9, 0), t64(10, 100)).tolist() == [10.0, 2.0]


# E-step


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}",
)
def test_weights_by_hand() -> None:
    found = mpo.e_step_weights(t64([0, math.log(3) * 2], [5, 5]), t64(2.0).squeeze())
    torch.testing.assert_close(found, t64([0.25, 0.75], [0.5, 0.5]))


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}",
    r"L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)",
)
def test_weights_against_rlax_and_the_oracle() -> None:
    q = random_batch(2)["q_values"]
    for temperature in (0.05, 0.7, 30.0):
        eta = t64(temperature).squeeze()
        found = mpo.e_step_weights(torch.tensor(q), eta).numpy()
        with jax.enable_x64(True):
            constraint = rlax.LagrangePenalty(alpha=jnp.asarray(temperature), epsilon=jnp.asarray(EPS))
            losses, expected, _ = rlax.mpo_compute_weights_and_temperature_loss(q, constraint, lambda x: x, 1)
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-9)
        np.testing.assert_allclose(found, oracle.weights(q, temperature), rtol=1e-9)
        # RLax's temperature loss also has one value per state.
        per_state = mpo.temperature_loss(torch.tensor(q), eta, EPS)
        assert per_state.shape == (5,)
        np.testing.assert_allclose(per_state.numpy(), np.asarray(losses), rtol=1e-9)


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"q_{b,i} = \frac{\exp(Q'(s_b, a_i) / \eta)}{\sum_k \exp(Q'(s_b, a_k) / \eta)}",
)
def test_the_weights_pass_no_gradient_and_ignore_constants() -> None:
    q, temperature = torch.tensor(random_batch(3)["q_values"]).requires_grad_(), t64(0.5).squeeze().requires_grad_()
    weights = mpo.e_step_weights(q, temperature)
    assert not weights.requires_grad
    assert weights.sum(-1).tolist() == pytest.approx([1.0] * 5)
    shifted = q + t64(1e3, -1e3, 3, 0, 17)[:, None]
    torch.testing.assert_close(mpo.e_step_weights(shifted, temperature), weights)
    # Scaling values and temperature together changes nothing.
    torch.testing.assert_close(mpo.e_step_weights(7 * q, 7 * temperature), weights)


def test_large_values_and_a_temperature_at_its_floor_stay_finite() -> None:
    q, temperature = torch.tensor([[1e4, 1e4 - 1, -1e4]]), torch.tensor(2.5e-8, requires_grad=True)
    assert mpo.e_step_weights(q, temperature).tolist() == [[1.0, 0.0, 0.0]]
    loss = mpo.temperature_loss(q, temperature, EPS)
    assert loss.item() == pytest.approx(1e4)
    (gradient,) = torch.autograd.grad(loss.sum(), temperature)
    assert torch.isfinite(gradient)


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)",
)
def test_temperature_loss_by_hand() -> None:
    # Mean of exp(Q / eta) is (1 + 3) / 2 = 2.
    found = mpo.temperature_loss(t64([0, math.log(3) * 2], [2, 2]), t64(2.0).squeeze(), 0.5)
    assert found.tolist() == pytest.approx([2 * (0.5 + math.log(2)), 2 * (0.5 + 1.0)])


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"L_{\eta,b} = \eta \left( \epsilon + \log \sum_i \exp(Q'(s_b, a_i) / \eta) - \log S \right)",
)
def test_no_gradient_of_the_temperature_loss_reaches_the_critic() -> None:
    q, temperature = torch.tensor(random_batch(4)["q_values"]).requires_grad_(), t64(0.5).squeeze().requires_grad_()
    loss = mpo.temperature_loss(q, temperature, EPS).sum()
    assert gradients(loss, q) == [None]
    assert torch.autograd.grad(loss, temperature)[0].item() != 0


def test_slope_of_the_temperature_loss_is_the_bound_less_the_kl() -> None:
    q = random_batch(5)["q_values"]
    for value in (0.1, 0.7, 5.0):
        temperature = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        loss = mpo.temperature_loss(torch.tensor(q), temperature, EPS).mean()
        (slope,) = torch.autograd.grad(loss, temperature)
        assert slope.item() == pytest.approx(EPS - oracle.kl_to_uniform(oracle.weights(q, value)), rel=1e-9)


def test_at_the_best_temperature_the_kl_is_at_its_bound() -> None:
    q = torch.tensor(random_batch(6, batch=50)["q_values"])
    low, high = 1e-3, 1e3
    for _ in range(200):  # the loss is convex: its slope changes sign once
        middle = math.sqrt(low * high)
        temperature = torch.tensor(middle, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(mpo.temperature_loss(q, temperature, EPS).mean(), temperature)
        low, high = (low, middle) if slope > 0 else (middle, high)
    weights = mpo.e_step_weights(q, t64(low).squeeze())
    assert mpo.kl_to_uniform(weights).mean().item() == pytest.approx(EPS, rel=1e-6)
    near = mpo.temperature_loss(q, t64(low).squeeze(), EPS).mean()
    assert all(near < mpo.temperature_loss(q, t64(low * by).squeeze(), EPS).mean() for by in (0.5, 2.0))


# The action penalty


@pytest.mark.formula("minerva.objectives.mpo", r"c = -\lVert a - \mathrm{clip}(a, a_{\min}, a_{\max}) \rVert_2")
def test_out_of_bounds_cost_by_hand() -> None:
    low, high = t64(-1, -0.5), t64(1, 2)
    actions = t64([[0, 0], [1, 2], [-1, -0.5]], [[4, 0], [0, -1.5], [-4, 6]])
    assert mpo.out_of_bounds_cost(actions, low, high).tolist() == [[0, 0, 0], [-3, -1, -5]]


@pytest.mark.formula("minerva.objectives.mpo", r"c = -\lVert a - \mathrm{clip}(a, a_{\min}, a_{\max}) \rVert_2")
def test_out_of_bounds_cost_against_the_oracle() -> None:
    actions = random_batch(7)["actions"] * 2
    found = mpo.out_of_bounds_cost(*(torch.tensor(x) for x in (actions, LOW, HIGH))).numpy()
    np.testing.assert_allclose(found, oracle.out_of_bounds_cost(actions, LOW, HIGH), rtol=1e-12)
    assert (found < 0).any() and (found == 0).any()


def test_of_two_actions_outside_the_box_the_closer_one_has_more_weight() -> None:
    cost = mpo.out_of_bounds_cost(t64([[1.5, 0], [3, 0], [0.3, 0]]), t64(-1, -1), t64(1, 1))
    near, far, inside = mpo.e_step_weights(cost, t64(1.0).squeeze())[0].tolist()
    assert far < near < inside


# M-step


@pytest.mark.formula("minerva.objectives.mpo", r"L_{\pi,b} = -\sum_i q_{b,i} \log \pi(a_i | s_b)")
def test_weighted_nll_by_hand() -> None:
    log_probs, weights = t64([-1, -2], [3, 5]).requires_grad_(), t64([0.25, 0.75], [1.0, 0.0])
    found = mpo.weighted_nll(log_probs, weights)
    assert found.tolist() == [1.75, -3.0]
    assert torch.autograd.grad(found.sum(), log_probs)[0].tolist() == (-weights).tolist()


def test_the_weighted_nll_is_least_at_the_weighted_mean() -> None:
    actions, weights = t64([[0.0], [1.0], [5.0]]), t64([0.5, 0.3, 0.2])
    mean = t64([0.3 + 1.0]).requires_grad_()
    log_probs = gaussian_log_prob(mean[:, None], torch.zeros(1, 1, 1), actions)
    (gradient,) = torch.autograd.grad(mpo.weighted_nll(log_probs, weights).sum(), mean)
    assert gradient.item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.formula(
    "minerva.objectives.lagrange",
    r"\mathrm{sg}[\alpha_j]\, D_j",
    r"\alpha_j \left( \epsilon_{\mathrm{KL}} - \mathrm{sg}[D_j] \right)",
)
def test_penalty_and_dual_by_hand() -> None:
    alpha, divergence = t64(2, 3).requires_grad_(), t64(0.5, 0.01).requires_grad_()
    penalty = lagrange.kl_penalty(alpha, divergence)
    assert penalty.tolist() == pytest.approx([1.0, 0.03])
    # The penalty changes the policy, not its multiplier.
    assert gradients(penalty.sum(), alpha, divergence) == [None, [2, 3]]
    dual = lagrange.alpha_loss(alpha, divergence, 0.1)
    assert dual.tolist() == pytest.approx([-0.8, 0.27])
    # The dual changes the multiplier, not the policy: gradient descent increases it where the bound is exceeded.
    of_alpha, of_divergence = gradients(dual.sum(), alpha, divergence)
    assert of_divergence is None and of_alpha == pytest.approx([-0.4, 0.09])


# Diagnostics


@pytest.mark.formula(
    "minerva.objectives.mpo",
    r"\mathrm{KL}(q \,\|\, u) = \log S - H(q)",
    r"H(q) = -\sum_i q_i \log q_i",
)
def test_entropy_and_kl_to_uniform() -> None:
    weights = t64([0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0.5, 0.5, 0, 0])
    assert mpo.entropy(weights).tolist() == pytest.approx([math.log(4), 0.0, math.log(2)])
    assert mpo.kl_to_uniform(weights).tolist() == pytest.approx([0.0, math.log(4), math.log(2)])
    random = oracle.weights(random_batch(8)["q_values"], 0.7)
    assert mpo.kl_to_uniform(torch.tensor(random)).mean().item() == pytest.approx(oracle.kl_to_uniform(random))


@pytest.mark.formula("minerva.objectives.weighted", r"\mathrm{ESS} = \frac{1}{\sum_i q_i^2}")
def test_effective_sample_size() -> None:
    weights = t64([0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.1, 0.1, 0.1])
    assert effective_sample_size(weights).tolist() == pytest.approx([4.0, 1.0, 2.0, 1 / 0.52])
