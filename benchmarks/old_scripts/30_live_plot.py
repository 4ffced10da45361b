# A callback that plots the learning curve of several environments.
import os

import matplotlib.pyplot as plt
import numpy as np

from stable_baselines import PPO2
from stable_baselines.bench.monitor import load_results
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.results_plotter import ts2xy


class PlottingCallback(BaseCallback):
    def __init__(self, log_dir, verbose=1):
        super(PlottingCallback, self).__init__(verbose)
        self.log_dir = log_dir
        self._plot = None

    def _on_rollout_end(self):
        x, y = ts2xy(load_results(self.log_dir), 'timesteps')
        if len(x) == 0:
            return
        if self._plot is None:
            plt.ion()
            figure = plt.figure(figsize=(6, 3))
            ax = figure.add_subplot(111)
            line, = ax.plot(x, y)
            self._plot = (line, ax, figure)
        else:
            line, ax, figure = self._plot
            line.set_data(x, y)
            ax.relim()
            ax.set_title("Steps: {}".format(self.num_timesteps))
            figure.canvas.draw()

    def _on_step(self):
        return True


log_dir = "tmp/gym/"
os.makedirs(log_dir, exist_ok=True)
env = make_vec_env('CartPole-v1', n_envs=4, monitor_dir=log_dir, seed=0)
callback = PlottingCallback(log_dir)
model = PPO2('MlpPolicy', env, n_steps=64)
model.learn(1024, callback=callback)
line = callback._plot[0]
assert len(line.get_xdata()) > 8 and np.all(np.diff(line.get_xdata()) > 0)
assert np.min(line.get_ydata()) >= 1
