# The identity environments: each kind of action.
import numpy as np
from gym import spaces

from stable_baselines import PPO2
from stable_baselines.common.identity_env import (
    IdentityEnv, IdentityEnvBox, IdentityEnvMultiBinary, IdentityEnvMultiDiscrete)
from stable_baselines.common.vec_env import DummyVecEnv

for make, action_shape in ((lambda: IdentityEnv(5), (1,)), (lambda: IdentityEnvBox(eps=0.5), (1, 1)),
                           (lambda: IdentityEnvMultiDiscrete(3), (1, 2)), (lambda: IdentityEnvMultiBinary(4), (1, 4))):
    env = DummyVecEnv([make])
    model = PPO2('MlpPolicy', env, n_steps=32, nminibatches=2, verbose=0)
    model.learn(64)
    obs = env.reset()
    action, _ = model.predict(obs)
    assert action.shape == action_shape, (action.shape, action_shape)
    obs, reward, done, info = env.step(action)
    assert reward[0] in (0, 1)
    probability = model.action_probability(obs, actions=action)
    assert probability.shape == (1, 1) and probability > 0

env = IdentityEnv(space=spaces.Discrete(3), ep_length=7)
first = env.reset()
assert env.step(first)[1] == 1 and env.num_resets == 1
done = False
n = 1
while not done:
    n, done = n + 1, env.step(0)[2]
assert n == 7

# it learns to repeat what it sees
model = PPO2('MlpPolicy', DummyVecEnv([lambda: IdentityEnv(3)] * 8), n_steps=16, learning_rate=3e-3, gamma=0.5, seed=0)
model.learn(4096)
action, _ = model.predict(np.arange(3), deterministic=True)
assert action.tolist() == [0, 1, 2]
