# The logger: folders, formats, values.
import csv
import json
import os

from stable_baselines import PPO2, logger
from stable_baselines.common.callbacks import BaseCallback
from stable_baselines.common.cmd_util import make_vec_env


class LogReward(BaseCallback):
    def _on_rollout_end(self):
        self.logger.logkv('my_value', self.num_timesteps / 2)

    def _on_step(self):
        return True


logger.configure(folder='logs', format_strs=['stdout', 'log', 'csv', 'json'])
assert os.path.abspath(logger.get_dir()) == os.path.abspath('logs')

model = PPO2('MlpPolicy', make_vec_env('CartPole-v1', n_envs=1, seed=0), n_steps=32, verbose=1)
model.learn(96, callback=LogReward())

with open('logs/progress.csv') as file:
    rows = list(csv.DictReader(file))
assert [int(float(row['total_timesteps'])) for row in rows] == [32, 64, 96]
assert [int(float(row['n_updates'])) for row in rows] == [1, 2, 3]
for name in ('serial_timesteps', 'fps', 'explained_variance', 'time_elapsed', 'policy_loss', 'value_loss',
             'policy_entropy', 'approxkl', 'clipfrac', 'ep_reward_mean', 'ep_len_mean'):
    assert name in rows[0], name
with open('logs/progress.json') as file:
    assert json.loads(file.readline())['total_timesteps'] == 32
assert os.path.getsize('logs/log.txt') > 100
assert [float(row['my_value']) for row in rows] == [16, 32, 48]

# by hand
logger.configure('other', ['csv'])
logger.logkv('a', 1)
logger.logkv_mean('b', 2)
logger.logkv_mean('b', 4)
assert logger.getkvs()['a'] == 1
logger.dumpkvs()
logger.record_tabular('a', 5)
logger.record_tabular('b', 6)
logger.dump_tabular()
logger.info('said')
logger.warn('said')
with open('other/progress.csv') as file:
    rows = list(csv.DictReader(file))
assert [(float(row['a']), float(row['b'])) for row in rows] == [(1, 3), (5, 6)]
logger.reset()
