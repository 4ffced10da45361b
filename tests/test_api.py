import subprocess
import sys
import warnings
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

import minerva
from minerva import PPOTrainer, api, checkpointing, presets
from minerva.checkpointing import CheckpointError

SHORT: dict[str, Any] = {
    "preset": "none",
    "rollout_steps": 64,
    "minibatch_size": 32,
    "eval_episodes": 1,
    "console": False,
}


class Nested(gymnasium.Env[Any, NDArray[np.float64]]):
    """Dict and tuple observations, its keys in no alphabetical order; a float64 action of shape [2, 1]."""

    observation_space = spaces.Dict(
        OrderedDict(
            where=spaces.Tuple([spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(3, start=1)]),
            bits=spaces.MultiBinary(2),
        )
    )
    action_space = spaces.Box(-0.05, np.array([[0.01], [np.inf]]), (2, 1), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: NDArray[np.float64]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (2, 1)
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 20, {}


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "pendulum"
    minerva.train("ppo", "Pendulum-v1", total_steps=256, out_dir=folder, **SHORT)
    return folder


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api") / "nested"
    minerva.train("ppo", Nested, total_steps=128, out_dir=folder, **SHORT)
    return folder


# train


def test_train_applies_the_preset_and_fields_on_top(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[PPOTrainer] = []

    def keep(self: PPOTrainer, total_steps: int, out_dir: Any, callbacks: Any) -> int:
        made.append(self)
        return total_steps

    monkeypatch.setattr(PPOTrainer, "train", keep)
    (tmp_path / "ppo.toml").write_text('["Pendulum-v1"]\ntotal_steps = 777\ngamma = 0.9\ngae_lambda = 0.8\n')
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)
    train: Any = partial(minerva.train, console=False)
    assert train("ppo", "Pendulum-v1", gae_lambda=0.7) == 777
    assert (made[-1].config.gamma, made[-1].config.gae_lambda) == (0.9, 0.7)
    said = "Using the preset of Pendulum-v1, which was never tried. Changed here: gae_lambda."
    assert said in made[-1].notes

    assert train("ppo", "Pendulum-v1", total_steps=5, preset="none") == 5
    assert made[-1].config.gamma == 0.99

    assert train("ppo", "MountainCarContinuous-v0", preset="Pendulum-v1") == 777
    assert made[-1].config.gamma == 0.9
    said = "Using the preset of Pendulum-v1 for MountainCarContinuous-v0, for which it was not made."
    assert said in made[-1].notes


def test_an_environment_without_a_preset_gets_the_general_one_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fields = {name: value for name, value in SHORT.items() if name != "preset"} | {"console": True, "num_envs": 1}
    minerva.train("ppo", Nested, total_steps=64, out_dir=tmp_path / "run", **fields)
    said = " ".join(capsys.readouterr().out.split())
    assert "has no preset for ppo: using the general preset for continuous actions" in said
    general = presets.load_defaults("ppo")["continuous"].fields
    assert minerva.load(tmp_path / "run").config == api.config_class("ppo").from_fields(None, {**general, **fields})


def test_train_gives_the_result_and_closes_its_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(PPOTrainer, "close", lambda self: closed.append(True))
    seen: list[int] = []
    result = minerva.train(
        "ppo", "Pendulum-v1", 128, seed=3, out_dir=tmp_path, callbacks=lambda t: seen.append(t.env_steps), **SHORT
    )
    assert (result.env_steps, result.updates, result.out_dir) == (128, 2, tmp_path)
    assert seen == list(range(1, 129))
    assert result.first_evaluation is not None and result.last_evaluation is not None
    assert closed == [True]
    assert checkpointing.read(tmp_path / "ppo_last.pt")["seed"] == 3


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="algo: must be ppo or mpo or vmpo, got 'sac'"):
        minerva.train("sac", "Pendulum-v1")
    with pytest.raises(ValueError, match=r"gama: not a setting of PPOConfig. Did you mean gamma"):
        minerva.train("ppo", "Pendulum-v1", gama=1)
    with pytest.raises(ValueError, match="preset: ppo has no preset 'x'"):
        minerva.train("ppo", "Pendulum-v1", preset="x")


def test_what_the_top_level_gives() -> None:
    from minerva.callbacks import Callback
    from minerva.trainers.mpo.config import MPOConfig
    from minerva.trainers.ppo.config import PPOConfig
    from minerva.trainers.vmpo.config import VMPOConfig

    assert (minerva.PPOConfig, minerva.MPOConfig, minerva.VMPOConfig) == (PPOConfig, MPOConfig, VMPOConfig)
    assert minerva.Callback is Callback
    assert {minerva.PPOTrainer, minerva.MPOTrainer, minerva.VMPOTrainer} == {
        api.trainer_class(algo) for algo in api.ALGORITHMS
    }
    assert (minerva.train, minerva.load, minerva.Policy) == (api.train, api.load, api.Policy)
    assert set(dir(minerva)) == {*minerva._WHERE, "__version__"}
    assert all(getattr(minerva, name).__name__ == name for name in minerva._WHERE)
    with pytest.raises(AttributeError, match="module 'minerva' has no attribute 'PPOConfg'"):
        minerva.PPOConfg  # noqa: B018


def test_importing_minerva_does_not_import_what_is_heavy() -> None:
    code = "import minerva, minerva.api, sys; print({'torch', 'gymnasium', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


# load and act


def test_a_loaded_policy_acts_as_the_trainer_does(pendulum: Path) -> None:
    policy = minerva.load(pendulum)
    trainer = PPOTrainer("Pendulum-v1", config=policy.config)  # type: ignore[arg-type]
    trainer.load(pendulum)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) * 5
    wanted = trainer.agent.get_deterministic_action(torch.from_numpy(obs)).detach().numpy()
    assert np.array_equal(policy.act(obs), np.clip(wanted, -2, 2))
    # The normalizer is part of it: without it the same networks say something else.
    raw = trainer.agent.actor_mean(torch.from_numpy(obs)).detach().numpy()
    assert not np.allclose(wanted, raw, atol=1e-4)
    assert (policy.algorithm, policy.env_id, policy.env_steps, policy.seed) == ("ppo", "Pendulum-v1", 256, 42)
    trainer.close()


def test_single_observations_and_batches(pendulum: Path) -> None:
    policy = minerva.load(pendulum / "ppo_last.pt")
    batch = np.random.default_rng(0).normal(size=(4, 3))
    actions = policy.act(batch)
    assert actions.shape == (4, 1) and actions.dtype == np.float32
    for obs, action in zip(batch, actions, strict=True):
        one = policy.act(obs)
        assert one.shape == (1,)
        np.testing.assert_allclose(one, action, rtol=1e-5, atol=1e-7)
    assert np.array_equal(policy.act([0.0, 1.0, 2.0]), policy.act(np.array([0.0, 1.0, 2.0])))


def test_sampled_actions_stay_in_the_box_and_vary(pendulum: Path) -> None:
    policy = minerva.load(pendulum)
    obs = np.zeros((1000, 3))
    actions = policy.act(obs, deterministic=False)
    assert np.abs(actions).max() == 2.0  # the standard deviation is about 1: some of a thousand are cut
    assert 0.7 < actions.std() < 1.3
    assert np.unique(policy.act(obs)).size == 1
    again = minerva.load(pendulum)
    assert np.array_equal(again.act(obs, deterministic=False), actions)  # a generator of its own, from the run's seed


def test_nested_observations(nested: Path) -> None:
    policy = minerva.load(nested)
    space = policy.observation_space
    space.seed(0)
    observations = [space.sample() for _ in range(3)]
    batch = {
        "where": tuple(np.stack([o["where"][k] for o in observations]) for k in (0, 1)),
        "bits": np.stack([o["bits"] for o in observations]),
    }
    together = policy.act(batch)
    assert together.shape == (3, 2, 1) and together.dtype == np.float64
    for obs, action in zip(observations, together, strict=True):
        one = policy.act(obs)
        assert one in policy.action_space
        np.testing.assert_allclose(one, action, rtol=1e-5, atol=1e-7)
    # As the environment's own order has it: `where` before `bits`, though the alphabet has it the other way round.
    flat = np.concatenate(
        [np.concatenate([spaces.flatten(Nested.observation_space, obs)])[None] for obs in observations]
    ).astype(np.float32)
    np.testing.assert_allclose(
        np.clip(policy.act_flat(flat), -0.05, [0.01, np.inf]).reshape(3, 2, 1), together, rtol=1e-5, atol=1e-7
    )


def test_actions_are_clipped_to_each_bound(nested: Path) -> None:
    policy = minerva.load(nested)
    space = policy.observation_space
    actions = np.stack([policy.act(space.sample(), deterministic=False) for _ in range(200)])
    assert actions.min() == pytest.approx(-0.05) and actions.min() >= -0.05
    assert actions[:, 0].max() == pytest.approx(0.01) and actions[:, 0].max() <= 0.01
    assert actions[:, 1].max() > 0.5


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(4), r"observation: must have the shape \(3\), or \(B, 3\) for a batch; got an array of shape \(4,\)"),
        (np.zeros((2, 2, 3)), r"got an array of shape \(2, 2, 3\)"),
        ({"a": np.zeros(3)}, r"got a dict with \['a'\]"),
    ],
)
def test_observations_of_another_shape_are_refused(pendulum: Path, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        minerva.load(pendulum).act(obs)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([0.0, np.nan, 0.0], "observation: must hold finite numbers, got nan at position 1; replace it, or do not act"),
        (np.array([[0, 0, 0], [0, 0, -np.inf]]), "must hold finite numbers, got -inf at position 2"),
        ([1e300, 0, 0], "must hold finite numbers, got inf at position 0"),
        (None, "observation: must hold numbers, got a NoneType of object; convert it to numbers"),
        ([1j, 0, 0], "must hold numbers, got a list of complex128"),
        (np.zeros(3, "datetime64[s]"), r"must hold numbers, got an array of shape \(3,\) of datetime64"),
        ([[1.0], [2.0, 3.0]], "observation: must be an array of numbers, got a list that is none"),
    ],
)
def test_observations_that_are_no_numbers_are_refused(pendulum: Path, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        minerva.load(pendulum).act(obs)


def test_large_finite_observations_are_not_refused(pendulum: Path) -> None:
    assert np.isfinite(minerva.load(pendulum).act(np.full(3, 3e38))).all()  # its square is infinite


def test_nested_observations_of_another_form_are_refused(nested: Path) -> None:
    policy = minerva.load(nested)
    where = (np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"must be a dict with \['where', 'bits'\], got a dict with \['where'\]"):
        policy.act({"where": where})
    with pytest.raises(ValueError, match=r"observation\['where'\]: must be a tuple with \[0, 1\], got a tuple"):
        policy.act({"where": where[:1], "bits": np.zeros(2)})
    with pytest.raises(ValueError, match=r"observation\['bits'\]: must have the shape \(2\)"):
        policy.act({"where": where, "bits": np.zeros(3)})
    with pytest.raises(ValueError, match=r"batches of the same size, got sizes \[5, 4\]"):
        policy.act({"where": (np.zeros((5, 2, 2)), np.ones(5, dtype=int)), "bits": np.zeros((4, 2))})


def test_which_checkpoint(pendulum: Path, tmp_path: Path) -> None:
    last, best = checkpointing.read(pendulum / "ppo_last.pt"), checkpointing.read(pendulum / "ppo_best.pt")
    best["run"]["env_steps"] = 7
    checkpointing.write(tmp_path / "ppo_last.pt", last)
    with pytest.raises(CheckpointError, match="holds no best checkpoint"):
        minerva.load(tmp_path, which="best")
    checkpointing.write(tmp_path / "ppo_best.pt", best)
    assert minerva.load(tmp_path).env_steps == 256
    assert minerva.load(tmp_path, which="best").env_steps == 7
    with pytest.raises(ValueError, match="which: must be 'last' or 'best', got 'first'"):
        minerva.load(tmp_path, which="first")  # type: ignore[arg-type]

    (tmp_path / "ppo_last.pt").write_bytes(b"half a file")
    with pytest.warns(RuntimeWarning, match=r"ppo_last.pt is damaged .* Using ppo_best.pt instead"):
        assert minerva.load(tmp_path).env_steps == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert minerva.load(tmp_path, which="best").env_steps == 7
    (tmp_path / "ppo_best.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"ppo_last.pt is damaged.*ppo_best.pt is damaged"):
        minerva.load(tmp_path)


def test_loading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        minerva.load(tmp_path)
    with pytest.raises(CheckpointError, match="there is no folder or checkpoint"):
        minerva.load(tmp_path / "nothing")


def test_a_policy_of_an_algorithm_that_is_not_known_here(pendulum: Path, tmp_path: Path) -> None:
    checkpoint = checkpointing.read(pendulum / "ppo_last.pt")
    checkpointing.write(tmp_path / "x_last.pt", {**checkpoint, "algorithm": "x"})
    with pytest.raises(ValueError, match="algo: must be ppo or mpo or vmpo, got 'x'"):
        minerva.load(tmp_path)


def test_loading_leaves_torchs_generator_alone(tmp_path: Path) -> None:
    result = minerva.train(
        "ppo", "Pendulum-v1", total_steps=32, preset="none", rollout_steps=32, minibatch_size=32, update_epochs=1,
        eval_episodes=0, console=False, out_dir=tmp_path / "run",
    )  # fmt: skip
    before = torch.get_rng_state()
    minerva.load(result.out_dir)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("algo", ["ppo", "mpo", "vmpo"])
def test_observations_are_clipped_where_obs_clip_says(algo: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"update_after": 60, "batch_size": 8} if algo == "mpo" else {"rollout_steps": 32}
    own |= {"minibatch_size": 16} if algo == "ppo" else {}
    fields = {"obs_clip": 0.5, "normalize_obs": True, "eval_episodes": 0, "console": False, **own}
    minerva.train(algo, "Pendulum-v1", 64, preset="none", out_dir=tmp_path / "run", **fields)
    policy = minerva.load(tmp_path / "run")
    # Velocities this far from the mean are all the same to it, and smaller ones are not.
    fast, faster, slow = (policy.act(np.array([1.0, 0.0, speed], dtype=np.float32)) for speed in (7.0, 8.0, 0.1))
    assert np.array_equal(fast, faster) and not np.array_equal(fast, slow)
    with pytest.raises(CheckpointError, match=r"was made with obs_clip = 0\.5, got 10\.0"):
        api.trainer_class(algo)("Pendulum-v1", **{**fields, "obs_clip": 10.0}).load(tmp_path / "run")
