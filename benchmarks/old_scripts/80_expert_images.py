# Demonstrations with pictures, which are files beside the data; and the loader of minibatches.
import os

import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.gail import ExpertDataset, generate_expert_traj
from stable_baselines.gail.dataset.dataset import DataLoader


class Lamp(gym.Env):
    """The picture is bright or dark; the right action says which."""

    observation_space = gym.spaces.Box(0, 255, shape=(36, 36, 1), dtype=np.uint8)
    action_space = gym.spaces.Discrete(2)

    def _picture(self):
        self.bright = int(np.random.rand() < 0.5)
        return np.full((36, 36, 1), 30 + 200 * self.bright, dtype=np.uint8)

    def reset(self):
        self.steps = 0
        return self._picture()

    def step(self, action):
        reward = float(action == self.bright)
        self.steps += 1
        return self._picture(), reward, self.steps == 8, {}


np.random.seed(0)
data = generate_expert_traj(lambda obs: int(obs.mean() > 100), 'expert', Lamp(), n_episodes=4, image_folder='pictures')
assert len(os.listdir('pictures')) == 32 and data['obs'].shape == (32,) and os.path.exists(data['obs'][0])
assert data['episode_returns'].tolist() == [8, 8, 8, 8]

dataset = ExpertDataset(expert_path='expert.npz', traj_limitation=3, batch_size=8, train_fraction=0.75, verbose=0)
obs, actions = dataset.get_next_batch('train')
assert obs.shape == (8, 36, 36, 1) and np.array_equal(obs[:, 0, 0, 0] > 100, actions[:, 0] == 1)
assert dataset.get_next_batch('val')[0].shape[1:] == (36, 36, 1)
dataset.log_info()

model = PPO2('CnnPolicy', Lamp(), n_steps=8, seed=0)
model.pretrain(dataset, n_epochs=30, learning_rate=1e-3)
pictures = np.stack([np.full((36, 36, 1), level, dtype=np.uint8) for level in (30, 230)])
assert model.predict(pictures, deterministic=True)[0].tolist() == [0, 1]

# the loader alone: every index once, the last minibatch smaller
indices, observations, actions = np.arange(10), np.arange(20.).reshape(10, 2), np.arange(10)[:, None]
loader = DataLoader(indices, observations, actions, batch_size=4, n_workers=1, infinite_loop=False, max_queue_len=1,
                    shuffle=False, start_process=True, backend='threading', sequential=True, partial_minibatch=True)
batches = list(loader)
assert [len(obs) for obs, _ in batches] == [4, 4, 2]
assert np.concatenate([actions for _, actions in batches]).ravel().tolist() == list(range(10))

# the same by hand, with the arguments in their order
loader = DataLoader(indices, observations, actions, 5, 1, True, 1, True)
loader.start_process()
iter(loader)
drawn = np.concatenate([loader.sequential_next()[1] for _ in range(len(loader))]).ravel()
assert sorted(drawn) == list(range(10)) and drawn.tolist() != list(range(10))
