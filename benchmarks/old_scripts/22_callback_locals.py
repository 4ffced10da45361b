# The variables of a rollout, seen by a callback.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.common.vec_env import DummyVecEnv


class Tagged(gym.Wrapper):
    """An environment with an info of its own."""

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        info['speed'] = float(obs[2])
        return obs, reward, done, info


class Look(BaseCallback):
    def __init__(self):
        super(Look, self).__init__()
        self.speeds = []
        self.ends = 0

    def _on_step(self):
        actions, values, rewards = self.locals['actions'], self.locals['values'], self.locals['rewards']
        assert np.shape(actions) == (2, 1) and np.shape(values) == (2,) and np.shape(rewards) == (2,)
        assert np.shape(self.locals['neglogpacs']) == (2,)
        clipped = self.locals['clipped_actions']
        assert np.all(np.abs(clipped) <= 2)
        infos = self.locals['infos']
        assert len(infos) == 2
        self.speeds += [info['speed'] for info in infos]
        self.ends += sum('terminal_observation' in info for info in infos)
        return True


model = PPO2('MlpPolicy', DummyVecEnv([lambda: Tagged(gym.make('Pendulum-v0'))] * 2), n_steps=128)
callback = Look()
model.learn(512, callback=callback)
assert len(callback.speeds) == 512 and len(set(callback.speeds)) > 100
# an episode of 200 steps in each environment
assert callback.ends == 2
