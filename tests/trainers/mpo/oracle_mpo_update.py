"""MPO's update written from the specification, in float64, with torch's own autograd, optimizers and distributions.

It imports nothing of Minerva. A network is the list of its tensors in the order of its layers: weight and bias of the
first layer, scale and shift of its norm, weight and bias of each further layer, weight and bias of each head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.utils import clip_grad_norm_

Network = list[Tensor]
Batch = dict[str, Tensor]


def encode(network: Network, heads: int, x: Tensor) -> Tensor:
    weight, bias, scale, shift = network[:4]
    x = x @ weight.T + bias
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    x = torch.tanh(x * scale + shift)
    further = network[4 : len(network) - 2 * heads]
    for weight, bias in zip(further[::2], further[1::2], strict=True):
        x = x @ weight.T + bias
        x = torch.where(x > 0, x, x.clamp(max=0).exp() - 1)
    return x


def log_density(mean: Tensor, std: Tensor, actions: Tensor) -> Tensor:
    densities: Tensor = Normal(mean, std).log_prob(actions)  # type: ignore[no-untyped-call]
    return densities.sum(-1)


def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x)) + 1e-8


def inverse_softplus(y: float) -> float:
    return math.log(math.expm1(y))


class Oracle:
    """Holds what is learned, and makes updates of it."""

    def __init__(self, networks: dict[str, Network], low: Tensor, high: Tensor, settings: dict[str, Any]) -> None:
        self.s: dict[str, Any] = {
            "gamma": 0.99, "target_networks_update_period": 100, "policy_lr": 3e-4, "q_lr": 3e-4, "kl_epsilon": 0.1,
            "mstep_kl_epsilon": 0.1, "mstep_kl_epsilon_stddev": None, "temperature_init": 1.0, "temperature_lr": 3e-4,
            "lambda_init": 1.0, "lambda_lr": 3e-4, "epsilon_penalty": 0.001, "max_grad_norm": 1.0,
            "retrace_lambda": 0.95, "optimizer_type": "adam", "sgd_momentum": 0.9, "init_log_alpha_mean": 10.0,
            "init_log_alpha_stddev": 1000.0, "m_steps": 1, "action_penalization": False, "target_tau": None,
            "shared_critic_pass": False, **settings,
        }  # fmt: skip
        s = self.s
        self.low, self.high = low, high
        self.networks = {
            name: [tensor.detach().double().clone() for tensor in network] for name, network in networks.items()
        }
        for name in ("policy", "q"):
            for tensor in self.networks[name]:
                tensor.requires_grad_()

        def dual(start: float | None, *shape: int) -> Tensor:
            start = inverse_softplus(s["lambda_init"]) if start is None else start
            return torch.full(shape, start, dtype=torch.float64, requires_grad=True)

        dims = len(low)
        self.duals = {
            "temperature": dual(s["temperature_init"]),
            "alpha_mean": dual(s["init_log_alpha_mean"], dims),
            "alpha_stddev": dual(s["init_log_alpha_stddev"], dims),
            "penalty_temperature": dual(s["temperature_init"]),
        }
        temperatures = [self.duals["temperature"], self.duals["penalty_temperature"]]
        alphas = [self.duals["alpha_mean"], self.duals["alpha_stddev"]]
        self.q_optimizer = self.optimizer([{"params": self.networks["q"], "lr": s["q_lr"]}])
        self.policy_optimizer = self.optimizer(
            [{"params": self.networks["policy"], "lr": s["policy_lr"] / max(1, s["m_steps"])}]
        )
        self.dual_optimizer = self.optimizer(
            [{"params": temperatures, "lr": s["temperature_lr"]}, {"params": alphas, "lr": s["lambda_lr"]}]
        )
        self.updates = 0
        self.norms: dict[str, float] = {}  # of the newest gradients, before clipping

    def optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if self.s["optimizer_type"] == "adam":
            return torch.optim.Adam(groups, eps=1e-5)
        return torch.optim.SGD(groups, momentum=self.s["sgd_momentum"])

    def q(self, name: str, obs: Tensor, actions: Tensor) -> Tensor:
        network = self.networks[name]
        actions = torch.minimum(torch.maximum(actions, self.low), self.high)
        features = encode(network, 1, torch.cat([obs, actions], dim=-1))
        return (features @ network[-2].T + network[-1]).squeeze(-1)

    def policy(self, name: str, obs: Tensor) -> tuple[Tensor, Tensor]:
        network = self.networks[name]
        features = encode(network, 2, obs)
        log_std = features @ network[-2].T + network[-1]
        return features @ network[-4].T + network[-3], log_std.clamp(-20, 2).exp()

    def sampled_values(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions of the target policy, and what the target critic says of them."""
        mean, std = self.policy("policy_target", obs)  # [..., A]
        actions = torch.stack([mean + std * noise[..., i, :] for i in range(noise.shape[-2])], dim=-2)
        values = [self.q("q_target", obs, actions[..., i, :]) for i in range(noise.shape[-2])]
        return actions, torch.stack(values, dim=-1)

    def retrace(self, batch: Batch, noise: Tensor) -> Tensor:
        s = self.s
        next_values = self.sampled_values(batch["next_obs"], noise)[1].mean(-1)  # [B, T]
        q_values = self.q("q_target", batch["obs"], batch["actions"])
        log_probs = log_density(*self.policy("policy_target", batch["obs"]), batch["actions_raw"])
        targets = []
        for b in range(len(q_values)):
            target, trace, mask = q_values[b, 0], torch.tensor(1.0, dtype=torch.float64), 1.0
            for t in range(q_values.shape[1]):
                if t > 0:
                    ratio = (log_probs[b, t] - batch["behaviour_logp"][b, t]).exp()
                    trace = trace * s["retrace_lambda"] * torch.clamp(ratio, max=1.0)
                    mask *= 1 - batch["ended"][b, t - 1].item()
                kept = s["gamma"] * (1 - batch["terminated"][b, t])
                delta = batch["rewards"][b, t] + kept * next_values[b, t] - q_values[b, t]
                target = target + s["gamma"] ** t * trace * mask * delta
            targets.append(target)
        return torch.stack(targets)

    def clipped_step(self, name: str, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.norms[name] = clip_grad_norm_(tensors, self.s["max_grad_norm"]).item()
        optimizer.step()

    def refresh_targets(self) -> None:
        tau = self.s["target_tau"]
        if tau is None:
            if self.updates % self.s["target_networks_update_period"] > 0:
                return
            tau = 1.0
        for name in ("policy", "q"):
            for target, online in zip(self.networks[f"{name}_target"], self.networks[name], strict=True):
                target.copy_((1 - tau) * target + tau * online.detach())

    def update(self, batch: Batch, e_step_noise: Tensor, critic_noise: Tensor) -> dict[str, float]:
        """Batch: obs, actions, rewards, discounts, next_obs; or sequences with actions_raw, behaviour_logp,
        terminated and ended in place of discounts."""
        s = self.s
        self.refresh_targets()
        sequences = "discounts" not in batch
        obs, actions = (batch["obs"][:, 0], batch["actions"][:, 0]) if sequences else (batch["obs"], batch["actions"])
        epsilon, epsilon_mean = s["kl_epsilon"], s["mstep_kl_epsilon"]
        epsilon_std = epsilon_mean if s["mstep_kl_epsilon_stddev"] is None else s["mstep_kl_epsilon_stddev"]

        # Critic
        if sequences:
            targets = self.retrace(batch, critic_noise)
        else:
            drawn = e_step_noise if s["shared_critic_pass"] else critic_noise
            next_values = self.sampled_values(batch["next_obs"], drawn)[1].mean(-1)
            targets = batch["rewards"] + batch["discounts"] * next_values
        q_loss = ((self.q("q", obs, actions) - targets.detach()) ** 2).mean()
        self.clipped_step("q", self.q_optimizer, q_loss)

        # E-step
        if s["shared_critic_pass"]:
            obs = batch["next_obs"]
        old_mean, old_std = self.policy("policy_target", obs)
        samples, q_values = self.sampled_values(obs, e_step_noise)  # [B, S, A], [B, S]
        eta = softplus(self.duals["temperature"])
        weights = normalized((q_values / eta).detach())
        log_mean_exp = (torch.logsumexp(q_values / eta, dim=-1) - math.log(q_values.shape[-1])).mean()
        eta_loss = eta * (epsilon + log_mean_exp)
        all_weights = weights
        penalty_loss = torch.zeros((), dtype=torch.float64)
        if s["action_penalization"]:
            inside = torch.minimum(torch.maximum(samples, self.low), self.high)
            cost = -torch.linalg.vector_norm(samples - inside, dim=-1)
            penalty_eta = softplus(self.duals["penalty_temperature"])
            all_weights = weights + normalized((cost / penalty_eta).detach())
            log_mean_exp = (torch.logsumexp(cost / penalty_eta, dim=-1) - math.log(cost.shape[-1])).mean()
            penalty_loss = penalty_eta * (s["epsilon_penalty"] + log_mean_exp)

        # Duals
        mean, std = self.policy("policy", obs)
        kl_mean = kl_divergence(Normal(old_mean, old_std), Normal(mean, old_std)).mean(0).detach()
        kl_std = kl_divergence(Normal(old_mean, old_std), Normal(old_mean, std)).mean(0).detach()
        alpha_mean, alpha_std = softplus(self.duals["alpha_mean"]), softplus(self.duals["alpha_stddev"])
        alpha_loss = (alpha_mean * (epsilon_mean - kl_mean)).sum() + (alpha_std * (epsilon_std - kl_std)).sum()
        self.clipped_step("duals", self.dual_optimizer, eta_loss + alpha_loss + penalty_loss)
        for dual in self.duals.values():
            dual.data.clamp_(min=-18)
        new_eta, alpha_mean, alpha_std = (
            softplus(self.duals[name]).detach() for name in ("temperature", "alpha_mean", "alpha_stddev")
        )

        # M-step
        before = [tensor.detach().clone() for tensor in self.networks["policy"]]
        for _ in range(s["m_steps"]):
            mean, std = self.policy("policy", obs)
            fit = torch.zeros((), dtype=torch.float64)
            for i in range(samples.shape[1]):
                log_prob_mean = log_density(mean, old_std, samples[:, i])
                log_prob_std = log_density(old_mean, std, samples[:, i])
                fit = fit - (all_weights[:, i] * (log_prob_mean + log_prob_std)).mean()
            kl_mean = kl_divergence(Normal(old_mean, old_std), Normal(mean, old_std)).mean(0)
            kl_std = kl_divergence(Normal(old_mean, old_std), Normal(old_mean, std)).mean(0)
            loss = fit + (alpha_mean * kl_mean).sum() + (alpha_std * kl_std).sum()
            self.clipped_step("policy", self.policy_optimizer, loss)
        self.updates += 1

        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1).mean()
        change = [(after - old).pow(2).sum() for after, old in zip(self.networks["policy"], before, strict=True)]
        metrics = {
            "loss/q": q_loss,
            "loss/policy": fit,
            "loss/dual_eta": eta_loss,
            "loss/dual": eta_loss + alpha_loss,
            "kl/q_pi": (math.log(q_values.shape[-1]) - entropy) / epsilon,
            "kl/mean": kl_mean.mean(),
            "kl/std": kl_std.mean(),
            "eta": new_eta,
            "alpha_mean": alpha_mean.mean(),
            "alpha_std": alpha_std.mean(),
            "lambda": alpha_mean.mean(),
            "q/min": q_values.min(),
            "q/max": q_values.max(),
            "pi/std_min": std.min(),
            "pi/std_max": std.max(),
            "entropy": entropy,
            "train/param_delta": torch.stack(change).sum().sqrt(),
        }
        return {name: value.item() for name, value in metrics.items()}


def normalized(logits: Tensor) -> Tensor:
    exponentials = (logits - logits.max(-1, keepdim=True).values).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)
