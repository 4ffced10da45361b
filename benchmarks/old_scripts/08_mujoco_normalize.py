# MuJoCo: normalize observations, save the statistics with the model.
import os

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.policies import MlpPolicy
from stable_baselines.common.vec_env import DummyVecEnv, VecNormalize

env = DummyVecEnv([lambda: gym.make("Reacher-v2")])
env = VecNormalize(env, norm_obs=True, norm_reward=False, clip_obs=10.)

model = PPO2(MlpPolicy, env)
model.learn(total_timesteps=256)

log_dir = "tmp/"
os.makedirs(log_dir)
model.save(log_dir + "ppo_reacher")
stats_path = os.path.join(log_dir, "vec_normalize.pkl")
env.save(stats_path)
mean = env.obs_rms.mean
assert mean.shape == env.observation_space.shape and np.any(mean != 0)
count = env.obs_rms.count

del model, env
env = VecNormalize.load(stats_path, DummyVecEnv([lambda: gym.make("Reacher-v2")]))
# neither update the statistics while testing nor scale rewards
env.training = False
env.norm_reward = False
assert np.array_equal(env.obs_rms.mean, mean)

model = PPO2.load(log_dir + "ppo_reacher", env=env)
obs = env.reset()
for _ in range(60):
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, done, info = env.step(action)
    assert np.abs(obs).max() <= 10
assert env.obs_rms.count == count
