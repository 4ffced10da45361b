# What a mask does: it starts an episode with an empty state.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.policies import MlpLstmPolicy

env = make_vec_env('CartPole-v1', n_envs=4, seed=1)
model = PPO2(MlpLstmPolicy, env, n_steps=16, nminibatches=2, policy_kwargs=dict(n_lstm=32), seed=2)
model.learn(128)

obs = env.reset()
assert np.array_equal(model.initial_state, np.zeros((4, 64)))
_, first = model.predict(obs, deterministic=True)
assert first.shape == (4, 64)
_, second = model.predict(obs, state=first, mask=[False] * 4, deterministic=True)
assert not np.allclose(first, second)
# environments 0 and 2 start again
_, third = model.predict(obs, state=first, mask=[True, False, True, False], deterministic=True)
assert np.allclose(third[[0, 2]], first[[0, 2]], atol=1e-6)
assert np.allclose(third[[1, 3]], second[[1, 3]], atol=1e-6)

# without a state the first one is meant, and no mask means no new episode
_, again = model.predict(obs, state=None, mask=None, deterministic=True)
assert np.allclose(again, first, atol=1e-6)

# a state goes with action_probability, too
p = model.action_probability(obs, state=first, mask=[False] * 4)
assert p.shape == (4, 2) and np.allclose(p.sum(axis=1), 1, atol=1e-5)

# eight environments cannot be shared by three minibatches
try:
    PPO2(MlpLstmPolicy, make_vec_env('CartPole-v1', n_envs=8), nminibatches=3, n_steps=3)
except (AssertionError, ValueError):
    pass
else:
    raise AssertionError('accepted nminibatches=3')
