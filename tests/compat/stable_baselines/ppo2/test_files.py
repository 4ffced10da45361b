from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minerva
from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines import PPO2, MlpPolicy, VecNormalize, make_vec_env
from minerva.compat.stable_baselines.common.policies import FeedForwardPolicy
from minerva.compat.stable_baselines.common.schedules import LinearSchedule, PiecewiseSchedule, constfn, linear_schedule
from tests.compat.stable_baselines.samples import BATCH, N_ENVS, assert_same, noisy, small_model


def test_a_file_holds_the_whole_model(tmp_path: Path) -> None:
    model = small_model(learning_rate="lin_1e-3", policy_kwargs={"net_arch": [8, {"pi": [4]}], "act_fun": torch.relu})
    model.learn(2 * BATCH)
    model.save(tmp_path / "folder" / "model")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.zip"]
    loaded = PPO2.load(tmp_path / "folder" / "model")
    assert_same(loaded, model)
    assert (loaded.num_timesteps, loaded.learning_rate, loaded.policy) == (2 * BATCH, "lin_1e-3", MlpPolicy)
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    with pytest.raises(ValueError, match=r"env: there is none to learn in; .*set_env"):
        loaded.learn(BATCH)
    # The optimizer's moments came along: both take the same next step in the same environments.
    model.set_random_seed(5)
    loaded.set_random_seed(5)
    loaded.set_env(make_vec_env("CartPole-v1", N_ENVS))
    assert_same(model.learn(BATCH), loaded.learn(BATCH))


def test_names_of_files(tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model.pkl")
    assert (tmp_path / "model.pkl").exists()
    PPO2.load(tmp_path / "model.pkl")
    model.save(tmp_path / "v1.0_model")  # what looks like an ending is one
    PPO2.load(str(tmp_path / "v1.0_model"))
    with pytest.raises(CheckpointError, match="there is no file"):
        PPO2.load(tmp_path / "other")


def test_functions_are_given_again(tmp_path: Path) -> None:
    env = make_vec_env("CartPole-v1", N_ENVS)
    model = small_model(env=env, learning_rate=lambda share: 1e-3 * share, policy_kwargs={"act_fun": lambda x: x})
    with pytest.warns(UserWarning, match=r"learning_rate: is a function, .*PPO2\.load\(path, env, learning_rate="):
        model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"custom function, pass it again: PPO2\.load"):
        PPO2.load(tmp_path / "model")
    kwargs = {"act_fun": lambda x: x}
    acting = PPO2.load(tmp_path / "model", env=env, policy_kwargs=kwargs)
    acting.predict(env.reset())
    with pytest.raises(ValueError, match=r"learning_rate: was a function, .*give the function again"):
        acting.learn(BATCH)
    PPO2.load(tmp_path / "model", env, {"learning_rate": 1e-3}, policy_kwargs=kwargs, verbose=0).learn(BATCH)
    with pytest.raises(ValueError, match="learning_rat: is not a setting of PPO2"):
        PPO2.load(tmp_path / "model", learning_rat=1e-3)
    with pytest.raises(ValueError, match="policy_kwargs: must be the saved ones"):
        PPO2.load(tmp_path / "model", policy_kwargs={"layers": [3]})


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    VecNormalize(noisy()).save(tmp_path / "statistics.zip")
    with pytest.raises(CheckpointError, match="was saved by VecNormalize, not PPO2"):
        PPO2.load(tmp_path / "statistics")
    torch.save({"code": print}, tmp_path / "code.zip")
    with pytest.raises(CheckpointError, match="holds something other than tensors and plain values"):
        PPO2.load(tmp_path / "code.zip")


def test_known_schedules_are_kept(tmp_path: Path) -> None:
    env = make_vec_env("CartPole-v1", N_ENVS)
    piecewise = PiecewiseSchedule([(0, 1e-4), (0.5, 2e-4)], outside_value=3e-4)
    settings = {"learning_rate": piecewise.value, "cliprange": LinearSchedule(2, 0.1, 0.3).value}
    small_model(env=env, **settings, cliprange_vf=constfn(0.5)).save(tmp_path / "model")
    loaded = PPO2.load(tmp_path / "model", env)
    functions: list[Any] = [loaded.learning_rate, loaded.cliprange, loaded.cliprange_vf]
    assert [[function(share) for share in (0, 0.25, 1)] for function in functions] == [
        pytest.approx([1e-4, 1.5e-4, 3e-4]), pytest.approx([0.3, 0.275, 0.2]), [0.5, 0.5, 0.5],
    ]  # fmt: skip
    loaded.learn(BATCH)
    small_model(env=env, learning_rate=linear_schedule).save(tmp_path / "model")
    assert PPO2.load(tmp_path / "model").learning_rate is linear_schedule


def test_file_objects_and_arguments_of_load(tmp_path: Path) -> None:
    model = small_model(gamma=np.float64(0.9), n_steps=np.int64(8), policy_kwargs={"layers": [np.int64(8)]})
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = PPO2.load(file, n_cpu_tf_sess=1, verbose=0, tensorboard_log=str(tmp_path), custom_objects={"lam": 0.5})
    assert_same(model, loaded)
    found = (loaded.gamma, loaded.n_steps, loaded.lam, loaded.n_cpu_tf_sess, loaded.tensorboard_log)
    assert found == (0.9, 8, 0.5, 1, str(tmp_path))
    loaded.save(tmp_path / "again")
    assert PPO2.load(tmp_path / "again").tensorboard_log is None
    file.seek(0)
    other = small_model(seed=5)
    other.load_parameters(file)
    assert_same(model, other)
    with pytest.raises(CheckpointError, match="file object is damaged or not a checkpoint"):
        PPO2.load(io.BytesIO(b"nothing"))


def test_custom_policies_are_saved(tmp_path: Path) -> None:
    class Wide(FeedForwardPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "net_arch": [9, {"pi": [8]}], "feature_extraction": "mlp"})

    model = small_model(Wide, policy_kwargs={"act_fun": torch.relu})
    model.save(tmp_path / "model")
    obs = np.random.default_rng(0).normal(size=(5, 4))
    described, given = PPO2.load(tmp_path / "model"), PPO2.load(tmp_path / "model", policy=Wide)
    assert (described.policy, given.policy) == (FeedForwardPolicy, Wide)
    for loaded in (described, given):
        np.testing.assert_array_equal(loaded.action_probability(obs), model.action_probability(obs))
    described.save(tmp_path / "again")
    assert_same(PPO2.load(tmp_path / "again"), model)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("policy_kwargs", {"layers": [2**40]}, "layers: must be Layers"),
        ("policy_kwargs", {"layers": []}, "layers: must be Layers"),
        ("observation_space", {"kind": "Discrete", "n": 2**40, "start": 0}, "observation_space: must have 4 numbers"),
        ("action_space", {"kind": "Discrete", "n": 2**40, "start": 0}, "model/pi/w:0: must have 1099511627776 outputs"),
        ("parameters", {}, "has other parameters than MlpPolicy"),
        ("parameters", {"model/pi_fc0/w:0": torch.zeros(1)}, "has other parameters than MlpPolicy"),
        ("parameters", {"model/pi/w:0": 3}, "checkpoint.parameters.model/pi/w:0: must be a tensor, got 3"),
        ("settings", 3, "checkpoint.settings: must be a dict, got 3"),
        ("num_timesteps", -1, "checkpoint.num_timesteps: must lie between 0"),
    ],
)
def test_files_that_were_altered_are_refused(tmp_path: Path, part: str, value: Any, message: str) -> None:
    model = small_model()
    minerva.checkpointing.write(tmp_path / "model.zip", {**model._checkpoint(), part: value})
    with pytest.raises(CheckpointError, match=message):
        PPO2.load(tmp_path / "model")
