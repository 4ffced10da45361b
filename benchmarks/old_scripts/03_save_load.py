# Basic usage: training, saving, loading, evaluating.
import os

import gym

from stable_baselines import PPO2
from stable_baselines.common.evaluation import evaluate_policy

env = gym.make('LunarLander-v2')

model = PPO2('MlpPolicy', env, learning_rate=1e-3, verbose=1)
model.learn(total_timesteps=int(512))
model.save("ppo2_lunar")
before = model.get_parameters()
del model  # nothing of it is needed to load

assert os.path.exists("ppo2_lunar.zip")
model = PPO2.load("ppo2_lunar")
assert model.get_env() is None
after = model.get_parameters()
assert list(before) == list(after)
assert all((before[name] == after[name]).all() for name in before)

mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=2)
print("mean_reward: {:.2f} +/- {:.2f}".format(mean_reward, std_reward))

obs = env.reset()
for i in range(50):
    action, _states = model.predict(obs)
    obs, reward, done, info = env.step(action)
    assert obs.shape == (8,)
    if done:
        obs = env.reset()
env.close()
