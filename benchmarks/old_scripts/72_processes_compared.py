# The same training with one process and with several.
import time

import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.evaluation import evaluate_policy
from stable_baselines.common.vec_env import DummyVecEnv, SubprocVecEnv

if __name__ == '__main__':
    eval_env = make_vec_env('CartPole-v1', n_envs=1, seed=3)
    weights = []
    for vec_env_cls, kwargs in ((DummyVecEnv, None), (SubprocVecEnv, dict(start_method='forkserver'))):
        env = make_vec_env('CartPole-v1', n_envs=3, seed=0, vec_env_cls=vec_env_cls, vec_env_kwargs=kwargs)
        model = PPO2('MlpPolicy', env, n_steps=32, seed=0)
        start = time.time()
        model.learn(total_timesteps=192)
        print('%s: %.2f s' % (vec_env_cls.__name__, time.time() - start))
        mean, _ = evaluate_policy(model, eval_env, n_eval_episodes=2)
        assert mean >= 1
        weights.append(model.get_parameters()['model/pi_fc0/w:0'])
        env.close()
    # processes change the speed, not the numbers
    assert np.allclose(weights[0], weights[1], atol=1e-6)
