"""PPO, assembled: environments, agent, rollout buffer, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from minerva.acceleration.flat import FlatModule
from minerva.networks.encoders import images_in
from minerva.trainers.actor import Shapes
from minerva.trainers.on_policy import OnPolicyTrainer
from minerva.trainers.ppo.agent import Agent, make_agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Batch, Updater, UpdateResult
from minerva.trainers.run import Run

__all__ = ["Agent", "PPOConfig", "PPOTrainer"]


class PPOTrainer(OnPolicyTrainer):
    """Train a policy with PPO. Arguments are those of `OnPolicyTrainer`, and the fields of `PPOConfig`.

    It trains in whole rollouts; steps beyond the last of them are left over. If a resumed run is given more steps than
    before, its learning rate follows the schedule of the longer run from there on.
    """

    algorithm: ClassVar[str] = "ppo"
    config_class: ClassVar[type[PPOConfig]] = PPOConfig
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "policy_layer_sizes", "critic_layer_sizes", "normalize_obs", "obs_clip", "encoder", "shared_encoder",
        "lstm_units", "lstm_layer_norm",
    )  # fmt: skip
    worth_compiling: ClassVar[dict[str, int]] = {"cpu": 100_000}
    config: PPOConfig
    agent: Agent
    updater: Updater
    last_update: UpdateResult | None = None

    @classmethod
    def build_agent(cls, config: PPOConfig, shapes: Shapes, device: torch.device) -> Agent:
        agent = make_agent(config, shapes).to(device)
        agent.obs_normalizer.cpu()  # it takes in observations as they come from the environments
        FlatModule(agent.policy)  # where weights lie in memory decides the last bit of a product: as while learning
        return agent

    def _make_updater(self) -> Updater:
        return Updater(self.agent.policy, self.config)

    def update(self, total_updates: int) -> dict[str, float]:
        """Learn from the full rollout.

        Raises:
            FloatingPointError: No minibatch had a finite loss; the weights are as they were.
        """
        remaining = self.remaining(total_updates)
        self.last_update = result = self.updater.learn(self.collector.rollout, remaining, self.minibatch_order)
        self.actor.invalidate()
        report_skipped(result, self.updates + 1, self.warn)
        if self._run is not None and self._run.takes_arrays:
            self._log_arrays(self._run, result.batch)
        return {"charts/learning_rate": self.config.policy_lr_at(remaining), **result.metrics}

    def _log_arrays(self, run: Run, batch: Batch) -> None:
        """Log what only TensorBoard can show: histograms of weights and inputs, and images of observations."""
        run.histograms({f"weights/{name}": parameter for name, parameter in self.agent.named_parameters()})
        inputs = ("obs", "actions", "log_probs", "values", "advantages", "returns")
        run.histograms({f"inputs/{name}": getattr(batch, name).float() for name in inputs})
        seen = images_in(self.env.raw_observation_space, batch.obs.flatten(0, -2)[-1].cpu().numpy())
        run.images({f"observation/{name}".rstrip("/"): image for name, image in seen.items()})


def report_skipped(result: UpdateResult, number: int, warn: Callable[[str], None]) -> None:
    """Warn of the minibatches that a PPO update skipped because a number was not finite.

    Args:
        result: What the update returned.
        number: Its number.
        warn: What tells the user.

    Raises:
        FloatingPointError: It skipped all.
    """
    if not result.skipped:
        return
    if result.gradient_steps == 0:
        raise FloatingPointError(
            f"every loss of update {number} was infinite or not a number; the weights were not touched. "
            "Try a lower policy_lr or max_grad_norm."
        )
    warn(
        f"{result.skipped} minibatches of update {number} had a loss or gradient that is not finite "
        "and were skipped; a lower policy_lr or max_grad_norm may help"
    )
