# Numbers that come out of NumPy.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.callbacks import CheckpointCallback, EvalCallback, EveryNTimesteps
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.evaluation import evaluate_policy

for kind in (np.int64, np.int32):
    env = make_vec_env('CartPole-v1', n_envs=kind(2), seed=kind(1))
    model = PPO2('MlpPolicy', env, n_steps=kind(16), nminibatches=kind(4), noptepochs=kind(2), gamma=np.float32(0.9),
                 learning_rate=np.float64(1e-3), cliprange=np.float32(0.1), verbose=kind(0), seed=kind(5))
    model.learn(kind(64), log_interval=kind(1), callback=[
        CheckpointCallback(kind(8), 'logs'), EveryNTimesteps(kind(20), CheckpointCallback(kind(1), 'more')),
        EvalCallback(make_vec_env('CartPole-v1', kind(1)), eval_freq=kind(16), n_eval_episodes=kind(1), verbose=kind(0))])
    assert model.num_timesteps == 64
    evaluate_policy(model, make_vec_env('CartPole-v1'), n_eval_episodes=kind(1))
model.save('numbers')
assert PPO2.load('numbers').n_steps == 16

PPO2('MlpPolicy', 'CartPole-v1', n_steps=8).learn(int(1.6e1))
