# The classes that policies are made of.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.policies import (
    ActorCriticPolicy, BasePolicy, CnnPolicy, FeedForwardPolicy, LstmPolicy, MlpLstmPolicy, MlpPolicy,
    RecurrentActorCriticPolicy, get_policy_from_name, nature_cnn, register_policy)

for policy in (FeedForwardPolicy, LstmPolicy, MlpPolicy, MlpLstmPolicy, CnnPolicy):
    assert issubclass(policy, ActorCriticPolicy) and issubclass(policy, BasePolicy)
assert issubclass(MlpLstmPolicy, RecurrentActorCriticPolicy) and not issubclass(MlpPolicy, RecurrentActorCriticPolicy)
assert BasePolicy.recurrent is False and RecurrentActorCriticPolicy.recurrent is True


class Small(FeedForwardPolicy):
    """It passes everything on, the convolutions too."""

    def __init__(self, sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse=False, **_kwargs):
        super(Small, self).__init__(sess, ob_space, ac_space, n_env, n_steps, n_batch, reuse, layers=[12],
                                    cnn_extractor=nature_cnn, feature_extraction='mlp', **_kwargs)
        self.made_for = (ob_space, ac_space)
        assert isinstance(ac_space, gym.spaces.Discrete)


register_policy('Small', Small)
assert get_policy_from_name(ActorCriticPolicy, 'Small') is Small
assert get_policy_from_name(ActorCriticPolicy, 'MlpLstmPolicy') is MlpLstmPolicy
for base, name in ((RecurrentActorCriticPolicy, 'Small'), (ActorCriticPolicy, 'NoSuchPolicy')):
    try:
        get_policy_from_name(base, name)
    except ValueError:
        pass
    else:
        raise AssertionError(name)

model = PPO2('Small', 'CartPole-v1', n_steps=32).learn(32)
parameters = model.get_parameters()
assert parameters['model/pi_fc0/w:0'].shape == (4, 12) and parameters['model/vf/w:0'].shape == (12, 1)
# hidden layers begin orthogonal, with a gain of the square root of two; the policy's last one is small
fresh = PPO2('Small', 'CartPole-v1', seed=0).get_parameters()
assert np.allclose(fresh['model/pi_fc0/w:0'] @ fresh['model/pi_fc0/w:0'].T, 2 * np.eye(4), atol=1e-5)
assert np.allclose(fresh['model/pi/w:0'].T @ fresh['model/pi/w:0'], 1e-4 * np.eye(2), atol=1e-8)
assert not fresh['model/pi_fc0/b:0'].any()
