from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FlattenObservation, RescaleAction, TimeLimit, TransformReward

import minerva
from minerva.environments import display_name, source_of
from minerva.environments.instances import Copies
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo.small_run import ROLLOUT, same_run, small_trainer, train


class Silent(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


def rescaled(env: Any, bound: float) -> RescaleAction[Any, Any, Any]:
    return RescaleAction(env, np.float32(-bound), np.float32(bound))


@pytest.mark.parametrize(
    ("make", "env_kwargs"),
    [
        (lambda: gymnasium.make("Pendulum-v1"), {}),
        (lambda: gymnasium.make("Pendulum-v1", g=5.0, render_mode="rgb_array"), {"g": 5.0}),
        (lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7), {"max_episode_steps": 7}),
        (lambda: TimeLimit(gymnasium.make("Pendulum-v1").unwrapped, 7), {"max_episode_steps": 7}),
        (lambda: gymnasium.make("Pendulum-v1").unwrapped, {"max_episode_steps": -1}),
        (lambda: gymnasium.spec("Pendulum-v1"), {}),
        (lambda: gymnasium.make("FrozenLake-v1", map_name="4x4"), {}),  # as it is registered
    ],
)
def test_an_environment_of_a_registered_id_is_that_id_with_its_arguments(make: Any, env_kwargs: dict[str, Any]) -> None:
    env = make()
    source = source_of(env)
    assert source.env == display_name(env) == ("FrozenLake-v1" if "Frozen" in str(env) else "Pendulum-v1")
    assert source.kwargs == env_kwargs


def test_a_run_of_an_instance_is_the_run_of_its_id_and_leaves_it_alone(tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1", g=5.0, render_mode="rgb_array")
    env.reset(seed=3)
    before = env.unwrapped.state.copy()  # type: ignore[attr-defined]
    train(tmp_path / "instance", env_id=env, num_envs=2, minibatch_size=16)
    train(tmp_path / "id", env_id="Pendulum-v1", env_kwargs={"g": 5.0}, num_envs=2, minibatch_size=16)
    assert same_run(tmp_path / "instance", tmp_path / "id")
    assert (env.unwrapped.state == before).all()  # type: ignore[attr-defined]
    env.close()


def test_an_instance_has_the_preset_of_its_id_or_the_general_one_of_its_actions(tmp_path: Path) -> None:
    short: dict[str, Any] = {"eval_episodes": 0, "console": False, "num_envs": 1, "rollout_steps": 64}
    for env, said in (
        (gymnasium.make("Pendulum-v1", g=5.0), "Using the preset of Pendulum-v1"),
        (rescaled(gymnasium.make("Pendulum-v1"), 0.5), "using the general preset for continuous actions"),
        (gymnasium.make("FrozenLake-v1"), "using the general preset for discrete actions"),
    ):
        out = tmp_path / str(type(env.unwrapped).__name__) / said[-9:]
        minerva.train("ppo", env, 64, out_dir=out, minibatch_size=32, **short)
        assert said in (out / "notes.log").read_text()


def test_no_copy_opens_a_window_and_the_user_is_told() -> None:
    env = gymnasium.make("CartPole-v1", render_mode="human")  # opens none before its first reset
    for given in (env, rescaled(gymnasium.make("Pendulum-v1", render_mode="human"), 1.0)):
        source = source_of(given)
        assert source.note == 'Training on copies of the environment, which open no window (render_mode "human").'
        assert "render_mode" not in source.kwargs
        if isinstance(source.env, Copies):
            assert source.env().render_mode is None
    trainer = small_trainer(env, minibatch_size=16)
    trainer.close()
    assert any("open no window" in note for note in trainer.notes) and trainer.config.env_kwargs == {}


def test_wrappers_that_the_spec_records_are_copied(tmp_path: Path) -> None:
    inner = rescaled(gymnasium.make("Pendulum-v1", g=5.0), 0.5)
    env = TransformReward(inner, lambda reward: 0.0 * float(reward) + 2.0)
    assert display_name(env) == "custom:Pendulum-v1+RescaleAction+TransformReward"
    trainer = small_trainer(env, num_envs=2, minibatch_size=16, vectorization="subprocess", num_workers=1)
    assert trainer.env.action_space.high == 0.5  # type: ignore[attr-defined]
    result = trainer.train(ROLLOUT * 2, tmp_path / "run")
    trainer.close()
    assert result.last_evaluation is not None and (result.last_evaluation.returns == 5 * 2.0).all()  # five steps
    copy = source_of(env).env
    assert isinstance(copy, Copies) and copy().unwrapped.g == 5.0  # type: ignore[attr-defined]


def test_an_environment_that_was_registered_again_is_copied_from_its_own_spec() -> None:
    gymnasium.register("minerva/Shifting-v0", entry_point=lambda **kwargs: CartPoleEnv(**kwargs), max_episode_steps=9)
    env = gymnasium.make("minerva/Shifting-v0")
    del gymnasium.registry["minerva/Shifting-v0"]
    gymnasium.register("minerva/Shifting-v0", entry_point=lambda **kwargs: Noisy())
    copy = source_of(env).env
    assert isinstance(copy, Copies)
    assert isinstance(copy().unwrapped, CartPoleEnv) and display_name(env) == "custom:minerva/Shifting-v0"
    del gymnasium.registry["minerva/Shifting-v0"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: gymnasium.make_vec("CartPole-v1", num_envs=3),
            r"got CartPoleVectorEnv, a vector of 3\..*: give \"CartPole-v1\" and num_envs=3\.",
        ),
        (Noisy, r"got an instance of Noisy without a spec.* Give the class, Noisy, or a function: lambda: Noisy\(…\)"),
        (
            lambda: Silent(FlattenObservation(gymnasium.make("CartPole-v1"))),
            r"got CartPole-v1 in Silent, which .* lambda: Silent\(gymnasium.make\(\"CartPole-v1\"\), …\)\.",
        ),
        (lambda: "MlpPolicy", r"got 'MlpPolicy', which is a policy of stable-baselines\. The environment comes first"),
        (lambda: None, "env_id: must be an id such as .* got NoneType"),
        (lambda: 3, "env_id: must be an id such as .* got int"),
    ],
)
def test_what_cannot_be_copied_says_what_to_write(make: Any, message: str) -> None:
    given = make()
    for start in (minerva.PPOTrainer, lambda env: minerva.train("ppo", env)):
        with pytest.raises(ValueError, match=message) as caught:
            start(given)
        assert str(caught.value).startswith("env_id: must be ") and str(caught.value).count(". ") <= 1


def test_the_habit_of_a_policy_before_the_environment_is_met_before_anything_else() -> None:
    env: Any = gymnasium.make("CartPole-v1")
    with pytest.raises(ValueError, match="which is a policy of stable-baselines"):
        minerva.PPOTrainer("MlpPolicy", env, verbose=1)
