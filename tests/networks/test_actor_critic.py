from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from minerva.networks.actor_critic import ActorCritic, Architecture
from minerva.networks.heads import (
    ActionHead,
    GaussianHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
)
from minerva.networks.mlp import HiddenLayers
from minerva.networks.recurrent import LSTMCore
from minerva.networks.squashed_gaussian import vmpo_architecture
from tests.networks.samples import move_parameters

OBS = 3
HEADS: dict[str, ActionHead] = {
    "categorical": MultiCategoricalHead([4]),
    "squashed": SquashedGaussianHead([-1.0, -1.0], [1.0, 1.0]),
    "gaussian": GaussianHead(2),
}
RECURRENT: list[dict[str, Any]] = [
    {"lstm_units": 4},
    {"lstm_units": 4, "shared_encoder": True},
    {"lstm_units": 4, "lstm_layer_norm": True, "ppo_like_backbone": True},
]
each_head = pytest.mark.parametrize("name", HEADS)


def make_policy(
    head: str | ActionHead, obs_dim: int = OBS, mask_dim: int = 0, ppo_like_backbone: bool = False, **settings: Any
) -> ActorCritic:
    """V-MPO's networks, as they start."""
    torch.manual_seed(0)
    architecture = vmpo_architecture((6, 5), (7,), ppo_like_backbone, log_std_init=0.0, **settings)
    return ActorCritic(HEADS[head] if isinstance(head, str) else head, architecture, obs_dim, mask_dim)


def moved_policy(head: str | ActionHead, **settings: Any) -> ActorCritic:
    policy = make_policy(head, **settings)
    move_parameters(policy, 0.3)
    return policy


# Sequences


@each_head
@pytest.mark.parametrize("settings", RECURRENT)
def test_a_sequence_is_seen_as_step_by_step_over_the_ends_of_episodes(settings: dict[str, Any], name: str) -> None:
    policy = moved_policy(name, **settings)
    obs, starts = torch.randn(9, 2, OBS), torch.zeros(9, 2)
    starts[4, 0] = starts[0, 1] = starts[7, 1] = 1
    state = first = torch.randn(2, policy.state_dim)
    with torch.no_grad():
        whole = policy.forward_sequence(obs, state, starts)
        params = tuple(part.expand(9, 2, -1) for part in whole.params)  # a free deviation is one for all
        for t in range(9):
            one = policy.forward_sequence(obs[t : t + 1], state, starts[t : t + 1])
            for a, b in zip((*one.params, one.value), (*params, whole.value), strict=True):
                torch.testing.assert_close(a[0].expand_as(b[t]), b[t], rtol=0, atol=1e-6)
            # One observation at a time, as when acting: the state is reset by whoever acts.
            stepped, after = policy.policy_step(obs[t], state * (1 - starts[t]).unsqueeze(-1))
            for a, b in zip(stepped, params, strict=True):
                torch.testing.assert_close(a.expand_as(b[t]), b[t], rtol=0, atol=1e-6)
            torch.testing.assert_close(after, one.recurrent_state, rtol=0, atol=1e-6)
            state = one.recurrent_state
            if starts[t].any():  # the first of an episode is all that it knows of
                *fresh, value = policy.forward_all(obs[t])
                for a, b in zip((*params, whole.value), (*fresh, value.squeeze(-1)), strict=True):
                    where = starts[t] > 0
                    torch.testing.assert_close(a[t][where], b.expand_as(a[t])[where], rtol=0, atol=1e-6)
    torch.testing.assert_close(state, whole.recurrent_state, rtol=0, atol=1e-6)
    assert not torch.allclose(whole.value[0, 0], policy.get_value(obs[0])[0, 0])  # the state before it mattered
    assert policy.state_dim == (8 if policy.shared_encoder else 16) and first.shape == state.shape


def test_each_core_keeps_to_its_own_part_of_the_state() -> None:
    policy = moved_policy("categorical", lstm_units=4)
    obs, starts, state = torch.randn(7, 2, OBS), torch.zeros(7, 2), torch.randn(2, 16)
    starts[3, 1] = 1
    (logits,), value, after = policy.forward_sequence(obs, state, starts)
    for part, encoder, core, head, expected in (
        (slice(0, 8), policy.policy_encoder, policy.policy_core, policy.policy_head, logits),
        (slice(8, 16), policy.value_encoder, policy.value_core, policy.value_head, value.unsqueeze(-1)),
    ):
        assert isinstance(core, LSTMCore)
        features, own = core(encoder(obs.flatten(0, 1)).unflatten(0, (7, 2)), state[:, part], starts)
        torch.testing.assert_close(head(features), expected)
        torch.testing.assert_close(after[:, part], own)


@pytest.mark.parametrize("settings", [{}, *RECURRENT])
def test_rows_alone_are_each_the_first_of_an_episode(settings: dict[str, Any]) -> None:
    policy = moved_policy("squashed", **settings)
    obs = torch.randn(2, 5, OBS)
    mean, log_std, value = policy.forward_all(obs)
    assert mean.shape == log_std.shape == (2, 5, 2) and value.shape == (2, 5, 1)
    assert torch.equal(policy.get_value(obs), value)
    for found, expected in zip(policy(obs), (mean, log_std), strict=True):
        assert torch.equal(found, expected)
    torch.testing.assert_close(policy.forward_all(obs[1, 3])[0], mean[1, 3])
    torch.testing.assert_close(policy.forward_all(obs.flatten(0, 1))[2], value.flatten(0, 1))


def test_a_shared_core_is_one_module_with_one_set_of_names() -> None:
    policy = make_policy("categorical", lstm_units=4, shared_encoder=True)
    assert policy.value_core is policy.policy_core and policy.value_encoder is policy.policy_encoder
    assert not [name for name in policy.state_dict() if name.startswith(("value_encoder", "value_core"))]
    apart = make_policy("categorical", lstm_units=4)
    names = [name for name, _ in apart.named_parameters()]
    assert all(name.startswith(("policy_", "value_")) for name in names)
    assert {"policy_core.weight_x", "value_core.weight_x"} <= set(names)


def test_without_a_core_the_state_is_handed_on() -> None:
    policy = make_policy("categorical")
    obs, state = torch.randn(4, 2, OBS), torch.zeros(2, 0)
    found = policy.forward_sequence(obs, state, torch.zeros(4, 2))
    assert policy.state_dim == 0 and found.recurrent_state is state
    assert policy.policy_step(obs[0], state)[1] is state
    torch.testing.assert_close(found.value.unsqueeze(-1), policy.get_value(obs))


def test_an_encoder_sees_one_batch_dimension() -> None:
    shapes = []

    class Watching(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            shapes.append(tuple(rows.shape))
            return rows[:, :2]

    architecture = Architecture((4,), (4,), encoder="custom", shared_encoder=True, make_encoder=Watching)
    policy = ActorCritic(HEADS["categorical"], architecture, OBS)
    shapes.clear()
    obs = torch.randn(7, 3, OBS)
    (logits,), _, _ = policy.forward_sequence(obs, torch.zeros(3, 0), torch.zeros(7, 3))
    torch.testing.assert_close(logits, policy.policy_head(obs[..., :2]))
    assert shapes == [(21, OBS)]


# What it is built of


def test_heads_start_as_the_squashed_gaussians_do() -> None:
    policy = make_policy("categorical")
    for head, size in ((policy.policy_head, 5), (policy.value_head, 7)):
        assert isinstance(head, nn.Linear)
        bound = math.sqrt(6 / (head.in_features + head.out_features))  # Xavier's
        assert head.in_features == size and not head.bias.any() and 0.3 * bound < head.weight.abs().max() <= bound
    like_ppo = make_policy("categorical", ppo_like_backbone=True)
    for head, gain in ((like_ppo.policy_head, 0.01), (like_ppo.value_head, 1.0)):
        assert isinstance(head, nn.Linear)
        weight = head.weight.detach()
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=1e-4, atol=1e-7)
    assert isinstance(like_ppo.policy_encoder, HiddenLayers)
    assert [type(layer) for layer in like_ppo.policy_encoder] == [nn.Linear, nn.Tanh] * 2
    assert policy.policy_logstd is None and like_ppo.policy_logstd is None


def test_a_gaussians_deviation_is_a_parameter_or_depends_on_the_state() -> None:
    free = make_policy("gaussian", ppo_like_backbone=True)
    assert isinstance(free.policy_logstd, nn.Parameter) and free.policy_logstd.tolist() == [[0.0, 0.0]]
    dependent = make_policy("gaussian")
    assert isinstance(dependent.policy_logstd, nn.Linear) and (dependent.policy_logstd.bias == -0.5).all()
    obs = torch.randn(5, OBS)
    assert free(obs)[1].shape == (1, 2)  # of a Gaussian that is not squashed as it is,
    assert dependent(obs)[1].shape == (5, 2)
    squashed = make_policy("squashed", ppo_like_backbone=True)
    assert squashed(obs)[1].shape == (5, 2)  # otherwise one for each row


def test_heads_may_have_hidden_layers() -> None:
    architecture = Architecture((6,), (7,), head_layer_sizes=((5,), (4, 3)), activation=nn.ReLU)
    policy = ActorCritic(HEADS["categorical"], architecture, OBS)
    for head, kinds, sizes, gain in (
        (policy.policy_head, [nn.Linear, nn.ReLU, nn.Linear], [(6, 5), (5, 4)], 0.01),
        (policy.value_head, [nn.Linear, nn.ReLU] * 2 + [nn.Linear], [(7, 4), (4, 3), (3, 1)], 1.0),
    ):
        assert isinstance(head, nn.Sequential) and [type(layer) for layer in head] == kinds
        linear = [layer for layer in head if isinstance(layer, nn.Linear)]
        assert [(layer.in_features, layer.out_features) for layer in linear] == sizes
        last = linear[-1].weight.detach()
        torch.testing.assert_close(last @ last.T, gain**2 * torch.eye(len(last)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["policy_layer_sizes", "value_layer_sizes"])
def test_no_layer_is_an_error(name: str) -> None:
    sizes: dict[str, Any] = {"policy_layer_sizes": (4,), "value_layer_sizes": (4,), name: ()}
    with pytest.raises(ValueError, match=f"^{name}: must name at least one layer"):
        vmpo_architecture(**sizes, ppo_like_backbone=False, log_std_init=0.0)


def test_what_it_can_do_where() -> None:
    image = spaces.Box(0, 255, (40, 36, 3), np.uint8)
    plain = make_policy("categorical")
    recurrent = make_policy("categorical", lstm_units=4)
    masked = make_policy("categorical", obs_dim=OBS + 4, mask_dim=4)
    pictures = ActorCritic(HEADS["categorical"], Architecture((4,), (4,), encoder="cnn"), 4320, 0, image)
    own = Architecture((4,), (4,), encoder="custom", make_encoder=lambda: nn.Linear(OBS, 2))
    custom = ActorCritic(HEADS["categorical"], own, OBS)
    policies = (plain, recurrent, masked, pictures, custom)
    assert [policy.static for policy in policies] == [True, False, True, True, False]
    assert [policy.runs_on_numpy for policy in policies] == [True, True, False, False, False]
    assert [policy.takes_bytes for policy in policies] == [False, False, False, True, True]


# Masks and samples


def test_what_a_mask_forbids_has_no_probability_and_the_mask_is_not_seen() -> None:
    head = MultiCategoricalHead([3])
    policy = make_policy(head, obs_dim=5, mask_dim=3)
    obs = torch.randn(2, 2)
    masks = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    rows = torch.cat([obs, masks], dim=1)
    *_, value = policy.forward_all(rows)
    (logits,) = policy(rows)
    assert torch.equal(logits.isinf(), masks == 0)
    all_allowed = torch.cat([obs, torch.ones(2, 3)], dim=1)
    free, _ = policy.forward_all(all_allowed)
    assert torch.equal(logits[masks > 0], free[masks > 0])
    assert torch.equal(value, policy.get_value(all_allowed))
    sequence, _, _ = policy.forward_sequence(rows.expand(4, 2, 5), torch.zeros(2, 0), torch.zeros(4, 2))
    torch.testing.assert_close(sequence[0], logits.expand(4, 2, 3))
    noise = head.draw_noise((400,), torch.Generator().manual_seed(0), logits)
    actions = head.sample((logits.repeat(200, 1),), noise)
    assert set(actions[::2, 0].tolist()) == {0.0, 2.0} and set(actions[1::2, 0].tolist()) == {2.0}


def test_actions_are_the_likeliest_or_sampled_from_the_generator_alone() -> None:
    head = MultiCategoricalHead([3, 2])
    policy = make_policy(head, obs_dim=2)
    (logits,) = policy(torch.randn(4000, 2))
    logits = 0 * logits + torch.tensor([0.0, 1.0, -1.0, 0.5, 0.0])
    assert torch.equal(head.mode((logits,)), torch.tensor([[1.0, 0.0]]).expand(4000, -1))
    before = torch.random.get_rng_state()
    first, again = (
        head.sample((logits,), head.draw_noise((4000,), torch.Generator().manual_seed(1), logits)) for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before) and torch.equal(first, again)
    for entry, part in ((0, slice(0, 3)), (1, slice(3, 5))):
        shares = torch.bincount(first[:, entry].long()) / 4000
        torch.testing.assert_close(shares, torch.softmax(logits[0, part], 0).detach(), rtol=0, atol=0.03)


# On NumPy


@each_head
@pytest.mark.parametrize("settings", [{}, {"ppo_like_backbone": True}, {"shared_encoder": True}, *RECURRENT])
def test_numpy_takes_the_same_steps(name: str, settings: dict[str, Any]) -> None:
    policy = moved_policy(name, **settings)
    fast = policy.numpy_policy()
    move_parameters(policy, 0.1)  # what is written later is seen
    state = torch.randn(2, policy.state_dim)
    array = state.numpy().copy()
    starts = torch.zeros(5, 2)
    starts[0, 0] = starts[3, 1] = 1
    for t, obs in enumerate(torch.randn(5, 2, OBS)):
        kept = array.copy()
        params, after = fast(obs.numpy(), array, starts[t].numpy())
        assert (array == kept).all()
        with torch.no_grad():
            expected, state = policy.policy_step(obs, state * (1 - starts[t]).unsqueeze(-1))
        for found, part in zip(params, expected, strict=True):
            assert found.dtype == np.float32
            np.testing.assert_allclose(np.broadcast_to(found, part.shape), part.detach(), rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(after, state, rtol=1e-5, atol=2e-6)
        array = after
