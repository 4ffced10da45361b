import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import minerva
from minerva import api, presets
from minerva.presets.fitting import SHORTEST_ROLLOUT, fit

ENVS = (1, 3, 7, 8, 64, 512, 1000)
ON_POLICY = ("ppo", "vmpo")


def all_presets(algo: str) -> list[str]:
    known = [*presets.load_presets(algo).values(), *presets.load_defaults(algo).values()]
    return [preset.name for preset in known]


def fitted(algo: str, name: str, **given: Any) -> Any:
    config = api.config_class(algo)
    settings = api.preset_settings(algo, "SomeTask-v0", name).fitted(config, given)
    return config.from_fields(None, settings.fields)


@pytest.mark.parametrize(("algo", "lstm"), list(itertools.product(ON_POLICY, (None, 32))))
def test_every_preset_fits_every_number_of_environments(algo: str, lstm: int | None) -> None:
    """Settings that do not fit together are refused by the config."""
    memory = {} if lstm is None else {"lstm_units": lstm}
    for name, envs in itertools.product(all_presets(algo), ENVS):
        before = fitted(algo, name)
        config = fitted(algo, name, num_envs=envs, **memory)
        assert config.num_envs == envs and config.lstm_units == (lstm or before.lstm_units)
        samples = max(before.batch_size, envs * min(SHORTEST_ROLLOUT, before.rollout_steps))
        unit = envs * getattr(config, "minibatches", 1)
        assert samples <= config.batch_size < samples + max(unit, envs), (name, envs)
        if algo == "ppo" and not config.lstm_units:
            assert config.minibatch_size == before.minibatch_size


@pytest.mark.parametrize("algo", ON_POLICY)
def test_every_preset_fits_every_length_of_rollouts(algo: str) -> None:
    for name, steps, lstm in itertools.product(all_presets(algo), (1, 5, 128, 999, 5000), (None, 8)):
        config = fitted(algo, name, rollout_steps=steps, num_envs=4, **({} if lstm is None else {"lstm_units": lstm}))
        assert (config.rollout_steps, config.num_envs) == (steps, 4)


def test_mpo_needs_no_fitting() -> None:
    for name, envs in itertools.product(all_presets("mpo"), ENVS):
        before = fitted("mpo", name).to_plain()
        assert fitted("mpo", name, num_envs=envs).to_plain() == {**before, "num_envs": envs}


def test_rollouts_keep_their_size_and_the_log_says_how() -> None:
    preset = {"num_envs": 8, "rollout_steps": 256, "minibatch_size": 64, "lstm_units": None}
    assert fit(preset, {"num_envs": 1}) == {"rollout_steps": 2048}
    assert fit(preset, {"num_envs": 64}) == {"rollout_steps": 32}
    assert fit(preset, {"num_envs": 512}) == {"rollout_steps": 16}
    assert fit(preset, {"num_envs": 2, "minibatch_size": 4096}) == {"rollout_steps": 2048}
    assert fit(preset, {"num_envs": 1, "rollout_steps": 32}) == {"minibatch_size": 32}
    assert fit(preset, {"lstm_units": 8}) == {"minibatch_size": 256}
    config = api.config_class("ppo")
    settings = api.preset_settings("ppo", "Swimmer-v5").fitted(config, {"num_envs": 4, "gamma": 0.5, "console": False})
    general = config.from_fields(None, presets.load_defaults("ppo")["continuous"].fields).to_plain()
    samples = general["num_envs"] * general["rollout_steps"]
    steps = samples // 4
    assert settings.notes[0].startswith("Swimmer-v5 has no preset for ppo: using the general preset for continuous")
    assert settings.notes[0].endswith(" Changed here: num_envs, gamma.")  # console changes no result
    assert settings.notes[1] == (
        f"To fit num_envs = 4: rollout_steps = {steps} in place of {general['rollout_steps']} (rollouts of {samples:,} "
        "samples)."
    )


def test_what_the_user_gave_never_changes_and_what_cannot_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="minibatch_size: must be at most"):
        fitted("ppo", "Hopper-v5", minibatch_size=10**6)
    with pytest.raises(ValueError, match="minibatches: must divide"):
        fitted("vmpo", "Hopper-v5", minibatches=999)
    for wrong in (0, -1, "x", 2.5, None, True, 10**30):
        with pytest.raises(ValueError, match="num_envs"):
            fitted("ppo", "Hopper-v5", num_envs=wrong)


def test_without_a_preset_nothing_is_fitted() -> None:
    for algo in ON_POLICY:
        config = api.config_class(algo)
        settings = api.preset_settings(algo, "SomeTask-v0", "none").fitted(config, {"num_envs": 4})
        assert settings == api.Settings({"num_envs": 4}, 1_000_000)


class Screen(gymnasium.Env[NDArray[np.uint8], Any]):
    """Images and, with `keys`, discrete actions."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def __init__(self, keys: bool = True) -> None:
        self.action_space = spaces.Discrete(3) if keys else spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.full((36, 36, 1), 7, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full((36, 36, 1), self.t, np.uint8), 1.0, False, self.t == 20, {}


@pytest.mark.parametrize(
    ("algo", "kind", "fields"),
    [
        ("ppo", "discrete", {"num_envs": 64, "update_epochs": 1, "minibatch_size": 1024}),
        ("ppo", "continuous", {"num_envs": 64, "lstm_units": 8, "update_epochs": 1}),
        ("vmpo", "discrete", {"num_envs": 64, "lstm_units": 8, "m_steps": 1}),
    ],
)
def test_general_presets_train_on_images_with_many_environments(
    algo: str, kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    general = fitted(algo, f"default.{kind}", **fields)
    more: dict[str, Any] = {
        "eval_episodes": 0,
        "console": False,
        "compile": False,
        "env_kwargs": {"keys": kind == "discrete"},
    }
    result = minerva.train(algo, Screen, general.batch_size, out_dir=tmp_path / "run", **fields, **more)
    assert (result.env_steps, result.updates) == (general.batch_size, 1)
    assert f"the general preset for {kind} actions" in (tmp_path / "run" / "notes.log").read_text()
