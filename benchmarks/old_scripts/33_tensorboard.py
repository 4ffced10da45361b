# TensorBoard: folders, names, and training that goes on.
import os

from stable_baselines import PPO2

log = "./ppo2_cartpole_tensorboard/"


def files(name):
    return os.listdir(os.path.join(log, name))


model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, verbose=1, tensorboard_log=log)
model.learn(total_timesteps=64)
assert os.listdir(log) == ['PPO2_1'] and files('PPO2_1')
model.learn(total_timesteps=64, tb_log_name="first_run")
# no new curve with reset_num_timesteps=False, but a name of its own
model.learn(total_timesteps=64, tb_log_name="second_run", reset_num_timesteps=False)
model.learn(total_timesteps=64, tb_log_name="first_run")
assert sorted(os.listdir(log)) == ['PPO2_1', 'first_run_1', 'first_run_2', 'second_run_0'] or \
    sorted(os.listdir(log)) == ['PPO2_1', 'first_run_1', 'first_run_2', 'second_run_1']

# A fresh model begins a new curve, whatever reset_num_timesteps says
before = files('PPO2_1')
fresh = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, tensorboard_log=log)
fresh.learn(total_timesteps=32, reset_num_timesteps=False)
assert 'PPO2_2' in os.listdir(log) and files('PPO2_1') == before
# and goes on in it
fresh.learn(total_timesteps=32, reset_num_timesteps=False)
assert 'PPO2_3' not in os.listdir(log) and fresh.num_timesteps == 64

# the folder is not saved with the model
fresh.save('fresh')
loaded = PPO2.load('fresh', env=fresh.get_env(), tensorboard_log="./other/")
loaded.learn(32)
assert os.listdir('other') == ['PPO2_1']
assert PPO2.load('fresh').tensorboard_log is None
