from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from minerva.compat import gym
from minerva.compat.gym.envs.classic_control import CartPoleEnv


class Count(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.count = start

    def reset(self) -> Any:
        self.count = self.start
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(2, 0.5, np.float32), 1.0, self.count >= 10, {}


def test_an_environment_of_gymnasium_gets_the_older_interface() -> None:
    env, new = gym.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    assert env.seed(3) == [3]
    expected, _ = new.reset(seed=3)
    assert np.array_equal(env.reset(), expected)
    for _ in range(5):
        observation, reward, done, info = env.step(1)
        expected, expected_reward, terminated, truncated, _ = new.step(1)
        assert np.array_equal(observation, expected)
        assert (reward, done, info) == (expected_reward, terminated or truncated, {})
    assert env.spec.id == "CartPole-v1"
    assert isinstance(env.observation_space, gymnasium.spaces.Box)
    assert gym.spaces.Box is gymnasium.spaces.Box


def test_the_time_limit_is_in_the_info_and_a_termination_is_not() -> None:
    env = gym.make("Pendulum-v1")
    env.reset()
    steps = [env.step([0.0]) for _ in range(200)]
    assert [done for _, _, done, _ in steps] == [False] * 199 + [True]
    assert "TimeLimit.truncated" not in steps[-2][3]
    assert steps[-1][3]["TimeLimit.truncated"] is True


def test_attributes_are_read_and_set_through_the_adapter() -> None:
    env = gym.make("CartPole-v1")
    env.reset()
    env.unwrapped.gravity = 1.5
    assert env.gravity == 1.5
    assert len(env.unwrapped.step(0)) == 4
    without_limit = gym.make("Pendulum-v1").env
    without_limit.reset()
    assert not any(without_limit.step([0.0])[2] for _ in range(250))
    env._max_episode_steps = 3
    env.reset()
    assert [env.step(k % 2)[2] for k in range(3)] == [False, False, True]
    with pytest.raises(AttributeError, match="colour"):
        _ = env.colour


def test_a_picture_is_rendered_by_mode() -> None:
    env = gym.make("CartPole-v1")
    env.reset()
    assert env.render(mode="rgb_array").shape == (400, 600, 3)


def test_without_a_display_nothing_is_shown_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("minerva.compat.gym.core._said_no_display", False)
    env = gym.make("CartPole-v1")
    env.reset()
    env.render()
    env.render()
    assert capsys.readouterr().err.count("no display") == 1


class Doubled(gym.ObservationWrapper):
    def observation(self, observation: Any) -> Any:
        return 2 * observation


class Negated(gym.RewardWrapper):
    def reward(self, reward: Any) -> Any:
        return -reward


class Flipped(gym.ActionWrapper):
    def action(self, action: Any) -> Any:
        return 1 - action


def test_wrappers_change_observations_rewards_and_actions() -> None:
    env, plain = Doubled(Negated(Flipped(gymnasium.make("CartPole-v1")))), gym.make("CartPole-v1")
    env.seed(0)
    plain.seed(0)
    assert np.array_equal(env.reset(), 2 * plain.reset())
    observation, reward, done, _ = env.step(1)
    expected, expected_reward, expected_done, _ = plain.step(0)
    assert np.array_equal(observation, 2 * expected)
    assert (reward, done) == (-expected_reward, expected_done)


def test_a_wrapper_shows_the_attributes_of_what_it_wraps_and_can_be_pickled() -> None:
    env = gym.Wrapper(Count(start=4))
    assert env.start == 4
    assert env.unwrapped is env.env
    assert pickle.loads(pickle.dumps(env)).start == 4
    with pytest.raises(AttributeError):
        _ = env._private


def test_the_old_time_limit() -> None:
    env = gym.wrappers.TimeLimit(Count(), 3)
    env.reset()
    infos = [env.step(0) for _ in range(3)]
    assert [(done, info) for _, _, done, info in infos] == [
        (False, {}),
        (False, {}),
        (True, {"TimeLimit.truncated": True}),
    ]
    env = gym.wrappers.TimeLimit(Count(start=7), 3)
    env.reset()
    assert [env.step(0) for _ in range(3)][-1][3] == {"TimeLimit.truncated": False}


def test_registered_environments_are_made_with_their_limit_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from minerva.compat.gym.envs.registration import registry

    monkeypatch.setattr(registry, "registered", {})
    gym.register(id="Count-v0", entry_point=Count, max_episode_steps=2, kwargs={"start": 1})
    gym.envs.register("Place-v3", "gym.envs.classic_control:PendulumEnv")
    env = gym.make("Count-v0")
    assert env.start == 1
    assert gym.make("Count-v0", start=5).start == 5
    env.reset()
    env.step(0)
    assert env.step(0)[2:] == (True, {"TimeLimit.truncated": True})
    assert env.spec.id == "Count-v0"
    assert "Count-v0" in gym.envs.registry.env_specs
    assert gym.make("Place-v3").reset().shape == (3,)
    with pytest.raises(gym.error.Error, match="registered already"):
        gym.register(id="Count-v0", entry_point=Count)
    with pytest.raises(gym.error.Error, match=r"<name>-v<number>"):
        gym.register(id="Count", entry_point=Count)


def test_what_is_registered_is_known_in_other_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minerva.compat.gym.envs import registration

    monkeypatch.setattr(registration.registry, "registered", {})
    monkeypatch.setattr(registration, "_said", set())
    gym.register("Count-v0", Count, kwargs={"start": 3})
    gym.make("Pendulum-v0")
    makers = registration.with_registered([lambda: gym.make("Count-v0"), lambda: gym.make("Pendulum-v0")])
    registration.registry.registered.clear()
    registration._said.clear()
    assert makers[0]().start == 3
    capsys.readouterr()
    makers[1]()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ("Pendulum-v0", "Pendulum-v1"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("BipedalWalker-v2", "BipedalWalker-v3"),
        ("FrozenLake-v0", "FrozenLake-v1"),
    ],
)
def test_an_older_id_is_replaced_and_it_is_said_once(
    older: str, today: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minerva.compat.gym.envs import registration

    monkeypatch.setattr(registration, "_said", set())
    assert [registration.current_id(older) for _ in range(2)] == [today] * 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert older in said and today in said


def test_ids_that_exist_stay_and_unknown_ones_raise_an_error() -> None:
    assert gym.make("CartPole-v0").spec.id == "CartPole-v0"
    with pytest.raises(gym.error.Error, match="NoSuchGame"):
        gym.make("NoSuchGame-v0")


def test_atari_games_have_their_old_ids() -> None:
    env = gym.make("PongNoFrameskip-v4")
    assert env.reset().shape == (210, 160, 3)
    assert "NOOP" in env.unwrapped.get_action_meanings()


def test_a_class_of_gym_can_be_derived_from() -> None:
    class NoVelocity(CartPoleEnv):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()[[0, 2]]

        def step(self, action: Any) -> Any:
            observation, reward, done, info = super().step(action)
            return observation[[0, 2]], reward, done, info

    env = NoVelocity()
    assert isinstance(env, gym.Env)
    assert env.seed(1) == [1]
    first = env.reset()
    env.seed(1)
    assert np.array_equal(env.reset(), first)
    observation, reward, done, info = env.step(0)
    assert observation.shape == (2,)
    assert (reward, done, info) == (1.0, False, {})
    assert gym.Wrapper(env).env is env  # it has the older interface already


def test_random_numbers_have_the_old_methods() -> None:
    random, seed = gym.utils.seeding.np_random(7)
    assert seed == 7
    assert random.randint(10) == np.random.RandomState(7).randint(10)


def test_flattened_and_rescaled() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Discrete(3)})

    class Nested(Count):
        observation_space = space  # type: ignore[assignment]

        def reset(self) -> Any:
            return {"a": np.array([0.25, -0.5], np.float32), "b": 1}

    assert gym.wrappers.FlattenObservation(Nested()).reset().tolist() == [0.25, -0.5, 0, 1, 0]
    env = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1, 1)
    assert env.action_space == gym.spaces.Box(-1, 1, (1,))
    assert env.action(np.array([0.5], np.float32)).tolist() == [1.0]


def test_messages_have_a_level(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.logger, "MIN_LEVEL", 30)
    gym.logger.warn("%d things", 2)
    gym.logger.set_level(40)
    gym.logger.warn("more")
    assert capsys.readouterr().err == "WARN: 2 things\n"
