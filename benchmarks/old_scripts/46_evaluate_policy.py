# evaluate_policy with plain and vectorized environments, callbacks and thresholds.
import gym

from stable_baselines import PPO2
from stable_baselines.bench import Monitor
from stable_baselines.common.evaluation import evaluate_policy
from stable_baselines.common.vec_env import DummyVecEnv

model = PPO2('MlpPolicy', 'CartPole-v1', n_steps=32, seed=0)

for env in (gym.make('CartPole-v1'), Monitor(gym.make('CartPole-v1'), None), DummyVecEnv([lambda: gym.make('CartPole-v1')]),
            model.get_env()):
    mean, std = evaluate_policy(model, env, n_eval_episodes=3)
    assert mean >= 1 and std >= 0
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=3, return_episode_rewards=True, deterministic=False)
    assert len(rewards) == 3 and [int(reward) for reward in rewards] == lengths

try:
    evaluate_policy(model, gym.make('CartPole-v1'), n_eval_episodes=1, reward_threshold=1000)
except AssertionError:
    pass
else:
    raise AssertionError('a mean reward above 1000')

steps = []


def look(_locals, _globals):
    steps.append(_locals['reward'])
    assert {'obs', 'action', 'done', 'episode_reward', 'model', 'env'} <= set(_locals)


rewards, lengths = evaluate_policy(model, gym.make('CartPole-v1'), 2, callback=look, return_episode_rewards=True)
assert len(steps) == sum(lengths)

# more than one environment is refused
try:
    evaluate_policy(model, DummyVecEnv([lambda: gym.make('CartPole-v1')] * 2))
except (AssertionError, ValueError):
    pass
else:
    raise AssertionError('accepted two environments')

# a recurrent policy
lstm = PPO2('MlpLstmPolicy', 'CartPole-v1', nminibatches=1, n_steps=8, policy_kwargs=dict(n_lstm=8))
assert evaluate_policy(lstm, lstm.get_env(), n_eval_episodes=2)[0] >= 1
