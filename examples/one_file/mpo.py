"""Maximum a posteriori policy optimization (Abdolmaleki et al. 2018a, 2018b) in one file, for continuous actions.

    python examples/one_file/mpo.py --env Pendulum-v1 --steps 10000

Read it from top to bottom: hyperparameters, networks, replay, update, loop. Losses come from `minerva.objectives`, the
rest is PyTorch and Gymnasium. `minerva train mpo` computes the same update; a test holds the two equal.

Shapes: B transitions, S sampled actions, O observation entries, A action dimensions. A prime marks target networks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium as gym
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import softplus

from minerva.objectives import mpo
from minerva.objectives.gaussian import gaussian_log_prob
from minerva.objectives.kl import kl_of_means, kl_of_stds
from minerva.objectives.lagrange import alpha_loss, kl_penalty


@dataclass(frozen=True)
class Hyperparameters:
    """Hold the settings of a run."""

    env: str = "Pendulum-v1"  # a Gymnasium id
    steps: int = 10_000  # environment steps of the run
    seed: int = 1
    # Replay
    replay_size: int = 1_000_000  # transitions
    update_after: int = 1_000  # transitions collected before the first update; then one update per step
    batch_size: int = 64  # B; 64 and 64 units are for a laptop, `minerva train mpo` has 256 of each
    # Networks
    hidden_units: int = 64  # in each of the two hidden layers of policy and critic
    learning_rate: float = 3e-4  # of policy and critic
    gamma: float = 0.99  # γ, discount
    target_period: int = 100  # updates after which the target networks become copies of the online ones
    # E-step
    action_samples: int = 20  # S
    epsilon: float = 0.1  # bound on the KL divergence of the improved policy from the target policy
    temperature_init: float = 1.0  # before the softplus, as the two below
    # M-step
    epsilon_mean: float = 2.5e-3  # bounds on the KL divergence of the policy from the target policy, per dimension
    epsilon_stddev: float = 1e-6
    alpha_mean_init: float = 10.0
    alpha_stddev_init: float = 1000.0
    dual_lr: float = 1e-2  # learning rate of the temperature and the multipliers
    max_grad_norm: float = 40.0  # of the critic, of the policy, and of all dual variables together


def encoder(in_dim: int, units: int) -> nn.Sequential:
    """Build two hidden layers, the first of them normalized."""
    return nn.Sequential(nn.Linear(in_dim, units), nn.LayerNorm(units), nn.Tanh(), nn.Linear(units, units), nn.ELU())


class Policy(nn.Module):
    """Map observations to a Gaussian over raw actions; the environment gets them clipped to its bounds."""

    def __init__(self, obs_dim: int, act_dim: int, units: int) -> None:
        super().__init__()
        self.encoder = encoder(obs_dim, units)
        self.policy_mean = nn.Linear(units, act_dim)
        self.policy_logstd = nn.Linear(units, act_dim)
        nn.init.kaiming_normal_(self.policy_mean.weight, nonlinearity="linear")
        nn.init.zeros_(self.policy_mean.bias)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, ``[B, A]`` each."""
        features = self.encoder(obs)
        return self.policy_mean(features), self.policy_logstd(features).clamp(-20, 2)


class Critic(nn.Module):
    """Map observations and actions, which are clipped to the bounds first, to their value."""

    def __init__(self, obs_dim: int, low: Tensor, high: Tensor, units: int) -> None:
        super().__init__()
        self.low, self.high = low, high  # [A]
        self.encoder = encoder(obs_dim + len(low), units)
        self.head = nn.Linear(units, 1)
        nn.init.trunc_normal_(self.head.weight, std=0.01, a=-0.02, b=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return Q(s, a), ``[...]``."""
        return self.head(self.encoder(torch.cat([obs, actions.clamp(self.low, self.high)], dim=-1))).squeeze(-1)


class Agent(nn.Module):
    """Hold everything that learns: policy, critic, their targets, the dual variables and the optimizers."""

    def __init__(self, obs_dim: int, low: Tensor, high: Tensor, hp: Hyperparameters) -> None:
        super().__init__()
        self.policy = Policy(obs_dim, len(low), hp.hidden_units)
        self.critic = Critic(obs_dim, low, high, hp.hidden_units)
        self.policy_target, self.critic_target = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        # Dual variables before the softplus: the temperature, and multipliers for each action dimension.
        self.log_temperature = nn.Parameter(torch.tensor(hp.temperature_init))
        self.log_alpha_mean = nn.Parameter(torch.full((len(low),), hp.alpha_mean_init))
        self.log_alpha_stddev = nn.Parameter(torch.full((len(low),), hp.alpha_stddev_init))
        self.duals = [self.log_temperature, self.log_alpha_mean, self.log_alpha_stddev]
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=hp.learning_rate, eps=1e-5)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=hp.learning_rate, eps=1e-5)
        self.dual_optimizer = torch.optim.Adam(self.duals, lr=hp.dual_lr, eps=1e-5)
        self.updates = 0


class Batch(NamedTuple):
    """Hold B transitions."""

    obs: Tensor  # [B, O]
    actions: Tensor  # [B, A]
    rewards: Tensor  # [B]
    terminated: Tensor  # [B], 0 or 1; a truncated episode has 0
    next_obs: Tensor  # [B, O]


class ReplayBuffer:
    """Keep the newest transitions in a ring."""

    def __init__(self, capacity: int, obs_dim: int, act_dim: int) -> None:
        shapes = ((obs_dim,), (act_dim,), (), (), (obs_dim,))
        self.data = Batch(*(torch.zeros(capacity, *shape) for shape in shapes))
        self.added, self.capacity = 0, capacity

    def add(self, *transition: object) -> None:
        """Write one transition over the oldest one."""
        for column, value in zip(self.data, transition, strict=True):
            column[self.added % self.capacity] = torch.as_tensor(value)
        self.added += 1

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """Draw transitions with replacement."""
        rows = torch.randint(min(self.added, self.capacity), (count,), generator=generator)
        return Batch(*(column[rows] for column in self.data))


def sample_and_value(agent: Agent, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sample S actions of the target policy per state; return mean, log standard deviation, actions and values."""
    mean, log_std = agent.policy_target(obs)  # [B, A] each
    # LaTeX: a_i = \mu' + \sigma' \xi_i, \quad \xi_i \sim \mathcal{N}(0, I)
    actions = mean.unsqueeze(1) + log_std.exp().unsqueeze(1) * noise  # [B, S, A]
    obs = obs.unsqueeze(1).expand(-1, noise.shape[1], -1)  # [B, S, O]
    return mean, log_std, actions, agent.critic_target(obs, actions)


def positive(parameter: Tensor) -> Tensor:
    """Map the parameter of a dual variable to the variable."""
    # LaTeX: \eta = \log(1 + e^x) + 10^{-8}
    return softplus(parameter) + 1e-8


def minimize(loss: Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
    """Take a gradient step."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_grad_norm)
    optimizer.step()


def update(agent: Agent, batch: Batch, noise: Tensor, hp: Hyperparameters) -> None:
    """Improve critic, dual variables and policy; noise ``[2, B, S, A]`` is for the E-step and for the critic."""
    if agent.updates % hp.target_period == 0:
        agent.policy_target.load_state_dict(agent.policy.state_dict())
        agent.critic_target.load_state_dict(agent.critic.state_dict())
    agent.updates += 1

    with torch.no_grad():
        old_mean, old_log_std, actions, q_values = sample_and_value(agent, batch.obs, noise[0])
        # LaTeX: V(s') = \frac{1}{S} \sum_{i=1}^{S} Q'(s', a'_i)
        next_values = sample_and_value(agent, batch.next_obs, noise[1])[-1].mean(-1)  # [B]
        targets = mpo.td_target(batch.rewards, hp.gamma * (1 - batch.terminated), next_values)  # [B]

    # Critic
    # LaTeX[Abdolmaleki2018a, eq. 13]: L_Q = \mathbb{E}\left[(Q(s, a) - y)^2\right]
    critic_loss = (agent.critic(batch.obs, batch.actions) - targets).square().mean()
    minimize(critic_loss, agent.critic_optimizer, hp.max_grad_norm)

    # E-step: weigh the actions in s
    temperature = positive(agent.log_temperature)
    weights = mpo.e_step_weights(q_values, temperature)  # [B, S]

    # One step on the dual variables
    mean, log_std = agent.policy(batch.obs)  # [B, A] each
    kl_mean = kl_of_means(mean, old_mean, old_log_std).mean(0)  # [A]
    kl_stddev = kl_of_stds(log_std, old_log_std).mean(0)  # [A]
    # LaTeX[Abdolmaleki2018a, eq. 9]: L_\eta = \mathbb{E}_b[L_{\eta,b}]
    temperature_loss = mpo.temperature_loss(q_values, temperature, hp.epsilon).mean()
    # LaTeX[Abdolmaleki2018a, app. D.3]: L_{\alpha_\mu} = \sum_j \alpha_{\mu,j} (\epsilon_\mu - D_{\mu,j})
    alpha_mean_loss = alpha_loss(positive(agent.log_alpha_mean), kl_mean, hp.epsilon_mean).sum()
    # LaTeX[Abdolmaleki2018a, app. D.3]: L_{\alpha_\sigma} = \sum_j \alpha_{\sigma,j} (\epsilon_\sigma - D_{\sigma,j})
    alpha_stddev_loss = alpha_loss(positive(agent.log_alpha_stddev), kl_stddev, hp.epsilon_stddev).sum()
    minimize(temperature_loss + alpha_mean_loss + alpha_stddev_loss, agent.dual_optimizer, hp.max_grad_norm)
    for dual in agent.duals:
        dual.data.clamp_(min=-18)  # below it the gradient of the softplus vanishes

    # M-step: fit the weighted actions, the mean with the old standard deviation and vice versa
    mean, log_std, old_mean, old_log_std = (x.unsqueeze(1) for x in (mean, log_std, old_mean, old_log_std))  # [B, 1, A]
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\mu = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu, \sigma')
    mean_loss = mpo.weighted_nll(gaussian_log_prob(mean, old_log_std, actions), weights).mean()
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\sigma = -\mathbb{E}_b \sum_i q_{b,i} \log \mathcal{N}(a_i; \mu', \sigma)
    stddev_loss = mpo.weighted_nll(gaussian_log_prob(old_mean, log_std, actions), weights).mean()
    alpha_mean, alpha_stddev = positive(agent.log_alpha_mean), positive(agent.log_alpha_stddev)  # [A] each
    # LaTeX: P = \sum_j \left( \alpha_{\mu,j} D_{\mu,j} + \alpha_{\sigma,j} D_{\sigma,j} \right)
    penalty = (kl_penalty(alpha_mean, kl_mean) + kl_penalty(alpha_stddev, kl_stddev)).sum()
    # LaTeX[Abdolmaleki2018b, sec. 4.2.1]: L_\pi = L_\mu + L_\sigma + P
    minimize(mean_loss + stddev_loss + penalty, agent.policy_optimizer, hp.max_grad_norm)


def train(hp: Hyperparameters) -> list[float]:
    """Train an agent, print its progress, and return the returns of its episodes."""
    torch.manual_seed(hp.seed)  # the networks' first weights
    generator = torch.Generator().manual_seed(hp.seed)  # action noise, samples of the replay
    env = gym.make(hp.env)
    space = env.action_space
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(f"env: must have continuous actions, got {space}.")
    obs, _ = env.reset(seed=hp.seed)
    obs_dim, act_dim = len(obs), len(space.low)  # O, A
    agent = Agent(obs_dim, torch.tensor(space.low), torch.tensor(space.high), hp)
    replay = ReplayBuffer(hp.replay_size, obs_dim, act_dim)
    episode_returns, episode_return = [], 0.0
    for step in range(1, hp.steps + 1):
        with torch.no_grad():
            mean, log_std = agent.policy(torch.as_tensor(obs, dtype=torch.float32))
        # LaTeX: a = \mu + \sigma \xi, \quad \xi \sim \mathcal{N}(0, I)
        action = mean + log_std.exp() * torch.randn(act_dim, generator=generator)
        action = action.numpy().clip(space.low, space.high)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, reward, terminated, next_obs)  # next_obs is the true successor, at a time limit too
        obs, episode_return = next_obs, episode_return + float(reward)
        if terminated or truncated:
            episode_returns.append(episode_return)
            print(f"step {step:,}: return {episode_return:.1f}")
            (obs, _), episode_return = env.reset(), 0.0
        if step >= hp.update_after:
            noise = torch.randn(2, hp.batch_size, hp.action_samples, act_dim, generator=generator)
            update(agent, replay.sample(hp.batch_size, generator), noise, hp)
    return episode_returns


if __name__ == "__main__":
    train(tyro.cli(Hyperparameters))
