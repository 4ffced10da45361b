# VecFrameStack: the last observations side by side, zeros at the start of an episode.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.vec_env import DummyVecEnv, VecFrameStack


class Counter(gym.Env):
    observation_space = gym.spaces.Box(0, 9, shape=(2,), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self):
        self.n = 1
        return np.full(2, self.n, dtype=np.float32)

    def step(self, action):
        self.n += 1
        return np.full(2, self.n, dtype=np.float32), 0., self.n == 5, {}


env = VecFrameStack(DummyVecEnv([Counter]), n_stack=3)
assert env.observation_space.shape == (6,) and env.n_stack == 3
assert env.reset().tolist() == [[0, 0, 0, 0, 1, 1]]
assert env.step([0])[0].tolist() == [[0, 0, 1, 1, 2, 2]]
assert env.step([0])[0].tolist() == [[1, 1, 2, 2, 3, 3]]
assert env.step([0])[0].tolist() == [[2, 2, 3, 3, 4, 4]]
obs, reward, done, info = env.step([0])
assert done[0] and obs.tolist() == [[0, 0, 0, 0, 1, 1]]
assert info[0]['terminal_observation'].tolist() == [3, 3, 4, 4, 5, 5]
assert env.reset().tolist() == [[0, 0, 0, 0, 1, 1]]

model = PPO2('MlpPolicy', env, n_steps=np.int64(16), nminibatches=1).learn(32)
assert model.observation_space.shape == (6,)
assert VecFrameStack(DummyVecEnv([Counter]), np.int32(2)).observation_space.shape == (4,)
