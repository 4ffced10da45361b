"""Files of stable-baselines, made here from the description of their format; outputs are computed in NumPy."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines import PPO2, DummyVecEnv, make_vec_env
from minerva.compat.stable_baselines.common import save_util
from minerva.compat.stable_baselines.common.policies import FeedForwardPolicy, LstmPolicy
from tests.compat.stable_baselines.ppo2.numpy_policies import Weights, random_weights, run
from tests.environments.tiny_envs import Picking

Shapes = dict[str, tuple[int, ...]]
NUMBERS = {
    "gamma": 0.9, "n_steps": 8, "vf_coef": 0.4, "ent_coef": 0.02, "max_grad_norm": 0.3, "learning_rate": 1e-3,
    "lam": 0.8, "nminibatches": 1, "noptepochs": 2, "cliprange": 0.1, "cliprange_vf": None, "verbose": 0, "n_envs": 1,
    "n_cpu_tf_sess": 1, "seed": 7, "_vectorize_action": False,
}  # fmt: skip


class Bomb:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def pickled(kind: str, folder: Path, **attributes: Any) -> dict[str, Any]:
    code = base64.b64encode(pickle.dumps(Bomb(folder))).decode()
    return {":type:": kind, ":serialized:": code, **attributes}


def box(folder: Path, low: Any, high: Any, shape: list[int], dtype: str = "float32") -> dict[str, Any]:
    texts = {"low": str(np.broadcast_to(np.array(low, dtype), shape)),
             "high": str(np.broadcast_to(np.array(high, dtype), shape))}  # fmt: skip
    return pickled("<class 'gym.spaces.box.Box'>", folder, shape=shape, dtype=dtype, **texts)


def write(path: Path, shapes: Shapes, obs: Any = None, actions: Any = None, **data: Any) -> Weights:
    folder = path.with_name("unpickled")
    obs = obs or box(folder, [-4.8, -np.inf, -0.4, -3.4028235e38], [4.8, np.inf, 0.4, 3.4028235e38], [4])
    actions = actions or pickled("<class 'gym.spaces.discrete.Discrete'>", folder, n=3, shape=[], dtype="int64")
    policy = pickled("<class 'abc.ABCMeta'>", folder, __init__="<function MlpPolicy.__init__ at 0x7f>")
    values = {**NUMBERS, "policy": policy, "policy_kwargs": {}, "observation_space": obs, "action_space": actions}
    weights = random_weights({f"model/{name}:0": shape for name, shape in shapes.items()})
    arrays = io.BytesIO()
    np.savez(arrays, **weights)  # type: ignore[arg-type]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({**values, **data}))
        archive.writestr("parameters", arrays.getvalue())
        archive.writestr("parameter_list", json.dumps(list(weights)))
    return weights


def dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}/w": (inputs, outputs), f"{name}/b": (outputs,)}


def heads(features: int, critic: int | None = None, actions: int = 3) -> Shapes:
    critic = features if critic is None else critic
    return {**dense("vf", critic, 1), **dense("pi", features, actions), **dense("q", critic, actions)}


def lstm(inputs: int, units: int, layer_norm: bool) -> Shapes:
    shapes: Shapes = {"wx": (inputs, 4 * units), "wh": (units, 4 * units), "b": (4 * units,)}
    if layer_norm:
        shapes |= dict.fromkeys(("gx", "bx", "gh", "bh"), (4 * units,)) | {"gc": (units,), "bc": (units,)}
    return {f"lstm1/{name}": shape for name, shape in shapes.items()}


def convolutions(channels: int, flat: int) -> Shapes:
    shapes: Shapes = {}
    for name, size, into, out in (("c1", 8, channels, 32), ("c2", 4, 32, 64), ("c3", 3, 64, 64)):
        shapes |= {f"{name}/w": (size, size, into, out), f"{name}/b": (1, out, 1, 1)}
    return {**shapes, **dense("fc1", flat, 512)}


MLP = {**dense("pi_fc0", 4, 6), **dense("vf_fc0", 4, 5), **dense("pi_fc1", 6, 7), **heads(7, 5)}
SHARED = {**dense("shared_fc0", 4, 6), **dense("pi_fc0", 6, 5), **heads(5, 6)}
OLD_LSTM = {**dense("pi_fc0", 4, 6), **lstm(6, 3, False), **heads(3)}
NEW_LSTM = {**dense("shared_fc0", 4, 6), **lstm(6, 3, True), **dense("shared_fc2", 3, 5), **dense("pi_fc0", 5, 4),
            **heads(4, 5)}  # fmt: skip
BARE_LSTM = {**lstm(4, 3, False), **dense("pi_fc0", 3, 4), **heads(4, 3)}
CNN = {**convolutions(2, 128), **heads(512)}
CNN_LSTM = {**convolutions(2, 128), **lstm(512, 3, True), **heads(3)}


@pytest.mark.parametrize("shapes", [MLP, SHARED, OLD_LSTM, NEW_LSTM, BARE_LSTM, CNN, CNN_LSTM])
def test_policies_act_as_they_did(tmp_path: Path, shapes: Shapes) -> None:
    image = "c1/w" in shapes
    space = box(tmp_path / "unpickled", 0, 255, [36, 44, 2], "uint8") if image else None
    weights = write(tmp_path / "model.zip", shapes, space)
    model = PPO2.load(tmp_path / "model")
    assert model.policy is (LstmPolicy if "lstm1/b" in shapes else FeedForwardPolicy)
    assert list(model.get_parameters()) == list(weights)
    rng = np.random.default_rng(1)
    state, old_state = None, None
    for step in range(3):
        obs = rng.integers(0, 256, (2, 36, 44, 2)).astype(np.uint8) if image else rng.normal(size=(2, 4))
        mask = np.array([step == 2, False])
        wanted, _, old_state = run(weights, obs, old_state, mask)
        np.testing.assert_allclose(model.action_probability(obs, state, mask), wanted, rtol=2e-4, atol=1e-6)
        _, state = model.predict(obs, state, mask)
        assert (state is None) == (old_state is None)
        if state is not None and old_state is not None:  # the cell state first
            np.testing.assert_allclose(state, old_state, rtol=2e-4, atol=1e-5)
    assert not (tmp_path / "unpickled").exists()


def test_settings_and_spaces(tmp_path: Path) -> None:
    write(tmp_path / "model.zip", MLP, cliprange=pickled("<class 'function'>", tmp_path / "unpickled"))
    model = PPO2.load(tmp_path / "model.zip")
    names = ("gamma", "n_steps", "vf_coef", "ent_coef", "max_grad_norm", "learning_rate", "lam", "noptepochs", "seed")
    assert {name: getattr(model, name) for name in names} == {name: NUMBERS[name] for name in names}
    assert model.action_space == spaces.Discrete(3)
    bounds = np.array([4.8, np.inf, 0.4, 3.4028235e38], np.float32)
    assert model.observation_space == spaces.Box(-bounds, bounds, dtype=np.float32)
    env = make_vec_env("CartPole-v1")
    write(tmp_path / "model.zip", {**MLP, **heads(7, 5, actions=2)}, {"n": 4})
    learned = PPO2.load(tmp_path / "model.zip", env).learn(16)
    assert learned.observation_space == env.observation_space and learned.num_timesteps == 16
    assert not (tmp_path / "unpickled").exists()


def test_boxes_and_other_actions(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.zip", tmp_path / "unpickled"
    shapes: Shapes = {**MLP, **heads(7, 5, actions=2)}
    gaussian = {name: shape for name, shape in shapes.items() if not name.startswith("q/")}
    gaussian |= {"pi/logstd": (1, 2)} | {name: shape for name, shape in shapes.items() if name.startswith("q/")}
    weights = write(file, gaussian, actions=box(folder, -0.5, 2, [2]))
    model, obs = PPO2.load(file), np.ones((1, 4))
    assert model.action_space == spaces.Box(-0.5, 2, (2,), np.float32)
    hidden = obs
    for name in ("pi_fc0", "pi_fc1"):
        hidden = np.tanh(hidden @ weights[f"model/{name}/w:0"] + weights[f"model/{name}/b:0"])
    mean = hidden @ weights["model/pi/w:0"] + weights["model/pi/b:0"]
    np.testing.assert_allclose(model.predict(obs, deterministic=True)[0], np.clip(mean, -0.5, 2), rtol=1e-5)
    np.testing.assert_allclose(model.action_probability(obs)[1], np.exp(weights["model/pi/logstd:0"]), rtol=1e-5)
    write(file, shapes, actions=pickled("<class 'gym.spaces.multi_binary.MultiBinary'>", folder, n=2))
    assert PPO2.load(file).action_space == spaces.MultiBinary(2)
    kind = "<class 'gym.spaces.multi_discrete.MultiDiscrete'>"
    write(file, {**MLP, **heads(7, 5, actions=5)}, actions=pickled(kind, folder, nvec="[2 3]"))
    assert PPO2.load(file).action_space == spaces.MultiDiscrete([2, 3])
    write(file, {**MLP, **heads(7, 5, actions=5)}, actions=pickled(kind, folder, nvec="[2 ... 3]"))
    with pytest.raises(ValueError, match="action_space: cannot be told from this file"):
        PPO2.load(file)
    write(file, gaussian, actions=pickled("<class 'gym.spaces.box.Box'>", folder, shape=[2], low="[-1. ... -1.]"))
    with pytest.raises(ValueError, match=r"action_space: cannot be told from this file; pass it: PPO2\.load"):
        PPO2.load(file)
    assert PPO2.load(file, action_space=spaces.Box(-1, 1, (2,))).predict(obs)[0].shape == (1, 2)


def test_spaces_of_newer_versions_of_gym(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.zip", tmp_path / "unpickled"

    def newer(space: dict[str, Any]) -> dict[str, Any]:
        return {"_shape" if name == "shape" else name: value for name, value in space.items()}

    actions = pickled("<class 'gym.spaces.discrete.Discrete'>", folder, n=3, _shape=[], start=2)
    write(file, MLP, newer(box(folder, -1, 1, [4])), actions)
    model = PPO2.load(file)
    assert model.observation_space == spaces.Box(-1, 1, (4,), np.float32)
    assert model.action_space == spaces.Discrete(3, start=2)
    write(file, CNN, newer(box(folder, 0, 255, [36, 44, 2], "uint8")))
    assert PPO2.load(file).observation_space == spaces.Box(0, 255, (36, 44, 2), np.uint8)
    assert not folder.exists()


def test_a_trained_model_asks_for_its_functions_when_it_learns(tmp_path: Path) -> None:
    """`learn` of stable-baselines replaces numbers by functions, so that the files of trained models hold these."""
    function = pickled("<class 'function'>", tmp_path / "unpickled")
    write(tmp_path / "model.zip", {**MLP, **heads(7, 5, actions=2)}, learning_rate=function, cliprange=function)
    env = make_vec_env("CartPole-v1")
    with pytest.raises(ValueError, match=r"(learning_rate|cliprange): was a function, .*give the function again"):
        PPO2.load(tmp_path / "model.zip", env).learn(8)
    assert PPO2.load(tmp_path / "model.zip", env, learning_rate=1e-3, cliprange=0.1).learn(8).num_timesteps == 8


def test_a_pickled_number_is_not_guessed_silently(tmp_path: Path) -> None:
    number = pickled("<class 'numpy.int64'>", tmp_path / "unpickled")
    write(tmp_path / "model.zip", MLP, n_steps=number)
    with pytest.warns(UserWarning, match=r"n_steps: is pickled in .*numpy.int64.*default, 128, is taken"):
        assert PPO2.load(tmp_path / "model.zip").n_steps == 128
    assert PPO2.load(tmp_path / "model.zip", n_steps=16).n_steps == 16
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("observation_space", {"dtype": "float33"}),
        ("observation_space", {"shape": ["x"]}),
        ("observation_space", {"shape": [-4, 36, 36], "dtype": "uint8"}),
        ("action_space", {"n": -1}),
        ("action_space", {"start": "x"}),
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    folder = tmp_path / "unpickled"
    described = {
        "observation_space": box(folder, -1, 1, [4]),
        "action_space": pickled("<class 'gym.spaces.discrete.Discrete'>", folder, n=3, shape=[], dtype="int64"),
    }
    described[name] |= change
    write(tmp_path / "model.zip", MLP, described["observation_space"], described["action_space"])
    with pytest.raises(CheckpointError, match="is damaged, or not a PPO2 of stable-baselines"):
        PPO2.load(tmp_path / "model.zip")


def test_images_that_the_parameters_are_not_of_are_refused_before_networks_are_built(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.zip", tmp_path / "unpickled"
    image = {"dtype": "uint8", "low": "[[0 ... 0]]", "high": "[[255 ... 255]]"}
    kind = "<class 'gym.spaces.box.Box'>"
    write(file, CNN, pickled(kind, folder, shape=[2000, 2000, 2], **image))
    with pytest.raises(CheckpointError, match=r"model/fc1/w:0: must have 3873024 inputs for .*, got 128"):
        PPO2.load(file)
    write(file, CNN, pickled(kind, folder, shape=[200_000, 200_000, 2], **image))
    with pytest.raises(ValueError, match="observation_space: cannot be told from this file"):
        PPO2.load(file)


def test_activation_functions(tmp_path: Path) -> None:
    file, folder, obs = tmp_path / "model.zip", tmp_path / "unpickled", np.ones((1, 4))
    kwargs = pickled("<class 'dict'>", folder, act_fun="<function relu at 0x7f12>", net_arch=[1])
    weights = write(file, SHARED, policy_kwargs=kwargs)
    wanted, _, _ = run(weights, obs, None, np.zeros(1), "relu")
    np.testing.assert_allclose(PPO2.load(file).action_probability(obs), wanted, rtol=1e-4)
    custom = pickled("<class 'abc.ABCMeta'>", folder, __init__="<function Mine.__init__ at 0x7f>")
    write(file, SHARED, policy=custom)
    with pytest.warns(UserWarning, match="of Mine with an activation function that cannot be told"):
        PPO2.load(file)

    class Mine(FeedForwardPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            arch = {"net_arch": [6, {"pi": [5]}], "act_fun": torch.relu, "feature_extraction": "mlp"}
            super().__init__(*args, **{**kwargs, **arch})

    for model in (PPO2.load(file, policy=Mine), PPO2.load(file, policy_kwargs={"act_fun": torch.relu})):
        np.testing.assert_allclose(model.action_probability(obs), wanted, rtol=1e-4)


def test_parameters_alone_are_loaded(tmp_path: Path) -> None:
    weights = write(tmp_path / "model.zip", {**MLP, **heads(7, 5, actions=2)})
    model = PPO2("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [{"pi": [6, 7], "vf": [5]}]})
    model.load_parameters(tmp_path / "model.zip")
    for name, array in model.get_parameters().items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
    # What else is in the file does not matter, so nothing is said about it.
    shapes = {**MLP, **heads(7, 5, actions=1), "pi/logstd": (1, 1)}
    folder = tmp_path / "unpickled"
    custom = pickled("<class 'abc.ABCMeta'>", folder, __init__="<function Mine.__init__ at 0x7f>")
    action_box = pickled("<class 'gym.spaces.box.Box'>", folder, shape=[1], low="[-1. ... -1.]")
    weights = write(tmp_path / "model.zip", shapes, actions=action_box, policy=custom, n_steps=custom)
    space = spaces.Box(-1, 1, (1,))
    env = DummyVecEnv([lambda: Picking(space, spaces.Box(-9, 300, (4,)))])
    model = PPO2("MlpPolicy", env, policy_kwargs={"net_arch": [{"pi": [6, 7], "vf": [5]}]})
    model.load_parameters(tmp_path / "model.zip")
    np.testing.assert_array_equal(model.get_parameters()["model/pi/logstd:0"], weights["model/pi/logstd:0"])


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    write(file, {**MLP, "strange/w": (2, 2)})
    with pytest.raises(
        CheckpointError, match=r"has other parameters than FeedForward.*model/strange/w:0: is not a param"
    ):
        PPO2.load(file)
    write(file, {**dense("fc0", 4, 4)})
    with pytest.raises(CheckpointError, match="must be a PPO2 of stable-baselines, got another algorithm"):
        PPO2.load(file)
    write(file, MLP)
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(entries["data"])
    with zipfile.ZipFile(file, "w") as archive:  # as A2C, which has no clipping
        del data["cliprange"]
        for name, content in {**entries, "data": json.dumps(data).encode()}.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match="must be a PPO2 of stable-baselines, got another algorithm"):
        PPO2.load(file)
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("data", "parameters", "parameter_list"):
            archive.writestr(name, "{}")
    with pytest.raises(CheckpointError, match="is damaged, or not a PPO2 of stable-baselines"):
        PPO2.load(file)
    arrays = io.BytesIO()
    np.savez(arrays, **{"model/pi/w:0": np.array([Bomb(tmp_path / "unpickled")])})  # type: ignore[arg-type]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", json.dumps(NUMBERS))
        archive.writestr("parameters", arrays.getvalue())
        archive.writestr("parameter_list", json.dumps(["model/pi/w:0"]))
    with pytest.raises(CheckpointError, match="is damaged, or not a PPO2"):
        PPO2.load(file)
    assert not (tmp_path / "unpickled").exists()
    file.write_bytes(pickle.dumps(Bomb(tmp_path / "unpickled")))  # the form before zip archives
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        PPO2.load(file)
    assert not (tmp_path / "unpickled").exists()


def test_a_file_may_not_grow_when_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.zip", MLP)
    monkeypatch.setattr(save_util, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match=r"must hold at most 1,000 bytes, got \d,\d+"):
        PPO2.load(tmp_path / "model.zip")
