# Record a model, clone it into a smaller one; data in memory.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.gail import ExpertDataset, generate_expert_traj
from stable_baselines.gail.dataset.dataset import DataLoader

expert = PPO2('MlpPolicy', 'Pendulum-v0', n_steps=32, seed=1)
trajectories = generate_expert_traj(expert, n_timesteps=64, n_episodes=2, env=gym.make('Pendulum-v0'))
assert expert.num_timesteps == 64
assert trajectories['obs'].shape == (400, 3) and trajectories['actions'].shape == (400, 1)
assert trajectories['episode_starts'].nonzero()[0].tolist() == [0, 200]

# what the clone is to learn: push against the speed
trajectories['actions'] = np.clip(-2 * trajectories['obs'][:, 2:], -2, 2).astype(np.float32)
dataset = ExpertDataset(traj_data=trajectories, train_fraction=0.8, batch_size=64, randomize=True, verbose=0,
                        sequential_preprocessing=True)
assert isinstance(dataset.train_loader, DataLoader)

clone = PPO2('MlpPolicy', 'Pendulum-v0', policy_kwargs=dict(net_arch=[dict(pi=[32], vf=[8])]), seed=2)
wanted = trajectories['actions']


def error():
    return np.mean((clone.predict(trajectories['obs'], deterministic=True)[0] - wanted) ** 2)


first = error()
clone.pretrain(dataset, n_epochs=np.int64(100), learning_rate=3e-3, adam_epsilon=1e-8, val_interval=50)
assert error() < 0.2 * first, (first, error())

dataset.init_dataloader(10)
assert dataset.get_next_batch()[0].shape == (10, 3)

for arguments in (dict(), dict(expert_path='x.npz', traj_data=trajectories)):
    try:
        ExpertDataset(**arguments)
    except ValueError:
        pass
    else:
        raise AssertionError('accepted both or none')
