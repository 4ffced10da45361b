# The state of a recurrent policy: the cell first, then what the cells put out.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env

env = make_vec_env('CartPole-v1', n_envs=2, seed=0)
model = PPO2('MlpLstmPolicy', env, n_steps=8, nminibatches=1, policy_kwargs=dict(n_lstm=5, layers=[4]), seed=0)
model.learn(16)
p = {name[len('model/'):-len(':0')]: value for name, value in model.get_parameters().items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(obs, state, mask):
    """The network in NumPy."""
    cell, output = np.split(state * (1 - np.array(mask, dtype=float)[:, None]), 2, axis=1)
    x = np.tanh(obs @ p['pi_fc0/w'] + p['pi_fc0/b'])
    gates = x @ p['lstm1/wx'] + output @ p['lstm1/wh'] + p['lstm1/b']
    into, forget, out, candidate = np.split(gates, 4, axis=1)
    cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(candidate)
    output = sigmoid(out) * np.tanh(cell)
    return np.concatenate([cell, output], axis=1), output @ p['vf/w'] + p['vf/b']


obs, done, state, expected = env.reset(), [False, False], None, np.zeros((2, 10))
for _ in range(40):
    value = model.value(obs, expected.astype(np.float32), done)
    action, state = model.predict(obs, state=state, mask=done)
    expected, wanted = step(obs, expected, done)
    assert np.allclose(state, expected, atol=1e-5)
    assert np.allclose(value, wanted[:, 0], atol=1e-5)
    obs, _, done, _ = env.step(action)

# the runner keeps it between rollouts, and starts from initial_state
assert model.runner.states.shape == (2, 10) and np.abs(model.runner.states).max() > 0
_, values, states, _ = model.step(model.runner.obs, model.runner.states, model.runner.dones)
expected, wanted = step(model.runner.obs, model.runner.states, model.runner.dones)
assert np.allclose(states, expected, atol=1e-5) and np.allclose(values, wanted[:, 0], atol=1e-5)
model.set_env(make_vec_env('CartPole-v1', n_envs=2))
assert np.array_equal(model.runner.states, model.initial_state)
