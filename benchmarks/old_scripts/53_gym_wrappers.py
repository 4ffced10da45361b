# Wrappers of gym, an environment that is registered, and TimeLimit.
import gym
import numpy as np
from gym.envs.registration import register

from stable_baselines import PPO2
from stable_baselines.common.vec_env import DummyVecEnv


class NormalizeActionWrapper(gym.Wrapper):
    """Actions between -1 and 1."""

    def __init__(self, env):
        action_space = env.action_space
        assert isinstance(action_space, gym.spaces.Box)
        self.low, self.high = action_space.low, action_space.high
        env.action_space = gym.spaces.Box(low=-1, high=1, shape=action_space.shape, dtype=np.float32)
        super(NormalizeActionWrapper, self).__init__(env)

    def rescale_action(self, scaled_action):
        return self.low + (0.5 * (scaled_action + 1.0) * (self.high - self.low))

    def reset(self):
        return self.env.reset()

    def step(self, action):
        obs, reward, done, info = self.env.step(self.rescale_action(action))
        return obs, reward, done, info


class TimeFeature(gym.ObservationWrapper):
    """Add the time to the observation."""

    def __init__(self, env):
        super(TimeFeature, self).__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        self.observation_space = gym.spaces.Box(np.append(low, 0).astype(np.float32), np.append(high, 1).astype(np.float32))

    def observation(self, obs):
        return np.append(obs, 0.5).astype(np.float32)


class Cheap(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 10


class Half(gym.ActionWrapper):
    def action(self, action):
        return action / 2


env = Half(Cheap(TimeFeature(NormalizeActionWrapper(gym.make('Pendulum-v0')))))
assert env.unwrapped.spec.id.startswith('Pendulum')
obs = env.reset()
assert obs.shape == (4,) and env.action_space.high == [1]
obs, reward, done, info = env.step(np.array([1.]))
assert obs[3] == 0.5 and -2 < reward <= 0 and done is False or done == 0


class Forever(gym.Env):
    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def __init__(self, value=1.):
        self.value = value

    def reset(self):
        return 0

    def step(self, action):
        return int(action[1]), self.value, False, {}


register(id='Forever-v0', entry_point=Forever, max_episode_steps=5, kwargs=dict(value=2.))
env = gym.make('Forever-v0')
assert env.reset() == 0
for _ in range(5):
    obs, reward, done, info = env.step(env.action_space.sample())
assert done and info['TimeLimit.truncated'] and reward == 2.

limited = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Forever(), max_episode_steps=3)])
limited.reset()
for _ in range(3):
    obs, reward, done, info = limited.step([[0, 1]])
assert done[0] and info[0]['TimeLimit.truncated'] and info[0]['terminal_observation'] == 1

PPO2('MlpPolicy', 'Forever-v0', n_steps=16).learn(32)
