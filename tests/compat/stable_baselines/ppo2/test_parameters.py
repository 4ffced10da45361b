"""Weights under stable-baselines' names: what acts with them is written down here in NumPy, in its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.compat.stable_baselines import PPO2, DummyVecEnv
from tests.compat.stable_baselines.ppo2.numpy_policies import Weights, random_weights, run
from tests.compat.stable_baselines.samples import BATCH, small_model
from tests.environments.tiny_envs import Picking

VECTOR = spaces.Box(-9, 300, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 44, 2), np.uint8)


def model_of(policy: str, kwargs: dict[str, Any], obs: Any = VECTOR, actions: Any = None) -> PPO2:
    space = spaces.Discrete(3) if actions is None else actions
    env = DummyVecEnv([lambda: Picking(space, obs)] * 2)
    return small_model(policy, env, policy_kwargs=kwargs)


def test_names_and_shapes_of_an_mlp() -> None:
    model = model_of("MlpPolicy", {}, actions=spaces.Box(-1, 1, (2,)))
    assert [(p.name, p.shape) for p in model.get_parameter_list()] == [
        ("model/pi_fc0/w:0", (4, 64)), ("model/pi_fc0/b:0", (64,)), ("model/vf_fc0/w:0", (4, 64)),
        ("model/vf_fc0/b:0", (64,)), ("model/pi_fc1/w:0", (64, 64)), ("model/pi_fc1/b:0", (64,)),
        ("model/vf_fc1/w:0", (64, 64)), ("model/vf_fc1/b:0", (64,)), ("model/vf/w:0", (64, 1)), ("model/vf/b:0", (1,)),
        ("model/pi/w:0", (64, 2)), ("model/pi/b:0", (2,)), ("model/pi/logstd:0", (1, 2)), ("model/q/w:0", (64, 2)),
        ("model/q/b:0", (2,)),
    ]  # fmt: skip


def test_names_of_a_cnn_with_an_lstm() -> None:
    shapes = {p.name[6:-2]: p.shape for p in model_of("CnnLnLstmPolicy", {"n_lstm": 4}, IMAGE).get_parameter_list()}
    assert shapes == {
        "c1/w": (8, 8, 2, 32), "c1/b": (1, 32, 1, 1), "c2/w": (4, 4, 32, 64), "c2/b": (1, 64, 1, 1),
        "c3/w": (3, 3, 64, 64), "c3/b": (1, 64, 1, 1), "fc1/w": (128, 512), "fc1/b": (512,),
        "lstm1/wx": (512, 16), "lstm1/wh": (4, 16), "lstm1/b": (16,), "lstm1/gx": (16,), "lstm1/bx": (16,),
        "lstm1/gh": (16,), "lstm1/bh": (16,), "lstm1/gc": (4,), "lstm1/bc": (4,),
        "vf/w": (4, 1), "vf/b": (1,), "pi/w": (4, 3), "pi/b": (3,), "q/w": (4, 3), "q/b": (3,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "kwargs", "names"),
    [
        ("MlpPolicy", {"net_arch": [6, {"pi": [5], "vf": [4, 3]}]}, ["shared_fc0", "pi_fc0", "vf_fc0", "vf_fc1"]),
        ("MlpLstmPolicy", {"layers": [6, 5], "n_lstm": 4}, ["pi_fc0", "pi_fc1", "lstm1"]),
        (
            "MlpLstmPolicy",
            {"net_arch": [6, "lstm", 5, {"pi": [4]}], "n_lstm": 4},
            ["shared_fc0", "lstm1", "shared_fc2", "pi_fc0"],
        ),
    ],
)
def test_names_of_other_architectures(policy: str, kwargs: dict[str, Any], names: list[str]) -> None:
    found = dict.fromkeys(p.name.split("/")[1] for p in model_of(policy, kwargs).get_parameter_list())
    assert list(found) == [*names, "vf", "pi", "q"]


@pytest.mark.parametrize(
    ("policy", "kwargs"),
    [
        ("MlpPolicy", {"net_arch": [{"pi": [6, 5], "vf": [4]}]}),
        ("MlpPolicy", {"net_arch": [6, {"pi": [5], "vf": [4, 3]}], "act_fun": "relu"}),
        ("MlpLstmPolicy", {"layers": [6], "n_lstm": 4}),
        ("MlpLnLstmPolicy", {"net_arch": [6, "lstm", 5, {"pi": [4], "vf": [3]}], "n_lstm": 4}),
        ("CnnPolicy", {}),
        ("CnnLnLstmPolicy", {"n_lstm": 4}),
    ],
)
def test_a_model_acts_as_its_parameters_say(policy: str, kwargs: dict[str, Any]) -> None:
    space = IMAGE if policy.startswith("Cnn") else VECTOR
    model = model_of(policy, kwargs, space)
    weights: Weights = random_weights({p.name: p.shape for p in model.get_parameter_list()})
    model.load_parameters(weights)
    for name, array in model.get_parameters().items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
    rng = np.random.default_rng(1)
    state, old_state = None, None
    for step in range(3):
        obs = rng.integers(0, 256, (2, *space.shape)).astype(space.dtype)
        mask = np.array([step == 2, False])
        wanted, wanted_value, old_state = run(weights, obs, old_state, mask, kwargs.get("act_fun", "tanh"))
        np.testing.assert_allclose(model.action_probability(obs, state, mask), wanted, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(model.value(obs, state, mask), wanted_value, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(model.proba_step(obs, state, mask), wanted, rtol=2e-4, atol=1e-6)
        actions, step_values, after, neglogp = model.step(obs, state, mask)
        np.testing.assert_allclose(step_values, wanted_value, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(neglogp, -np.log(wanted[[0, 1], actions]), rtol=2e-4, atol=1e-6)
        best, _, _, _ = model.step(obs, state, mask, deterministic=True)
        np.testing.assert_array_equal(best, wanted.argmax(1))
        _, state = model.predict(obs, state, mask)
        assert (after is None) == (state is None)
        if after is not None and state is not None and old_state is not None:
            np.testing.assert_allclose(after, state, atol=1e-6)
            np.testing.assert_allclose(state, old_state, rtol=2e-4, atol=1e-5)


def test_nothing_is_changed_by_parameters_that_do_not_fit() -> None:
    model = small_model()
    before = model.get_parameters()
    last = list(before)[-1]
    changed = {name: array + 1 for name, array in before.items()}
    cases: list[tuple[Any, bool, type[Exception], str]] = [
        ({k: v for k, v in changed.items() if k != last}, True, RuntimeError, f"{last} are missing"),
        ({**changed, "model/pi_fc9/w:0": np.zeros(2)}, True, KeyError, "model/pi_fc9/w:0: is not a parameter"),
        ({**changed, "model/pi_fc9/w:0": np.zeros(2)}, False, KeyError, "model/pi_fc9/w:0: is not a parameter"),
        ({**changed, last: np.zeros((3, 3))}, False, ValueError, f"{last}: must have the shape"),
        ({**changed, last: np.full(2, np.nan)}, True, ValueError, f"{last}: must hold finite numbers"),
        (list(changed.values())[:-1], True, ValueError, "a list must have 10 arrays, got 9"),
    ]
    for given, exact, error, message in cases:
        with pytest.raises(error, match=message):
            model.load_parameters(given, exact_match=exact)
        for name, array in model.get_parameters().items():
            np.testing.assert_array_equal(array, before[name])


def test_some_parameters_or_a_list_of_all() -> None:
    model = small_model()
    before = model.get_parameters()
    policy = {name: array + 1.0 for name, array in before.items() if "/pi" in name}  # as evolution strategies do
    model.load_parameters(policy, exact_match=False)
    for name, array in model.get_parameters().items():
        np.testing.assert_array_equal(array, before[name] + (name in policy), err_msg=name)
    model.load_parameters(list(before.values()))
    np.testing.assert_array_equal(model.get_parameters()["model/pi/w:0"], before["model/pi/w:0"])
    model.learn(BATCH)
    assert not np.array_equal(model.get_parameters()["model/pi/w:0"], before["model/pi/w:0"])
    assert not np.array_equal(before["model/pi/w:0"], policy["model/pi/w:0"]), "what was returned is a copy"


def test_parameters_of_a_file(tmp_path: Path) -> None:
    model, other = small_model().learn(BATCH), small_model(seed=3)
    model.save(tmp_path / "model")
    other.load_parameters(tmp_path / "model")
    for name, array in model.get_parameters().items():
        np.testing.assert_array_equal(other.get_parameters()[name], array, err_msg=name)


def test_layers_that_are_shared_after_the_lstm_learn(tmp_path: Path) -> None:
    kwargs = {"net_arch": ["lstm", 5, {"pi": [4], "vf": [3]}], "n_lstm": 4}
    model = small_model("MlpLstmPolicy", policy_kwargs=kwargs)
    before = model.get_parameters()["model/shared_fc1/w:0"]
    model.learn(2 * BATCH)
    assert not np.array_equal(model.get_parameters()["model/shared_fc1/w:0"], before)
    policy: Any = model.agent.policy
    assert policy.value_head[0].weight is policy.policy_head[0].weight
    model.save(tmp_path / "model")
    assert PPO2.load(tmp_path / "model").get_parameters().keys() == model.get_parameters().keys()


@pytest.mark.parametrize("policy", ["CnnPolicy", "CnnLstmPolicy", "MlpPolicy"])
def test_networks_that_stable_baselines_does_not_have(tmp_path: Path, policy: str) -> None:
    speed = spaces.Box(-1, 1, (2,))
    space = spaces.Dict({"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "speed": speed})

    class Both(Picking):
        def __init__(self) -> None:
            super().__init__(spaces.Discrete(2), speed)
            self.observation_space: Any = space

        def _see(self) -> Any:
            return {"image": np.zeros((36, 36, 1), np.uint8), "speed": np.zeros(2, np.float32)}

    kwargs: dict[str, Any] = {"n_lstm": 4} if "Lstm" in policy else {"act_fun": torch.nn.PReLU}
    model = small_model(policy, DummyVecEnv([Both] * 2), n_steps=4, noptepochs=1, policy_kwargs=kwargs)
    model.load_parameters({name: array + 0.5 for name, array in model.get_parameters().items()})
    model.save(tmp_path / "model")
    loaded = PPO2.load(tmp_path / "model", policy_kwargs=kwargs)
    assert len(model.get_parameters()) == 2 + len(model.agent.state_dict())  # the layer "q"
    for name, weight in model.agent.state_dict().items():
        np.testing.assert_array_equal(loaded.agent.state_dict()[name], weight, err_msg=name)
