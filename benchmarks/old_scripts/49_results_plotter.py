# Read monitor files and plot them.
import os
import sys

import matplotlib.pyplot as plt
import numpy as np

from stable_baselines import PPO2, results_plotter
from stable_baselines.bench.monitor import LoadMonitorResultsError, get_monitor_files, load_results
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.results_plotter import (
    EPISODES_WINDOW, POSSIBLE_X_AXES, X_EPISODES, X_TIMESTEPS, X_WALLTIME, plot_curves, plot_results, rolling_window,
    ts2xy, window_func)

env = make_vec_env('CartPole-v1', n_envs=2, seed=0, monitor_dir='logs')
PPO2('MlpPolicy', env, n_steps=128).learn(512)
assert sorted(os.path.basename(name) for name in get_monitor_files('logs')) == ['0.monitor.csv', '1.monitor.csv']

table = load_results('logs')
assert len(table) > 4
x, y = ts2xy(table, X_TIMESTEPS)
assert np.array_equal(x, np.cumsum(table.l.values)) and np.array_equal(y, table['r'].values)
assert np.array_equal(ts2xy(table, X_EPISODES)[0], np.arange(len(table)))
hours = ts2xy(table, X_WALLTIME)[0]
assert (np.diff(hours) >= 0).all() and 0 <= hours[-1] < 1
try:
    ts2xy(table, 'years')
except NotImplementedError:
    pass
else:
    raise AssertionError('accepted an unknown axis')

assert rolling_window(np.arange(5), 3).tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
xs, means = window_func(np.arange(5), np.arange(5.), 3, np.mean)
assert xs.tolist() == [2, 3, 4] and means.tolist() == [1, 2, 3]

os.makedirs('nothing')
try:
    load_results('nothing')
except LoadMonitorResultsError:
    pass
else:
    raise AssertionError('read results where there are none')

plot_results(['logs'], 1e5, results_plotter.X_TIMESTEPS, 'CartPole')
plt.savefig('results.png')
plot_curves([(x, y)], X_TIMESTEPS, 'CartPole')
plt.savefig('curves.png')
assert min(os.path.getsize('results.png'), os.path.getsize('curves.png')) > 1000

# as a command
assert POSSIBLE_X_AXES == [X_TIMESTEPS, X_EPISODES, X_WALLTIME] and EPISODES_WINDOW == 100
sys.argv = ['results_plotter', '--dirs', 'logs', '--xaxis', X_EPISODES, '--task_name', 'CartPole']
results_plotter.main()
assert plt.gca().get_xlabel() == X_EPISODES and plt.gca().get_title() == 'CartPole'
