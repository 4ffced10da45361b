from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from minerva.compat.stable_baselines.common import policies
from minerva.compat.stable_baselines.common.policies import (
    POLICIES,
    ActorCriticPolicy,
    FeedForwardPolicy,
    Layers,
    LstmPolicy,
    MlpPolicy,
    RecurrentActorCriticPolicy,
    get_policy_from_name,
    make_policy,
    nature_cnn,
    parse_net_arch,
    register_policy,
)
from minerva.trainers.ppo.agent import Agent

VECTOR = spaces.Box(-1, 1, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)
ACTIONS = spaces.Discrete(3)


def built(name: str, image: bool = False, **kwargs: Any) -> Agent:
    space = IMAGE if image else VECTOR
    return make_policy(name, kwargs).build(space, ACTIONS, int(np.prod(space.shape)), 0)


def shapes(network: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in network.parameters() if p.dim() == 2]


def test_mlp_policy_is_two_networks_of_64_and_64() -> None:
    agent = built("MlpPolicy")
    assert not agent.policy.shared_encoder
    assert shapes(agent.actor_mean) == [(64, 5), (64, 64), (3, 64)]
    assert shapes(agent.critic) == [(64, 5), (64, 64), (1, 64)]
    assert isinstance(agent.actor_mean, nn.Sequential)
    assert [type(layer) for layer in agent.actor_mean] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]


def test_networks_that_part_after_shared_layers() -> None:
    agent = built("MlpPolicy", net_arch=[55, {"vf": [255, 11], "pi": [12]}], act_fun=torch.relu)
    assert agent.policy.shared_encoder and agent.policy.value_encoder is agent.policy.policy_encoder
    assert shapes(agent.policy.policy_encoder) == [(55, 5)]
    assert shapes(agent.policy.policy_head) == [(12, 55), (3, 12)]
    assert shapes(agent.policy.value_head) == [(255, 55), (11, 255), (1, 11)]
    assert not any(isinstance(module, nn.Tanh) for module in agent.modules())
    assert sum(isinstance(module, nn.ReLU) for module in agent.modules()) == 4


def test_separate_networks_with_another_activation_and_one_without_layers() -> None:
    agent = built("MlpPolicy", net_arch=[{"pi": [7]}], act_fun="elu")
    assert not agent.policy.shared_encoder
    assert shapes(agent.policy.policy_encoder) == [(7, 5)]
    assert shapes(agent.policy.value_encoder) == []
    assert shapes(agent.critic) == [(1, 5)]
    x = torch.randn(2, 5)
    linear, last = (p for p in agent.modules() if isinstance(p, nn.Linear) and p.out_features in (7, 3))
    torch.testing.assert_close(agent.policy(x)[0], last(nn.functional.elu(linear(x))))


def test_an_older_form_of_the_same() -> None:
    assert shapes(built("MlpPolicy", layers=[8]).critic) == [(8, 5), (1, 8)]
    assert make_policy("MlpLstmPolicy", {"layers": [8]}).layers == Layers((8,), (), ())


def test_recurrent_policies() -> None:
    agent = built("MlpLstmPolicy", n_lstm=16)
    assert agent.policy.shared_encoder and agent.policy.value_core is agent.policy.policy_core
    assert agent.state_dim == 32
    assert shapes(agent.policy.policy_head) == [(3, 16)]
    assert built("MlpLstmPolicy").state_dim == 512
    assert not any(isinstance(module, nn.LayerNorm) for module in agent.modules())
    assert any(isinstance(module, nn.LayerNorm) for module in built("MlpLnLstmPolicy").modules())


def test_layers_before_and_after_the_lstm() -> None:
    agent = built("MlpLstmPolicy", net_arch=[8, "lstm", 6, {"vf": [5, 10], "pi": [10]}], n_lstm=4)
    assert shapes(agent.policy.policy_encoder) == [(8, 5)]
    assert shapes(agent.policy.policy_head) == [(6, 4), (10, 6), (3, 10)]
    assert shapes(agent.policy.value_head) == [(6, 4), (5, 6), (10, 5), (1, 10)]


def test_images() -> None:
    agent = built("CnnPolicy", image=True)
    assert agent.policy.shared_encoder
    assert shapes(agent.actor_mean) == [(3, 512)]
    assert built("CnnLstmPolicy", image=True).state_dim == 512
    assert any(isinstance(module, nn.LayerNorm) for module in built("CnnLnLstmPolicy", image=True).modules())
    assert shapes(built("CnnPolicy", feature_extraction="mlp").critic) == shapes(built("MlpPolicy").critic)


def test_classes_and_names_are_the_same() -> None:
    assert len(POLICIES) == 6
    assert all(type(make_policy(name, None)) is type(make_policy(cls, None)) for name, cls in POLICIES.items())


@pytest.mark.parametrize(
    ("net_arch", "recurrent"),
    [(64, False), ([{"pi": [3]}, 64], False), ([64, {"q": [3]}], False), ([64, "lstm"], False), ([-1], False),
     ([True], False), ([{"pi": 3}], False), ([64], True), (["lstm", "lstm"], True)],
)  # fmt: skip
def test_a_wrong_net_arch_is_refused(net_arch: Any, recurrent: bool) -> None:
    with pytest.raises(ValueError, match=r"net_arch: must .*got"):
        parse_net_arch(net_arch, recurrent)


@pytest.mark.parametrize(
    ("policy", "kwargs", "message"),
    [
        ("MlpPolice", {}, r"policy: must be MlpPolicy, .*got 'MlpPolice'"),
        (3, {}, "policy: must be"),
        ("MlpPolicy", {"net_arc": []}, "'net_arc' is not one of net_arch"),
        ("MlpPolicy", {"act_fun": "tanhh"}, "act_fun: must be tanh, relu"),
        ("MlpPolicy", {"layers": [3], "net_arch": [3]}, "give net_arch alone"),
        ("CnnPolicy", {"net_arch": [3]}, "net_arch: is for 'mlp'"),
        ("MlpPolicy", {"feature_extraction": "rnn"}, "feature_extraction: must be 'mlp' or 'cnn'"),
        ("MlpLstmPolicy", {"n_lstm": 0}, "n_lstm: must be a positive integer"),
    ],
)
def test_mistakes_are_refused(policy: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(policy, kwargs)


def test_an_image_policy_needs_images() -> None:
    with pytest.raises(ValueError, match="needs an image"):
        built("CnnPolicy")


def test_layers_after_the_lstm_are_shared() -> None:
    policy = built("MlpLstmPolicy", net_arch=[8, "lstm", 6, {"vf": [5], "pi": [10]}], n_lstm=4).policy
    assert policy.value_head[0] is policy.policy_head[0]  # type: ignore[index]
    assert shapes(policy)[3:] == [(6, 4), (10, 6), (3, 10), (5, 6), (1, 5)]


def test_custom_policies() -> None:
    class Wide(FeedForwardPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs = {**kwargs, "net_arch": [{"pi": [9, 8], "vf": [7]}], "feature_extraction": "mlp"}
            super().__init__(*args, **kwargs)

    class Old(LstmPolicy):
        def __init__(
            self, sess: Any, ob_space: Any, ac_space: Any, n_env: int, n_steps: int, n_batch: int, n_lstm: int = 4,
            reuse: bool = False, **_kwargs: Any,
        ) -> None:  # fmt: skip
            super().__init__(
                sess, ob_space, ac_space, n_env, n_steps, n_batch, n_lstm, reuse,
                net_arch=[8, "lstm", {"vf": [5, 10], "pi": [10]}], layer_norm=True, feature_extraction="mlp", **_kwargs
            )  # fmt: skip
            self.seen = ob_space

    wide = make_policy(Wide, {"act_fun": torch.relu})
    agent = wide.build(VECTOR, ACTIONS, 5, 0)
    assert shapes(agent.actor_mean) == [(9, 5), (8, 9), (3, 8)]
    assert shapes(agent.critic) == [(7, 5), (1, 7)]
    assert wide.activation is nn.ReLU
    old = make_policy(Old, None, VECTOR, ACTIONS)
    assert isinstance(old, Old) and old.seen is VECTOR
    agent = old.build(VECTOR, ACTIONS, 5, 0)
    assert agent.state_dim == 8 and any(isinstance(module, nn.LayerNorm) for module in agent.modules())
    assert shapes(agent.policy.value_head) == [(5, 4), (10, 5), (1, 10)]
    assert make_policy(Old, {"n_lstm": np.int64(6)}).lstm_units == 6


def test_a_policy_is_described_by_plain_values() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("MlpPolicy", {"layers": [8]}),
        ("MlpPolicy", {"net_arch": [4, {"pi": [3]}], "act_fun": torch.relu}),
        ("MlpLstmPolicy", {"n_lstm": 4}),
        ("MlpLnLstmPolicy", {"n_lstm": 4, "net_arch": [7, "lstm", 5]}),
        ("CnnLstmPolicy", {"n_lstm": 4}),
    ]
    for name, kwargs in cases:
        policy = make_policy(name, kwargs)
        generic: Any = LstmPolicy if policy.recurrent else FeedForwardPolicy
        again = generic(**json.loads(json.dumps(policy.plain_architecture())))
        for attribute in ("layers", "extraction", "lstm_units", "layer_norm", "activation", "named_by_net_arch"):
            if (attribute, policy.recurrent) != ("named_by_net_arch", False):
                assert getattr(again, attribute) == getattr(policy, attribute), (name, attribute)


def test_registered_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLICIES", dict(POLICIES))

    class Mine(FeedForwardPolicy):
        pass

    register_policy("Mine", Mine)
    register_policy("Mine", Mine)
    assert get_policy_from_name(ActorCriticPolicy, "Mine") is Mine
    assert type(make_policy("Mine", {"feature_extraction": "mlp"})) is Mine
    with pytest.raises(ValueError, match="name: 'MlpPolicy' must be a new one"):
        register_policy("MlpPolicy", Mine)
    with pytest.raises(ValueError, match="subclass of RecurrentActorCriticPolicy, got Mine"):
        get_policy_from_name(RecurrentActorCriticPolicy, "Mine")


def test_graphs_of_tensorflow_are_refused() -> None:
    class Graph(ActorCriticPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "scale": True})

    with pytest.raises(ValueError, match="policy: Graph must be a subclass of FeedForwardPolicy or LstmPolicy"):
        make_policy(Graph, None)
    with pytest.raises(ValueError, match="cnn_extractor: must be nature_cnn"):
        make_policy("CnnPolicy", {"cnn_extractor": lambda images: images})
    assert make_policy("CnnPolicy", {"cnn_extractor": nature_cnn}).extraction == "cnn"


def test_a_custom_policy() -> None:
    class Wide(MlpPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "net_arch": [{"pi": [128], "vf": [128]}]})

    agent = make_policy(Wide, {}).build(VECTOR, ACTIONS, 5, 0)
    assert shapes(agent.critic) == [(128, 5), (1, 128)]
