from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from minerva.networks.diagonal_gaussian import DiagonalGaussianPolicy
from tests.networks.samples import move_parameters

LOW, HIGH = [-1.0, -0.25], [0.5, 2.0]


def make_policy() -> DiagonalGaussianPolicy:
    torch.manual_seed(0)
    policy = DiagonalGaussianPolicy(3, 2, (6, 4), LOW, HIGH)
    move_parameters(policy, 0.3)
    return policy


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_layers_and_initialization() -> None:
    torch.manual_seed(0)
    policy = DiagonalGaussianPolicy(11, 40, (200, 300))
    assert [type(layer) for layer in policy.encoder] == [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Linear, nn.ELU]
    mean, log_std = policy.policy_mean, policy.policy_logstd
    assert mean.weight.shape == log_std.weight.shape == (40, 300)
    # Kaiming's normal over the inputs, with gain 1; it has tails that a uniform start has not.
    assert mean.weight.std().item() == pytest.approx(1 / math.sqrt(300), rel=0.02)
    assert mean.weight.abs().max() > 3 / math.sqrt(300)
    assert not mean.bias.any()
    # PyTorch's own start elsewhere: uniform up to 1 / sqrt(inputs), biases too.
    first, second = policy.encoder[0], policy.encoder[3]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    for layer in (log_std, first, second):
        limit = 1 / math.sqrt(layer.in_features)
        for tensor in (layer.weight, layer.bias):
            assert 0.9 * limit < tensor.abs().max().item() <= limit
        assert layer.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert policy.action_low.tolist() == [-1.0] * 40 and policy.action_high.tolist() == [1.0] * 40
    assert {name for name, _ in policy.named_buffers()} == {"action_low", "action_high"}
    assert {id(p) for p in policy.head_parameters()} == {id(p) for p in (*mean.parameters(), *log_std.parameters())}
    assert len(policy.head_parameters()) == 4


def test_forward_by_hand() -> None:
    policy = make_policy()
    obs = torch.randn(9, 3)
    w = {name: parameter.detach().double().numpy() for name, parameter in policy.named_parameters()}
    x = obs.double().numpy() @ w["encoder.0.weight"].T + w["encoder.0.bias"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x = np.tanh(x * w["encoder.1.weight"] + w["encoder.1.bias"]) @ w["encoder.3.weight"].T + w["encoder.3.bias"]
    assert (x > 0).any() and (x < 0).any()
    features = np.where(x > 0, x, np.exp(x) - 1)  # the encoder's last layer has its ELU
    for found in (policy(obs), policy.forward_with_features(policy.encoder(obs))):
        for part, head in zip(found, ("policy_mean", "policy_logstd"), strict=True):
            expected = features @ w[f"{head}.weight"].T + w[f"{head}.bias"]
            np.testing.assert_allclose(part.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_log_std_is_clamped_and_the_mean_is_not() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.policy_mean.bias.copy_(torch.tensor([-1e4, 1e4]))
        policy.policy_logstd.bias.copy_(torch.tensor([-1e4, 1e4]))
    mean, log_std = policy(torch.randn(5, 3))
    assert log_std.tolist() == [[-20.0, 2.0]] * 5
    assert (mean[:, 0] < -9e3).all() and (mean[:, 1] > 9e3).all()


def test_outputs_that_are_not_finite_become_0() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.policy_mean.bias.copy_(torch.tensor([math.nan, math.inf]))
        policy.policy_logstd.bias.copy_(torch.tensor([-math.inf, math.inf]))
    mean, log_std = policy(torch.randn(2, 3))
    # 0 before the clamp: an infinite one does not end at the bound it would be clamped to.
    assert mean.tolist() == log_std.tolist() == [[0.0, 0.0]] * 2
    mean, log_std = make_policy()(torch.full((1, 3), math.nan))
    assert mean.tolist() == log_std.tolist() == [[0.0, 0.0]]


def test_log_prob_is_that_of_the_raw_action() -> None:
    policy = make_policy()
    mean, log_std = policy(torch.randn(6, 3))
    raw = 3 * torch.randn(6, 2)
    found = policy.log_prob(mean, log_std, raw)
    assert found.shape == (6, 1)
    expected = Independent(Normal(mean, log_std.exp()), 1).log_prob(raw)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.squeeze(-1), expected)
    assert (policy.log_prob(mean, log_std, policy.clip(raw)) != found).any()


def clipped(raw: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(raw, torch.tensor(LOW)), torch.tensor(HIGH))


def test_one_action_a_row() -> None:
    policy = make_policy()
    rows = 20_000
    mean, log_std = torch.tensor([[0.4, -0.5]]).expand(rows, 2), torch.tensor([[0.3, -1.0]]).expand(rows, 2)
    raw, executed = policy.sample_action_raw_and_exec(mean, log_std, False, seeded())
    assert raw.shape == executed.shape == (rows, 2)
    assert torch.equal(executed, clipped(raw)) and not torch.equal(executed, raw)
    torch.testing.assert_close(raw.mean(0), mean[0], atol=0.04, rtol=0)
    torch.testing.assert_close(raw.std(0), log_std[0].exp(), atol=0, rtol=0.03)
    assert abs(torch.corrcoef(raw.T)[0, 1].item()) < 0.03
    assert torch.equal(policy.sample_action(mean, log_std, False, seeded()), executed)
    assert not torch.equal(policy.sample_action(mean, log_std, False, seeded(1)), executed)


@pytest.mark.formula(
    "minerva.networks.heads.GaussianHead.sample", r"a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)"
)
def test_a_sample_is_noise_scaled_and_shifted() -> None:
    mean, log_std = torch.tensor([[0.4, -0.5]]).double(), torch.tensor([[0.3, -1.0]]).double()
    raw, _ = make_policy().sample_action_raw_and_exec(mean, log_std, False, seeded())
    noise = torch.randn((1, 2), generator=seeded(), dtype=torch.float64)[0].tolist()
    assert raw[0].tolist() == pytest.approx([0.4 + math.exp(0.3) * noise[0], -0.5 + math.exp(-1) * noise[1]], rel=1e-6)


def test_the_deterministic_action_is_the_mean() -> None:
    policy = make_policy()
    mean, log_std = torch.tensor([[0.1, 5.0]]), torch.zeros(1, 2)
    raw, executed = policy.sample_action_raw_and_exec(mean, log_std, deterministic=True)
    assert raw.tolist() == mean.tolist()
    torch.testing.assert_close(executed, torch.tensor([[0.1, 2.0]]))
    assert torch.equal(policy.sample_action(mean, log_std, deterministic=True), executed)


def test_several_actions_for_each_observation() -> None:
    policy = make_policy()
    obs = torch.randn(3, 3)
    raw, executed = policy.sample_actions_raw_and_exec(obs, 20_000, seeded())
    assert raw.shape == executed.shape == (3, 20_000, 2)
    assert torch.equal(executed, clipped(raw)) and not torch.equal(executed, raw)
    assert torch.equal(policy.sample_actions(obs, 20_000, seeded()), executed)
    mean, log_std = policy(obs)
    errors = (raw.mean(1) - mean) / log_std.exp()
    assert errors.abs().max() < 0.03
    torch.testing.assert_close(raw.std(1), log_std.exp(), atol=0, rtol=0.03)


def test_without_a_generator_torchs_own_is_used() -> None:
    policy = make_policy()
    mean, log_std = torch.zeros(4, 2), torch.zeros(4, 2)
    torch.manual_seed(5)
    first = policy.sample_action_raw_and_exec(mean, log_std)[0]
    torch.manual_seed(5)
    assert torch.equal(policy.sample_action_raw_and_exec(mean, log_std)[0], first)
    assert len(set(first.flatten().tolist())) == 8
