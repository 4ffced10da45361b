from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minerva.networks.layer_norm_mlp import LayerNormMLP
from minerva.networks.mlp import HiddenLayers
from minerva.networks.squashed_gaussian import SquashedGaussianPolicy
from tests.networks.samples import float64, move_parameters
from tests.objectives import oracle_vmpo as oracle

LOW, HIGH = np.array([-1.0, 0.5], dtype=np.float32), np.array([3.0, 1.0], dtype=np.float32)


def make_policy(seed: int = 0, **arguments: Any) -> SquashedGaussianPolicy:
    torch.manual_seed(seed)
    policy = SquashedGaussianPolicy(3, 2, (5, 4), (6,), LOW, HIGH, **arguments)
    move_parameters(policy, 0.2)  # every part of the network then matters
    return policy


def parameters_of(policy: nn.Module) -> oracle.Parameters:
    return {name: value.detach().double().numpy().copy() for name, value in policy.named_parameters()}


# Networks


def test_initialization() -> None:
    torch.manual_seed(0)
    policy = SquashedGaussianPolicy(17, 6)
    for encoder in (policy.policy_encoder, policy.value_encoder):
        assert isinstance(encoder, LayerNormMLP)
        assert [type(layer) for layer in encoder] == [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU]
        assert [layer.out_features for layer in encoder if isinstance(layer, nn.Linear)] == [256, 256]
    assert policy.policy_encoder is not policy.value_encoder and not policy.shared_encoder
    assert isinstance(policy.policy_logstd, nn.Linear)
    for head, outputs, bias in (
        (policy.policy_mean, 6, 0.0),
        (policy.policy_logstd, 6, -0.5),
        (policy.value_head, 1, 0.0),
    ):
        assert isinstance(head, nn.Linear)
        assert head.weight.shape == (outputs, 256) and (head.bias == bias).all()
        bound = math.sqrt(6 / (256 + outputs))  # Xavier's
        assert 0.95 * bound < head.weight.abs().max() <= bound
        assert head.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert policy.policy_logstd_parameters() == [policy.policy_logstd.weight, policy.policy_logstd.bias]
    assert policy.action_low.tolist() == [-1.0] * 6 and policy.action_high.tolist() == [1.0] * 6


def test_initialization_like_ppo() -> None:
    torch.manual_seed(0)
    policy = SquashedGaussianPolicy(17, 6, (64, 32), (48,), ppo_like_backbone=True)
    linear: list[nn.Module] = []
    for encoder, sizes in ((policy.policy_encoder, [64, 32]), (policy.value_encoder, [48])):
        assert isinstance(encoder, HiddenLayers)
        linear += list(encoder)[::2]
        assert [type(layer) for layer in encoder] == [nn.Linear, nn.Tanh] * len(sizes)
        assert [layer.out_features for layer in encoder if isinstance(layer, nn.Linear)] == sizes
    for layer, gain in [*((x, math.sqrt(2)) for x in linear), (policy.policy_mean, 0.01), (policy.value_head, 1.0)]:
        assert isinstance(layer, nn.Linear) and not layer.bias.any()
        weight = layer.weight.detach()
        gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-4, atol=1e-5 * gain)
    assert isinstance(policy.policy_logstd, nn.Parameter)
    assert torch.equal(policy.policy_logstd, torch.zeros(1, 6))
    wide = SquashedGaussianPolicy(3, 6, ppo_like_backbone=True, log_std_init=-0.7)
    assert wide.policy_logstd_parameters()[0].tolist() == [[pytest.approx(-0.7)] * 6]
    assert len(policy.policy_logstd_parameters()) == 1 and policy.policy_logstd_parameters()[0] is policy.policy_logstd


@pytest.mark.parametrize("ppo_like", [False, True])
def test_a_shared_encoder_is_one_module_with_one_set_of_names(ppo_like: bool) -> None:
    policy = make_policy(shared_encoder=True, ppo_like_backbone=ppo_like)
    assert policy.value_encoder is policy.policy_encoder and policy.shared_encoder
    assert policy.value_head.in_features == 4
    assert not [name for name in policy.state_dict() if name.startswith("value_encoder")]
    policy.forward_all(torch.randn(2, 3))[2].sum().backward()  # type: ignore[no-untyped-call]
    gradient = next(policy.policy_encoder.parameters()).grad
    assert isinstance(gradient, torch.Tensor) and gradient.abs().sum() > 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ppo_like", [False, True])
def test_forward_against_the_oracle(shared: bool, ppo_like: bool) -> None:
    policy = make_policy(shared_encoder=shared, ppo_like_backbone=ppo_like)
    obs = torch.randn(7, 3)
    settings = oracle.Settings(shared_encoder=shared, ppo_like_backbone=ppo_like)
    mean, log_std, value = oracle.forward(parameters_of(policy), obs.double().numpy(), settings)
    found = policy.forward_all(obs)
    assert [tuple(x.shape) for x in found] == [(7, 2), (7, 2), (7, 1)]
    for x, expected in zip(found, (mean, log_std, value[:, None]), strict=True):
        np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    for x, expected_tensor in zip((*policy(obs), policy.get_value(obs)), found, strict=True):
        torch.testing.assert_close(x, expected_tensor)


def test_the_standard_deviation_stays_within_its_range() -> None:
    policy = make_policy()
    assert isinstance(policy.policy_logstd, nn.Linear)
    for bias, expected in ((1e3, 2.0), (-1e3, -20.0)):
        nn.init.constant_(policy.policy_logstd.bias, bias)
        assert (policy(torch.randn(4, 3))[1] == expected).all()


# Actions


def random_gaussian(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2, generator=generator), 0.5 * torch.randn(rows, 2, generator=generator)


@pytest.mark.formula(
    "minerva.networks.squashed_gaussian.SquashedGaussianPolicy.sample_action",
    r"\log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|",
)
@pytest.mark.formula(
    "minerva.networks.heads.SquashedGaussianHead.log_prob",
    r"\log \pi(a) = \log \mathcal{N}(u; \mu, \sigma) - \log \left| \frac{\partial a}{\partial u} \right|",
)
@pytest.mark.formula(
    "minerva.networks.heads",
    (
        r"u_j = \mathrm{artanh}\left( \mathrm{clip}\left( \frac{a_j - c_j}{h_j},\; -1 + 10^{-6},\; 1 - 10^{-6} "
        r"\right) \right)"
    ),
    r"\log (1 - \tanh^2 u_j) = 2 \left( \log 2 - u_j - \log(1 + e^{-2 u_j}) \right)",
    r"\log \left| \frac{\partial a}{\partial u} \right| = \sum_j \left( \log h_j + \log (1 - \tanh^2 u_j) \right)",
    r"c_j = \tfrac12 (a_{\max,j} + a_{\min,j})",
    r"h_j = \tfrac12 (a_{\max,j} - a_{\min,j})",
)
def test_log_prob_against_the_oracle() -> None:
    policy = make_policy().double()
    mean, log_std = (x.double() for x in random_gaussian(50))
    actions, log_prob = policy.sample_action(mean, log_std, deterministic=False)
    bounds = LOW.astype(np.float64), HIGH.astype(np.float64)
    expected = oracle.log_prob(mean.numpy(), log_std.numpy(), actions.numpy(), *bounds)
    found = policy.log_prob(mean, log_std, actions)
    assert found.shape == log_prob.shape == (50, 1)
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-7)
    np.testing.assert_allclose(log_prob[:, 0].numpy(), expected, rtol=1e-7)


def test_the_density_integrates_to_one_over_the_box() -> None:
    policy = SquashedGaussianPolicy(3, 1, (4,), (4,), -1.0, 3.0).double()
    edges = torch.linspace(-1, 3, 40_001, dtype=torch.float64)
    middle = ((edges[1:] + edges[:-1]) / 2).unsqueeze(-1)
    mean, log_std = torch.full_like(middle, 0.4), torch.full_like(middle, -0.3)
    density = policy.log_prob(mean, log_std, middle).exp()
    assert (density.sum() * 4 / 40_000).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.formula("minerva.networks.squashed_gaussian", r"u = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)")
@pytest.mark.formula("minerva.networks.heads.SquashedGaussianHead.squash", r"a_j = c_j + h_j \tanh(u_j)")
@pytest.mark.formula(
    "minerva.networks.heads",
    r"c_j = \tfrac12 (a_{\max,j} + a_{\min,j})",
    r"h_j = \tfrac12 (a_{\max,j} - a_{\min,j})",
)
def test_samples_are_the_gaussians_squashed_into_the_box() -> None:
    policy = make_policy()
    mean, log_std = random_gaussian(20_000)
    actions, _ = policy.sample_action(mean, log_std, False, torch.Generator().manual_seed(1))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(1))
    low, high = torch.from_numpy(LOW), torch.from_numpy(HIGH)
    expected = low + (high - low) * (torch.tanh(mean + log_std.exp() * noise) + 1) / 2
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-5)
    assert (actions >= low).all() and (actions <= high).all()
    torch.testing.assert_close(policy.sample_action(mean, log_std, True)[0], low + (high - low) * (mean.tanh() + 1) / 2)


def test_actions_at_and_beyond_the_bounds_have_finite_densities_and_gradients() -> None:
    policy = make_policy()
    low, high = torch.from_numpy(LOW), torch.from_numpy(HIGH)
    actions = torch.stack([low, high, low - 1, high + 1, (low + high) / 2])
    mean, log_std = (x.requires_grad_() for x in random_gaussian(5))
    log_prob = policy.log_prob(mean, log_std, actions)
    gradients = torch.autograd.grad(log_prob.sum(), (mean, log_std))
    assert log_prob.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
    # A sample that rounding has put onto the bound, and its log-density.
    action, score = policy.sample_action(torch.full((1, 2), 40.0), torch.zeros(1, 2), True)
    assert torch.equal(action[0], high) and score.isfinite().all()


def test_large_raw_actions_have_finite_densities() -> None:
    policy = make_policy()
    raw = torch.tensor([[-60.0, 60.0], [-300.0, 300.0]])
    _, log_prob = policy.sample_action(raw, torch.zeros(2, 2), deterministic=True)
    # The slope of tanh far out is 4 exp(-2 |u|).
    expected = -math.log(2 * math.pi) - math.log(2.0 * 0.25) - 2 * math.log(4) + 4 * raw[:, 1]
    torch.testing.assert_close(log_prob[:, 0], expected)


def test_rounding_does_not_lead_out_of_the_box() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(1000, generator=generator)
    high = low + torch.rand(1000, generator=generator) + 0.1
    policy = SquashedGaussianPolicy(1, 1000, (2,), (2,), low, high)
    for raw in (50.0, -50.0):
        actions = policy.head.squash(torch.full((1000,), raw))
        assert (actions >= low).all() and (actions <= high).all()


def test_unsquashing_undoes_squashing() -> None:
    policy = make_policy()
    raw = torch.linspace(-4, 4, 33).unsqueeze(-1).expand(33, 2)
    torch.testing.assert_close(policy.head.unsquash(policy.head.squash(raw))[0], raw, rtol=1e-3, atol=1e-3)


@pytest.mark.formula(
    "minerva.networks.heads",
    (
        r"u_j = \mathrm{artanh}\left( \mathrm{clip}\left( \frac{a_j - c_j}{h_j},\; -1 + 10^{-6},\; 1 - 10^{-6} "
        r"\right) \right)"
    ),
    r"c_j = \tfrac12 (a_{\max,j} + a_{\min,j})",
    r"h_j = \tfrac12 (a_{\max,j} - a_{\min,j})",
)
def test_raw_actions_by_hand_and_at_the_bounds() -> None:
    policy = SquashedGaussianPolicy(3, 1, (4,), (4,), -1.0, 3.0).double()
    # Center 1, half width 2: 2 is half way up, and artanh(1/2) is log(3) / 2.
    assert policy.head.unsquash(torch.tensor([2.0]).double())[0].item() == pytest.approx(math.log(3) / 2, rel=1e-12)
    # At a bound and beyond it, what lies a millionth inside.
    edge = 0.5 * math.log((2 - 1e-6) / 1e-6)
    found = policy.head.unsquash(torch.tensor([[-1.0], [3.0], [-9.0], [9.0]]).double())[0].flatten().tolist()
    assert found == pytest.approx([-edge, edge, -edge, edge], rel=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (-math.inf, 1.0, r"action_low: must be finite, because actions are squashed .*got \[-inf, -inf\]"),
        (-1.0, [1.0, math.inf], r"action_high: must be finite.*got \[1.0, inf\]. Wrap the environment"),
        (1.0, 1.0, r"action_high: must be above action_low = \[1.0, 1.0\], got \[1.0, 1.0\]"),
    ],
)
def test_bounds_that_cannot_be_squashed_into(low: Any, high: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SquashedGaussianPolicy(3, 2, action_low=low, action_high=high)


@pytest.mark.parametrize("name", ["policy_layer_sizes", "value_layer_sizes"])
def test_an_empty_layer_list_names_the_field(name: str) -> None:
    sizes: dict[str, Any] = {name: ()}
    with pytest.raises(ValueError, match=f"^{name}: must name at least one layer"):
        SquashedGaussianPolicy(3, 2, **sizes)


def test_bounds_have_the_default_precision() -> None:
    with float64():
        assert SquashedGaussianPolicy(3, 1, (4,), (4,), -0.3, 0.3).action_high.tolist() == [0.3]
