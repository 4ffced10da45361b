# Read and write the parameters of a model.
from collections import OrderedDict

import gym
import numpy as np

from stable_baselines import PPO2

model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=32, policy_kwargs=dict(net_arch=[dict(pi=[16], vf=[16])]))
parameters = model.get_parameters()
assert isinstance(parameters, (dict, OrderedDict))
assert {'model/pi_fc0/w:0', 'model/pi_fc0/b:0', 'model/vf_fc0/w:0', 'model/vf_fc0/b:0', 'model/vf/w:0', 'model/vf/b:0',
        'model/pi/w:0', 'model/pi/b:0', 'model/pi/logstd:0'} <= set(parameters)
assert parameters['model/pi/logstd:0'].shape == (1, 1)
assert all(isinstance(value, np.ndarray) for value in parameters.values())
assert len(model.get_parameter_list()) == len(parameters)

# The network in NumPy
env = gym.make('Pendulum-v0')
obs = np.stack([env.reset() for _ in range(5)])
hidden = np.tanh(obs @ parameters['model/pi_fc0/w:0'] + parameters['model/pi_fc0/b:0'])
mean = hidden @ parameters['model/pi/w:0'] + parameters['model/pi/b:0']
action, _ = model.predict(obs, deterministic=True)
assert np.allclose(action, np.clip(mean, -2, 2), atol=1e-4)

# Changed by hand: the mean is now 1.5 everywhere
parameters['model/pi/w:0'] = np.zeros_like(parameters['model/pi/w:0'])
parameters['model/pi/b:0'] = np.full_like(parameters['model/pi/b:0'], 1.5)
model.load_parameters(parameters)
action, _ = model.predict(obs, deterministic=True)
assert np.allclose(action, 1.5)

# Training changes them; a dictionary brings the old ones back
model.learn(64)
trained = model.get_parameters()
assert not np.allclose(trained['model/pi_fc0/w:0'], parameters['model/pi_fc0/w:0'])
model.load_parameters(parameters, exact_match=True)
for name, value in model.get_parameters().items():
    assert np.array_equal(value, parameters[name]), name

# From a file
model.save('pendulum')
model.load_parameters(trained)
model.load_parameters('pendulum')
assert np.array_equal(model.get_parameters()['model/vf/w:0'], parameters['model/vf/w:0'])
