# Several callbacks, in a list and in a CallbackList.
import os

import gym

from stable_baselines import PPO2
from stable_baselines.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback


class Count(BaseCallback):
    def _on_step(self):
        return True


class StopAt(BaseCallback):
    def __init__(self, limit):
        super(StopAt, self).__init__()
        self.limit = limit

    def _on_step(self):
        return self.n_calls < self.limit


model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=32)
checkpoint = CheckpointCallback(save_freq=20, save_path='./logs/')
evaluation = EvalCallback(gym.make('Pendulum-v0'), eval_freq=30, n_eval_episodes=1, log_path='./logs/results', verbose=0)
model.learn(64, callback=CallbackList([checkpoint, evaluation]))
assert sorted(os.listdir('logs')) == ['results', 'rl_model_20_steps.zip', 'rl_model_40_steps.zip',
                                      'rl_model_60_steps.zip']

# a plain list, with a list inside; all are called even when one wants to stop
first, last = Count(), Count()
model.learn(640, callback=[first, CallbackList([StopAt(10)]), last])
assert first.n_calls == last.n_calls == 10 and model.num_timesteps == 10
assert first.num_timesteps == 10

# functions and objects do not mix in a CallbackList of something else
try:
    CallbackList(first)
except (AssertionError, TypeError, ValueError):
    pass
else:
    raise AssertionError('accepted a callback in place of a list')
