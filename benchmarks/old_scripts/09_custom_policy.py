# A policy of one's own sizes as a subclass of FeedForwardPolicy.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.policies import FeedForwardPolicy
from stable_baselines.common.vec_env import DummyVecEnv


class CustomPolicy(FeedForwardPolicy):
    def __init__(self, *args, **kwargs):
        super(CustomPolicy, self).__init__(*args, **kwargs,
                                           net_arch=[dict(pi=[128, 128, 64], vf=[32, 16])],
                                           feature_extraction="mlp")


env = DummyVecEnv([lambda: gym.make('LunarLander-v2')])
model = PPO2(CustomPolicy, env, n_steps=64, verbose=1)
model.learn(total_timesteps=128)

shapes = {name: value.shape for name, value in model.get_parameters().items()}
assert shapes['model/pi_fc0/w:0'] == (8, 128)
assert shapes['model/pi_fc2/w:0'] == (128, 64)
assert shapes['model/vf_fc1/w:0'] == (32, 16)
assert shapes['model/pi/w:0'] == (64, 4)
assert shapes['model/vf/w:0'] == (16, 1)

obs = env.reset()
expected = model.action_probability(obs)
model.save('custom')
del model
# The policy is given again
model = PPO2.load('custom', policy=CustomPolicy)
assert np.allclose(model.action_probability(obs), expected)
