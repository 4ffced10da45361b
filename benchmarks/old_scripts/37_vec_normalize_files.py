# Keep, copy and compare the statistics of VecNormalize.
import copy
import pickle

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.callbacks import EvalCallback
from stable_baselines.common.vec_env import (
    DummyVecEnv, VecFrameStack, VecNormalize, sync_envs_normalization, unwrap_vec_normalize)


def make():
    return DummyVecEnv([lambda: gym.make('Pendulum-v0')])


env = VecNormalize(make(), clip_obs=5.)
env.reset()
for _ in range(50):
    env.step([env.action_space.sample()])

env.save('statistics.pkl')
loaded = VecNormalize.load('statistics.pkl', make())
assert np.array_equal(loaded.obs_rms.mean, env.obs_rms.mean) and np.array_equal(loaded.obs_rms.var, env.obs_rms.var)
assert loaded.obs_rms.count == env.obs_rms.count and loaded.ret_rms.var == env.ret_rms.var
assert loaded.clip_obs == 5. and loaded.norm_reward and loaded.num_envs == 1

# pickled without its environment, which is given again
state = pickle.dumps(env)
again = pickle.loads(state)
assert again.venv is None
again.set_venv(make())
assert np.array_equal(again.obs_rms.mean, env.obs_rms.mean) and np.array_equal(again.ret, np.zeros(1))
assert again.reset().shape == (1, 3)
try:
    again.set_venv(make())
except ValueError:
    pass
else:
    raise AssertionError('took a second environment')
other = pickle.loads(state)
try:
    other.set_venv(DummyVecEnv([lambda: gym.make('CartPole-v1')]))
except ValueError:
    pass
else:
    raise AssertionError('took an environment with other observations')

# from the training environment to the one for evaluation
assert unwrap_vec_normalize(make()) is None
stacked = VecFrameStack(env, 2)
assert unwrap_vec_normalize(stacked) is env
eval_env = VecFrameStack(VecNormalize(make(), training=False, norm_reward=False), 2)
sync_envs_normalization(stacked, eval_env)
statistics = unwrap_vec_normalize(eval_env).obs_rms
assert np.array_equal(statistics.mean, env.obs_rms.mean) and statistics is not env.obs_rms

copied = copy.deepcopy(env.obs_rms)
copied.update(np.ones((1, 3)))
assert copied.count == env.obs_rms.count + 1

# EvalCallback does it by itself
env = VecNormalize(make())
eval_env = VecNormalize(make(), training=False, norm_reward=False)
PPO2('MlpPolicy', env, n_steps=50, nminibatches=1).learn(50, callback=EvalCallback(eval_env, eval_freq=50,
                                                                                   n_eval_episodes=1))
assert np.array_equal(eval_env.obs_rms.mean, env.obs_rms.mean) and np.any(eval_env.obs_rms.mean != 0)
