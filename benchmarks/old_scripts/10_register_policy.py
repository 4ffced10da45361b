# A custom policy that has a name.
from stable_baselines import PPO2
from stable_baselines.common.policies import FeedForwardPolicy, MlpPolicy, register_policy


class CustomPolicy(FeedForwardPolicy):
    def __init__(self, *args, **kwargs):
        super(CustomPolicy, self).__init__(*args, **kwargs, net_arch=[24, dict(pi=[12], vf=[6])],
                                           feature_extraction="mlp")


register_policy('CustomPolicy', CustomPolicy)

model = PPO2(policy='CustomPolicy', env='CartPole-v1', n_steps=64, verbose=1).learn(total_timesteps=128)
parameters = model.get_parameters()
assert parameters['model/shared_fc0/w:0'].shape == (4, 24)
assert parameters['model/pi_fc0/w:0'].shape == (24, 12)
assert parameters['model/vf_fc0/w:0'].shape == (24, 6)

# A name can be given once
try:
    register_policy('CustomPolicy', MlpPolicy)
except ValueError:
    pass
else:
    raise AssertionError('registered a name twice')

# Names that do not exist are refused
try:
    PPO2('NoSuchPolicy', 'CartPole-v1')
except ValueError:
    pass
else:
    raise AssertionError('accepted an unknown policy')
