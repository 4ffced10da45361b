# predict and action_probability: one observation or several, all or given actions.
import numpy as np

from stable_baselines import PPO2

model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=16)
obs = model.get_env().reset()
several = np.repeat(obs, 3, axis=0)

# one observation gives one action, without a first axis
action, state = model.predict(obs[0])
assert np.shape(action) == () and state is None
assert model.predict(several)[0].shape == (3,)
assert model.predict(obs[0].tolist())[0] in (0, 1)

p = model.action_probability(obs[0])
assert p.shape == (2,) and np.isclose(p.sum(), 1)
all_of_them = model.action_probability(several)
assert all_of_them.shape == (3, 2)
given = model.action_probability(several, actions=[0, 1, 0])
assert given.shape == (3, 1)
assert np.allclose(given[:, 0], [p[0], p[1], p[0]], atol=1e-6)
assert np.allclose(model.action_probability(several, actions=[0, 1, 0], logp=True), np.log(given), atol=1e-5)
assert model.action_probability(obs[0], actions=1).shape == (1,)
try:
    model.action_probability(several, actions=[0, 1])
except (AssertionError, ValueError):
    pass
else:
    raise AssertionError('two actions for three observations')

model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=16)
obs = np.array([[1., 0., 0.5], [0., 1., 2.]], dtype=np.float32)
mean, std = model.action_probability(obs)
assert mean.shape == (2, 1) and np.shape(std)[-1] == 1 and np.allclose(std, 1)
action, _ = model.predict(obs, deterministic=True)
assert np.allclose(action, np.clip(mean, -2, 2), atol=1e-6)
density = model.action_probability(obs, actions=mean)
assert density.shape == (2, 1) and (density > 0).all()
assert np.allclose(np.exp(model.action_probability(obs, actions=mean, logp=True)), density)
assert (np.abs(np.stack([model.predict(obs)[0] for _ in range(200)])) <= 2).all()

# a wrong shape is an error
try:
    model.predict(np.zeros(5))
except ValueError as error:
    assert '5' in str(error)
else:
    raise AssertionError('accepted an observation of a wrong shape')
