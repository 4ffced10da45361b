# Stop as soon as the agent is good enough.
import gym

from stable_baselines import PPO2
from stable_baselines.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold

eval_env = gym.make('Pendulum-v0')
callback_on_best = StopTrainingOnRewardThreshold(reward_threshold=-2000, verbose=1)
eval_callback = EvalCallback(eval_env, callback_on_new_best=callback_on_best, eval_freq=40, n_eval_episodes=1, verbose=1)
assert callback_on_best.parent is eval_callback

model = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=64, verbose=1)
# An endless number of steps, but the first evaluation is enough
model.learn(int(1e10), callback=eval_callback)
assert model.num_timesteps == 40
assert eval_callback.best_mean_reward >= -2000
