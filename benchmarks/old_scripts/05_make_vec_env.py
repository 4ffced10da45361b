# make_vec_env: ids, classes, seeds, wrappers, monitor files, processes.
import os

import gym
import numpy as np

from stable_baselines.bench import Monitor
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.vec_env import DummyVecEnv, SubprocVecEnv


class Corridor(gym.Env):
    """Walk right until the end."""

    def __init__(self, length=5):
        self.length = length
        self.position = 0
        self.observation_space = gym.spaces.Box(0, length, shape=(1,), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self):
        self.position = 0
        return np.array([self.position], dtype=np.float32)

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        done = self.position >= self.length
        return np.array([self.position], dtype=np.float32), float(done), done, {}

    def seed(self, seed=None):
        return [seed]


class Scaled(gym.RewardWrapper):
    def reward(self, reward):
        return 10 * reward


if __name__ == '__main__':
    first = make_vec_env('CartPole-v1', n_envs=3, seed=7)
    second = make_vec_env('CartPole-v1', n_envs=3, seed=7)
    assert isinstance(first, DummyVecEnv)
    assert isinstance(first.envs[0], Monitor)
    start = first.reset()
    assert (start == second.reset()).all()
    assert not (start[0] == start[1]).all()

    # a class with arguments, a wrapper, and monitor files
    env = make_vec_env(Corridor, n_envs=2, env_kwargs=dict(length=3), wrapper_class=Scaled, monitor_dir='logs')
    assert env.get_attr('length') == [3, 3]
    env.reset()
    for _ in range(3):
        obs, rewards, dones, infos = env.step([1, 1])
    assert dones.all() and (rewards == 10).all()
    assert (obs == 0).all()
    # the wrapper is outside the monitor, which sees the rewards of the environment
    assert infos[0]['episode']['r'] == 1 and infos[0]['episode']['l'] == 3
    assert sorted(os.listdir('logs')) == ['0.monitor.csv', '1.monitor.csv']
    env.close()

    env = make_vec_env('CartPole-v1', n_envs=2, start_index=5, vec_env_cls=SubprocVecEnv, vec_env_kwargs={})
    assert isinstance(env, SubprocVecEnv)
    assert env.reset().shape == (2, 4)
    env.close()
