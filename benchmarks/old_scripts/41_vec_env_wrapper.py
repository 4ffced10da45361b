# A wrapper around vectorized environments needs reset and step_wait.
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.cmd_util import make_vec_env
from stable_baselines.common.evaluation import evaluate_policy
from stable_baselines.common.vec_env import VecEnvWrapper, VecNormalize


class VecMonitorPlot(VecEnvWrapper):
    """Sum the rewards of each environment, and scale them."""

    def __init__(self, venv, scale):
        VecEnvWrapper.__init__(self, venv)
        self.scale = scale
        self.finished = []

    def step_wait(self):
        obs, rews, news, infos = self.venv.step_wait()
        self.eprets = self.eprets + rews
        for i in range(len(news)):
            if news[i]:
                self.finished.append(self.eprets[i])
                self.eprets[i] = 0
        return obs, self.scale * rews, news, infos

    def reset(self):
        self.eprets = np.zeros(self.num_envs, 'f')
        return self.venv.reset()


class VecLists(VecEnvWrapper):
    """Return what environments are allowed to return: lists and Python's numbers."""

    def step_wait(self):
        obs, rews, news, infos = self.venv.step_wait()
        return obs.astype(np.float64), [float(r) for r in rews], [bool(n) for n in news], infos

    def reset(self):
        return self.venv.reset().astype(np.float64)


env = VecMonitorPlot(make_vec_env('CartPole-v1', n_envs=2, seed=0), 0.1)
model = PPO2('MlpPolicy', env, n_steps=64, verbose=0)
model.learn(256)
assert len(env.finished) > 2 and min(env.finished) >= 1
# the wrapper's rewards are seen, the monitor inside of it has the whole ones
assert [episode['r'] for episode in model.ep_info_buf] == env.finished

model = PPO2('MlpPolicy', VecNormalize(VecLists(make_vec_env('CartPole-v1', n_envs=2))), n_steps=64)
model.learn(128)
mean, std = evaluate_policy(model, VecLists(make_vec_env('CartPole-v1')), n_eval_episodes=2)
assert mean >= 1
