# Save a checkpoint every so many calls.
import os

from stable_baselines import PPO2
from stable_baselines.common.callbacks import CheckpointCallback
from stable_baselines.common.cmd_util import make_vec_env

checkpoint_callback = CheckpointCallback(save_freq=40, save_path='./logs/', name_prefix='rl_model')
model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=50, nminibatches=5)
model.learn(100, callback=checkpoint_callback)
assert sorted(os.listdir('logs')) == ['rl_model_40_steps.zip', 'rl_model_80_steps.zip']
assert PPO2.load('logs/rl_model_40_steps').predict([0., 1., 0.])[0].shape == (1,)

# The frequency counts calls, the name counts steps of all environments
model = PPO2('MlpPolicy', make_vec_env('Pendulum-v0', n_envs=4), n_steps=10)
model.learn(80, callback=CheckpointCallback(10, 'more', verbose=2))
assert sorted(os.listdir('more')) == ['rl_model_40_steps.zip', 'rl_model_80_steps.zip']
