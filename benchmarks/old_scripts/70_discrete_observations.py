# Observations that are numbers of a kind, not amounts.
import gym

from stable_baselines import PPO2
from stable_baselines.common.evaluation import evaluate_policy
from stable_baselines.common.vec_env import DummyVecEnv

env = gym.make('FrozenLake-v0')
assert isinstance(env.observation_space, gym.spaces.Discrete) and env.observation_space.n == 16
model = PPO2('MlpPolicy', env, n_steps=32, verbose=1)
model.learn(64)
# one input for each place
assert model.get_parameters()['model/pi_fc0/w:0'].shape == (16, 64)
obs = env.reset()
for _ in range(20):
    action, _ = model.predict(obs)
    obs, reward, done, info = env.step(action)
    if done:
        obs = env.reset()

mean, _ = evaluate_policy(model, DummyVecEnv([lambda: gym.make('FrozenLake-v0')]), n_eval_episodes=3)
assert 0 <= mean <= 1
