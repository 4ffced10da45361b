# Each of the built-in policies, by class and by name.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.policies import (
    ActorCriticPolicy, CnnLnLstmPolicy, CnnLstmPolicy, CnnPolicy, FeedForwardPolicy, LstmPolicy, MlpLnLstmPolicy,
    MlpLstmPolicy, MlpPolicy)


class Picture(gym.Env):
    """Dark or bright pictures."""

    observation_space = gym.spaces.Box(0, 255, shape=(36, 36, 1), dtype=np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self):
        self.steps = 0
        return np.zeros((36, 36, 1), dtype=np.uint8)

    def step(self, action):
        self.steps += 1
        return np.full((36, 36, 1), 255 * (self.steps % 2), dtype=np.uint8), float(action), self.steps > 7, {}


assert issubclass(MlpPolicy, FeedForwardPolicy) and issubclass(CnnPolicy, FeedForwardPolicy)
assert issubclass(MlpLstmPolicy, LstmPolicy) and issubclass(CnnLnLstmPolicy, LstmPolicy)
assert issubclass(LstmPolicy, ActorCriticPolicy)
assert MlpLstmPolicy.recurrent and not MlpPolicy.recurrent

for policy in (MlpPolicy, MlpLstmPolicy, MlpLnLstmPolicy, CnnPolicy, CnnLstmPolicy, CnnLnLstmPolicy):
    for name in (policy, policy.__name__):
        env = 'CartPole-v1' if policy.__name__.startswith('Mlp') else Picture()
        kwargs = dict(n_lstm=8) if policy.recurrent else None
        model = PPO2(name, env, n_steps=8, nminibatches=1, noptepochs=1, policy_kwargs=kwargs)
        if name is policy:
            model.learn(8)
        obs = model.get_env().reset()
        action, state = model.predict(obs)
        assert action.shape == (1,)
        assert (state is None) == (not policy.recurrent)
