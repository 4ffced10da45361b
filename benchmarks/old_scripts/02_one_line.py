# Policy and environment as strings, learn() returns the model.
from stable_baselines import PPO2

model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=64).learn(200)

# only whole rollouts are collected
assert model.num_timesteps == 192
assert model.get_env().num_envs == 1
assert model.n_steps == 64 and model.nminibatches == 4 and model.noptepochs == 4
