# Evaluate while training, keep the best model and the results.
import os

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.callbacks import EvalCallback

eval_env = gym.make('CartPole-v1')
eval_callback = EvalCallback(eval_env, best_model_save_path='./logs/best', log_path='./logs/results', eval_freq=50,
                             n_eval_episodes=3, deterministic=True, render=False)

model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=50, nminibatches=5)
model.learn(150, callback=eval_callback)

assert os.path.exists('logs/best/best_model.zip')
evaluations = np.load('logs/results/evaluations.npz')
assert evaluations['timesteps'].tolist() == [50, 100, 150]
assert evaluations['results'].shape == (3, 3) and evaluations['ep_lengths'].shape == (3, 3)
# each step of CartPole gives 1
assert np.array_equal(evaluations['results'].ravel(), evaluations['ep_lengths'].ravel())
assert eval_callback.best_mean_reward == evaluations['results'].mean(axis=1).max()
assert eval_callback.last_mean_reward == evaluations['results'][-1].mean()
assert eval_callback.evaluations_timesteps == [50, 100, 150]
PPO2.load('logs/best/best_model', env=gym.make('CartPole-v1')).learn(50)
