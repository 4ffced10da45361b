# Every argument of the constructor and of learn.
import os

import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env

env = make_vec_env('CartPole-v1', n_envs=4, seed=0)
model = PPO2('MlpPolicy', env, gamma=0.98, n_steps=16, ent_coef=0.02, learning_rate=1e-3, vf_coef=0.4,
             max_grad_norm=0.7, lam=0.9, nminibatches=8, noptepochs=3, cliprange=0.3, cliprange_vf=0.2, verbose=1,
             tensorboard_log='tb', _init_setup_model=True, policy_kwargs=dict(net_arch=[8]), full_tensorboard_log=True,
             seed=1, n_cpu_tf_sess=1)
assert (model.gamma, model.n_steps, model.ent_coef, model.vf_coef, model.max_grad_norm, model.lam) == (
    0.98, 16, 0.02, 0.4, 0.7, 0.9)
assert (model.nminibatches, model.noptepochs, model.verbose, model.n_envs, model.n_batch) == (8, 3, 1, 4, 64)
assert model.observation_space == env.observation_space and model.action_space == env.action_space
assert model.get_env() is env and model.env is env
model.learn(total_timesteps=128, callback=None, log_interval=1, tb_log_name='name', reset_num_timesteps=True)
assert os.listdir('tb') == ['name_1']
assert len(model.ep_info_buf) > 0 and set(model.ep_info_buf[0]) >= {'r', 'l', 't'}

# in the order of the signature
model = PPO2('MlpPolicy', env, 0.98, 16, 0.02, 1e-3, 0.4, 0.7, 0.9, 8, 3, 0.3, -1, 0)
assert model.noptepochs == 3 and model.cliprange == 0.3
model.learn(64, None, 1, 'PPO2', True)

# built later
model = PPO2('MlpPolicy', env, n_steps=16, _init_setup_model=False)
model.setup_model()
model.learn(64)

# no clipping of gradients
PPO2('MlpPolicy', env, n_steps=16, max_grad_norm=None).learn(64)

# minibatches must divide the rollout
try:
    PPO2('MlpPolicy', env, n_steps=5, nminibatches=3).learn(64)
except (AssertionError, ValueError) as error:
    assert 'nminibatches' in str(error)
else:
    raise AssertionError('accepted nminibatches=3 for 20 rows')
assert np.isfinite(model.get_parameters()['model/vf/w:0']).all()
