# What VecNormalize computes, compared with NumPy.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.running_mean_std import RunningMeanStd
from stable_baselines.common.vec_env import VecNormalize

env = VecNormalize(make_vec_env('Pendulum-v0', n_envs=3, seed=0), clip_obs=2.5, clip_reward=1.5, gamma=0.9,
                   epsilon=1e-6)
assert (env.clip_obs, env.clip_reward, env.gamma, env.epsilon) == (2.5, 1.5, 0.9, 1e-6)
assert env.training and env.norm_obs and env.norm_reward
assert env.obs_rms.mean.shape == (3,) and env.obs_rms.var.shape == (3,) and np.shape(env.ret_rms.mean) == ()

obs_rms, ret_rms = RunningMeanStd(shape=(3,)), RunningMeanStd(shape=())


def normalized(x, rms, clip):
    return np.clip((x - rms.mean) / np.sqrt(rms.var + 1e-6), -clip, clip)


obs = env.reset()
# a reset normalizes, and leaves the statistics of observations alone
seen = []
assert env.obs_rms.count == obs_rms.count and np.array_equal(env.obs_rms.mean, np.zeros(3))
assert np.allclose(obs, normalized(env.get_original_obs(), obs_rms, 2.5), atol=1e-5)
assert np.array_equal(env.ret, np.zeros(3))
# the returns start at zero, and that counts
returns = np.zeros(3)
ret_rms.update(returns)
for _ in range(230):
    obs, rewards, dones, infos = env.step([env.action_space.sample() for _ in range(3)])
    original = env.get_original_obs()
    seen.append(original)
    obs_rms.update(original)
    assert np.allclose(obs, normalized(original, obs_rms, 2.5), atol=1e-4)
    returns = returns * 0.9 + env.get_original_reward()
    ret_rms.update(returns)
    expected = np.clip(env.get_original_reward() / np.sqrt(ret_rms.var + 1e-6), -1.5, 1.5)
    assert np.allclose(rewards, expected, atol=1e-4)
    returns[dones] = 0
    assert np.allclose(env.ret, returns, rtol=1e-4, atol=1e-4)
assert np.allclose(env.obs_rms.mean, np.concatenate(seen).mean(axis=0), atol=1e-3)
assert np.allclose(env.obs_rms.var, np.concatenate(seen).var(axis=0), atol=1e-2)

# given numbers, without learning from them
count = env.obs_rms.count
assert np.allclose(env.normalize_obs(original), normalized(original, env.obs_rms, 2.5), atol=1e-5)
assert env.normalize_reward(np.array([-1., 1.])).shape == (2,)
env.training = False
env.reset()
assert env.obs_rms.count == count and np.array_equal(env.ret, np.zeros(3))
env.training = True

model = PPO2('MlpPolicy', env, n_steps=32, nminibatches=1)
assert model.get_vec_normalize_env() is env
model.learn(96)
assert env.obs_rms.count > count
assert PPO2('MlpPolicy', 'Pendulum-v0').get_vec_normalize_env() is None
