# What check_env finds.
import warnings

import gym
import numpy as np
from gym import spaces

from stable_baselines.common.env_checker import check_env


class Base(gym.Env):
    observation_space = spaces.Box(low=-1, high=1, shape=(2,), dtype=np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros(2, dtype=np.float32)

    def step(self, action):
        return np.zeros(2, dtype=np.float32), 1.0, False, {}


class ResetsToList(Base):
    def reset(self):
        return [0., 0.]


class OutOfSpace(Base):
    def reset(self):
        return np.array([3, 3], dtype=np.float32)


class RewardIsText(Base):
    def step(self, action):
        return np.zeros(2, dtype=np.float32), "1", False, {}


class DoneIsNumber(Base):
    def step(self, action):
        return np.zeros(2, dtype=np.float32), 1.0, 0, {}


class NoSpaces(gym.Env):
    action_space = spaces.Discrete(2)


def warned(env):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_env(env)
    return [str(warning.message) for warning in found]


check_env(Base())
check_env(gym.make('CartPole-v1'))
for wrong in (ResetsToList, OutOfSpace, RewardIsText, DoneIsNumber, NoSpaces):
    try:
        check_env(wrong())
    except AssertionError as error:
        assert str(error)
    else:
        raise AssertionError("accepted " + wrong.__name__)

try:
    check_env("CartPole-v1")
except AssertionError:
    pass
else:
    raise AssertionError("accepted a string")

# possible, but not wise
wide = Base()
wide.action_space = spaces.Box(low=-5, high=5, shape=(1,), dtype=np.float32)
assert len(warned(wide)) == 1
wide.action_space = spaces.Box(low=-1, high=1, shape=(1,), dtype=np.float32)
assert not warned(wide)
check_env(wide, warn=False, skip_render_check=True)


class FloatPicture(gym.Env):
    observation_space = spaces.Box(low=0, high=1, shape=(20, 20, 3), dtype=np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros((20, 20, 3), dtype=np.float32)

    def step(self, action):
        return self.reset(), 0., True, {}


# the type, the bounds and the size
assert len(warned(FloatPicture())) == 3
