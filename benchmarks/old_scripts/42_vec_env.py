# A vectorized environment of one's own, without any single environment.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.vec_env import VecEnv, VecNormalize


class Walks(VecEnv):
    """Many walks on a line, moved by one array operation."""

    def __init__(self, n):
        VecEnv.__init__(self, n, gym.spaces.Box(-5, 5, shape=(1,), dtype=np.float32), gym.spaces.Discrete(2))
        self.x = np.zeros(n, dtype=np.float32)
        self.t = np.zeros(n, dtype=int)

    def reset(self):
        self.x[:] = 0
        self.t[:] = 0
        return self.x[:, None].copy()

    def step_async(self, actions):
        self.actions = np.asarray(actions)

    def step_wait(self):
        self.x += 2 * self.actions - 1
        self.t += 1
        late = self.t >= 20
        dones = (np.abs(self.x) >= 5) | late
        rewards = (self.x >= 5).astype(float)
        infos = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            infos[i]['terminal_observation'] = self.x[i:i + 1].copy()
            infos[i]['episode'] = {'r': rewards[i], 'l': int(self.t[i]), 't': 0.}
            if abs(self.x[i]) < 5:
                infos[i]['TimeLimit.truncated'] = True
        self.x[dones] = 0
        self.t[dones] = 0
        return self.x[:, None].copy(), rewards, dones, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name, value, indices=None):
        setattr(self, attr_name, value)

    def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
        return [None for _ in self._get_indices(indices)]

    def seed(self, seed=None):
        return [seed] * self.num_envs


env = Walks(16)
assert env.unwrapped is env
model = PPO2('MlpPolicy', env, n_steps=16, learning_rate=3e-3, seed=0, gamma=0.9)
model.learn(4096)
# it learns to walk to the right
right = model.action_probability(np.zeros((1, 1), dtype=np.float32))[0, 1]
assert right > 0.8, right
assert np.mean([episode['r'] for episode in model.ep_info_buf]) > 0.7
PPO2('MlpPolicy', VecNormalize(Walks(4)), n_steps=16).learn(128)
