# Save the model whenever the mean training reward was better; plot the training.
import os

import gym
import matplotlib.pyplot as plt
import numpy as np

from stable_baselines import PPO2, results_plotter
from stable_baselines.bench import Monitor
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.results_plotter import load_results, ts2xy


class SaveOnBestTrainingReward(BaseCallback):
    def __init__(self, check_freq, log_dir, verbose=1):
        super(SaveOnBestTrainingReward, self).__init__(verbose)
        self.check_freq = check_freq
        self.log_dir = log_dir
        self.save_path = os.path.join(log_dir, 'best_model')
        self.best_mean_reward = -np.inf

    def _init_callback(self):
        os.makedirs(self.log_dir, exist_ok=True)

    def _on_step(self):
        if self.n_calls % self.check_freq == 0:
            x, y = ts2xy(load_results(self.log_dir), 'timesteps')
            if len(x) > 0:
                mean_reward = np.mean(y[-100:])
                if self.verbose > 0:
                    print("Timesteps: {}, best {:.2f}, now {:.2f}".format(
                        self.num_timesteps, self.best_mean_reward, mean_reward))
                if mean_reward > self.best_mean_reward:
                    self.best_mean_reward = mean_reward
                    self.model.save(self.save_path)
        return True


log_dir = "tmp/"
os.makedirs(log_dir, exist_ok=True)

env = gym.make('CartPole-v1')
env = Monitor(env, log_dir, allow_early_resets=True)

model = PPO2('MlpPolicy', env, n_steps=64, verbose=0)
callback = SaveOnBestTrainingReward(check_freq=100, log_dir=log_dir)
time_steps = 600
model.learn(total_timesteps=int(time_steps), callback=callback)

assert os.path.exists("tmp/best_model.zip")
assert callback.best_mean_reward >= 1
results = load_results(log_dir)
assert len(results) == len(env.get_episode_rewards())
assert sum(results.l.values) <= env.get_total_steps()

results_plotter.plot_results([log_dir], time_steps, results_plotter.X_TIMESTEPS, "PPO2 CartPole")
plt.savefig("training.png")
assert os.path.getsize("training.png") > 1000
