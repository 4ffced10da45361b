# Sizes of the networks through policy_kwargs.
from stable_baselines import PPO2


def shapes(model):
    return {name[len('model/'):-len(':0')]: value.shape for name, value in model.get_parameters().items()}


# two layers of 64 for each by default
model = PPO2('MlpPolicy', 'CartPole-v1')
found = shapes(model)
assert found['pi_fc0/w'] == (4, 64) and found['pi_fc1/w'] == (64, 64) and found['pi/w'] == (64, 2)
assert found['vf_fc0/b'] == (64,) and found['vf/b'] == (1,)

# shared layers only
found = shapes(PPO2('MlpPolicy', 'CartPole-v1', policy_kwargs=dict(net_arch=[55, 33])))
assert found['shared_fc0/w'] == (4, 55) and found['shared_fc1/w'] == (55, 33) and found['pi/w'] == (33, 2)
assert not any(name.startswith(('pi_fc', 'vf_fc')) for name in found)

# one shared layer, then two for the value
found = shapes(PPO2('MlpPolicy', 'CartPole-v1', policy_kwargs=dict(net_arch=[16, dict(vf=[8, 8])])))
assert found['shared_fc0/w'] == (4, 16) and found['vf_fc1/w'] == (8, 8) and found['pi/w'] == (16, 2)

# no hidden layer for the policy
found = shapes(PPO2('MlpPolicy', 'CartPole-v1', policy_kwargs=dict(net_arch=[dict(vf=[10])])))
assert found['pi/w'] == (4, 2) and found['vf_fc0/w'] == (4, 10)

# the older form
found = shapes(PPO2('MlpPolicy', 'CartPole-v1', policy_kwargs=dict(layers=[20, 10])))
assert found['pi_fc0/w'] == (4, 20) and found['vf_fc1/w'] == (20, 10)

# the arguments are kept with the model
model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, policy_kwargs=dict(net_arch=[dict(pi=[7], vf=[5])])).learn(64)
model.save('small')
loaded = PPO2.load('small')
assert loaded.policy_kwargs == dict(net_arch=[dict(pi=[7], vf=[5])])
assert shapes(loaded) == shapes(model)

# a wrong keyword is an error
try:
    PPO2('MlpPolicy', 'CartPole-v1', policy_kwargs=dict(net_architecture=[3]))
except (TypeError, ValueError):
    pass
else:
    raise AssertionError('accepted an unknown keyword')
