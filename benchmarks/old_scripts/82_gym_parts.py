# The parts of gym that environments and scripts use: wrappers, the registry, helpers.
import pickle

import gym
import numpy as np
from gym import core, envs
from gym.envs.classic_control import (
    AcrobotEnv, CartPoleEnv, Continuous_MountainCarEnv, MountainCarEnv, PendulumEnv)
from gym.envs.registration import registry
from gym.utils import EzPickle, colorize, seeding
from gym.wrappers import (
    ClipAction, FlattenObservation, RescaleAction, TimeLimit, TransformObservation, TransformReward)

from stable_baselines import PPO2
from stable_baselines.common.vec_env import DummyVecEnv

assert core.Env is gym.Env and envs.registry is registry
for kind, size in ((AcrobotEnv, 6), (CartPoleEnv, 4), (Continuous_MountainCarEnv, 2), (MountainCarEnv, 2), (PendulumEnv, 3)):
    env = kind()
    assert isinstance(env, gym.Env) and env.reset().shape == (size,)
    obs, reward, done, info = env.step(env.action_space.sample())
    assert obs.shape == (size,) and not done and isinstance(info, dict)
assert gym.spec('CartPole-v1').max_episode_steps == 500
assert 'CartPole-v1' in [spec.id for spec in envs.registry.all()]
assert 'x' in colorize('x', 'red', bold=True)

env = TimeLimit(CartPoleEnv(), max_episode_steps=3)
env.seed(1)
first = env.reset()
env.seed(1)
assert np.array_equal(env.reset(), first) and env.unwrapped.gravity == 9.8
for _ in range(3):
    obs, reward, done, info = env.step(0)
assert done and info['TimeLimit.truncated']

# from the inside out: actions, observations, rewards
seen = []


class Asked(gym.ActionWrapper):
    def action(self, action):
        seen.append(float(np.ravel(action)[0]))
        return action


env = RescaleAction(Asked(ClipAction(PendulumEnv())), -1, 1)
assert env.action_space.high == [1]
env = TransformReward(TransformObservation(env, lambda obs: obs * 0 + 3), lambda reward: 7.)
assert env.reset().tolist() == [3, 3, 3]
obs, reward, done, info = env.step(np.array([0.5]))
assert reward == 7 and obs.tolist() == [3, 3, 3] and seen == [1.0]


class Grid(gym.Env, EzPickle):
    observation_space = gym.spaces.Box(0, 1, shape=(2, 3), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size):
        EzPickle.__init__(self, size)
        self.size = size
        self.random, seed = seeding.np_random(5)
        assert seed == 5

    def reset(self):
        return self.random.rand(2, 3)

    def step(self, action):
        return self.random.rand(2, 3), 0., self.random.randint(4) == 0, {}


assert pickle.loads(pickle.dumps(Grid(size=4))).size == 4
flat = FlattenObservation(Grid(2))
assert flat.observation_space.shape == (6,) and flat.reset().shape == (6,) and flat.size == 2
assert str(flat).startswith('<FlattenObservation')
PPO2('MlpPolicy', DummyVecEnv([lambda: FlattenObservation(Grid(2))]), n_steps=16).learn(32)
