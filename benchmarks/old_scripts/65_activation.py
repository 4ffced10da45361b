# The activation function through TensorFlow's names.
import numpy as np
import tensorflow as tf

from stable_baselines import PPO2

# two layers of size 32 with relu, no shared layer
policy_kwargs = dict(act_fun=tf.nn.relu, net_arch=[32, 32])
model = PPO2("MlpPolicy", "CartPole-v1", policy_kwargs=policy_kwargs, n_steps=32, verbose=1)
model.learn(64)

p = model.get_parameters()
obs = np.array([[0.1, -2., 0.05, 3.]])
hidden = obs
for layer in ('shared_fc0', 'shared_fc1'):
    hidden = np.maximum(hidden @ p['model/%s/w:0' % layer] + p['model/%s/b:0' % layer], 0)
logits = hidden @ p['model/pi/w:0'] + p['model/pi/b:0']
expected = np.exp(logits) / np.exp(logits).sum()
assert np.allclose(model.action_probability(obs), expected, atol=1e-5)

model.save('relu')
loaded = PPO2.load('relu', policy_kwargs=policy_kwargs)
assert np.allclose(loaded.action_probability(obs), expected, atol=1e-5)
assert PPO2("MlpPolicy", "CartPole-v1", policy_kwargs=dict(act_fun=tf.tanh)).predict(obs)[0].shape == (1,)
