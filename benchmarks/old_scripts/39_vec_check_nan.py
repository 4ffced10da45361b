# VecCheckNan says where a value that is not a number came from.
import warnings

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.vec_env import DummyVecEnv, VecCheckNan


class NanAndInfEnv(gym.Env):
    """Returns what the action says."""

    def __init__(self):
        super(NanAndInfEnv, self).__init__()
        self.action_space = gym.spaces.Box(low=-np.inf, high=np.inf, shape=(1,), dtype=np.float64)
        self.observation_space = gym.spaces.Box(low=-np.inf, high=np.inf, shape=(1,), dtype=np.float64)

    def step(self, action):
        action = float(np.ravel(action)[0])
        obs = np.nan if action > 99 else np.inf if action < -99 else 0.
        return np.array([obs]), 0.0, False, {}

    def reset(self):
        return np.array([0.])

    def render(self, mode='human', close=False):
        pass


env = VecCheckNan(DummyVecEnv([NanAndInfEnv]), raise_exception=True)
env.reset()
env.step([[0.]])
for wrong, said in ((np.nan, 'nan in actions'), (np.inf, 'inf in actions'), (100., 'nan in observations'),
                    (-100., 'inf in observations')):
    try:
        env.step(np.array([[wrong]]))
    except ValueError as error:
        assert said in str(error), error
    else:
        raise AssertionError('did not notice ' + said)
env.step([[1.]])

# a warning by default, and only once
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter('always')
    env = VecCheckNan(DummyVecEnv([NanAndInfEnv]))
    env.reset()
    env.step([[100.]])
    env.step([[100.]])
assert len([w for w in found if 'nan' in str(w.message)]) == 1
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter('always')
    env = VecCheckNan(DummyVecEnv([NanAndInfEnv]), warn_once=False, check_inf=False)
    env.reset()
    env.step([[100.]])
    env.step([[-100.]])
    env.step([[100.]])
assert len([w for w in found if 'nan' in str(w.message)]) == 2
assert not any('found inf' in str(w.message) for w in found)

env = VecCheckNan(DummyVecEnv([lambda: gym.make('Pendulum-v0')]), raise_exception=True)
PPO2('MlpPolicy', env, n_steps=32).learn(64)
