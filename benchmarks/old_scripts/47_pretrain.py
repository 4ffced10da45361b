# Learn from an expert: record it, clone it.
import gym
import numpy as np

from stable_baselines import PPO2
from stable_baselines.common.evaluation import evaluate_policy
from stable_baselines.gail import ExpertDataset, generate_expert_traj

env = gym.make("CartPole-v1")
env.seed(0)


def expert(obs):
    """Balance the pole with one rule."""
    return int(3 * obs[2] + obs[3] > 0)


generate_expert_traj(expert, 'expert_cartpole', env, n_episodes=4)
data = np.load('expert_cartpole.npz')
assert sorted(data.keys()) == ['actions', 'episode_returns', 'episode_starts', 'obs', 'rewards']
n = len(data['obs'])
assert data['obs'].shape == (n, 4) and data['actions'].shape == (n, 1) and data['episode_returns'].shape == (4,)
assert data['episode_starts'].sum() == 4 and data['episode_starts'][0]
assert data['episode_returns'].min() > 150 and data['episode_returns'].sum() == n

dataset = ExpertDataset(expert_path='expert_cartpole.npz', traj_limitation=2, batch_size=128, verbose=1)
assert dataset.num_traj == 2 and dataset.num_transition < n
obs, actions = dataset.get_next_batch('train')
assert obs.shape == (128, 4) and actions.shape == (128, 1)

model = PPO2('MlpPolicy', 'CartPole-v1', verbose=1, seed=0)
before = evaluate_policy(model, gym.make('CartPole-v1'), n_eval_episodes=5)[0]
assert model.pretrain(dataset, n_epochs=60, learning_rate=1e-3) is model
after = evaluate_policy(model, gym.make('CartPole-v1'), n_eval_episodes=5)[0]
assert after > 150 > before, (before, after)
right = np.array([[0., 0., 0.2, 0.5], [0., 0., -0.2, -0.5]])
assert model.predict(right, deterministic=True)[0].tolist() == [1, 0]

# the model can learn on
model.learn(128)
del dataset
