"""How a PPO2 model learns from demonstrations, before it learns from environments."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.ppo2.acting import Acting, stored_actions
from minerva.utils.precision import exact_cudnn


class Pretraining(Acting):
    """The part of `PPO2` that clones the behavior of an expert.

    Attributes:
        verbose: 1 to print the losses.
    """

    verbose: int

    def pretrain(
        self,
        dataset: Any,
        n_epochs: int = 10,
        learning_rate: float = 1e-4,
        adam_epsilon: float = 1e-8,
        val_interval: int | None = None,
    ) -> Self:
        """Let the policy imitate an expert (behavior cloning); the critic learns nothing.

        In a Box, the most likely action comes closer to the expert's (mean squared error, not clipped). In a Discrete
        space, the expert's action becomes more likely (cross-entropy).

        Args:
            dataset: An `ExpertDataset`.
            n_epochs: Passes over the dataset.
            learning_rate: Learning rate of Adam.
            adam_epsilon: Epsilon of Adam.
            val_interval: Epochs between prints of the losses, with `verbose`; None for a tenth of `n_epochs`.

        Raises:
            ValueError: The policy is recurrent, or actions are neither of a Box nor Discrete.
        """
        if not isinstance(self.action_space, (spaces.Box, spaces.Discrete)):
            raise ValueError(f"action space: must be a Box or Discrete for pretrain, got {self.action_space}.")
        if self.agent.state_dim:
            raise ValueError("policy: must not be recurrent for pretrain, whose samples are single steps.")
        positive_int("n_epochs", n_epochs)
        interval = max(1, n_epochs // 10) if val_interval is None else val_interval
        positive_int("val_interval", interval)
        train, validation = len(dataset.train_loader), len(dataset.val_loader)
        optimizer = torch.optim.Adam(self.agent.policy.parameters(), lr=learning_rate, eps=adam_epsilon)
        with exact_cudnn(self._device):
            for epoch in range(1, n_epochs + 1):
                losses = []
                for _ in range(train):
                    loss = self._cloning_loss(*dataset.get_next_batch("train"))
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses.append(loss.item())
                if self.verbose > 0 and epoch % interval == 0:
                    with torch.no_grad():
                        held_out = [self._cloning_loss(*dataset.get_next_batch("val")) for _ in range(validation)]
                    print(f"==== Training progress {100 * epoch / n_epochs:.2f}% ====")
                    print(f"Epoch {epoch}")
                    print(
                        f"Training loss: {np.mean(losses):.6f}, "
                        f"Validation loss: {np.mean([loss.item() for loss in held_out]):.6f}\n"
                    )
        optimizer.zero_grad()
        if self.verbose > 0:
            print("Pretraining done.")
        return self

    def _cloning_loss(self, observations: Any, actions: Any) -> Tensor:
        obs = np.asarray(observations)
        if isinstance(self.observation_space, spaces.Box):  # datasets flatten observations
            obs = obs.reshape(-1, *self.observation_space.shape)
        elif isinstance(self.observation_space, spaces.Discrete):
            obs = obs.reshape(-1)
        rows, _, _ = self._inputs(obs, None, None, None)
        policy = self.agent.policy
        params = policy(self.agent.prepare(rows))
        wanted = torch.from_numpy(stored_actions(self.action_space, actions, len(rows))).to(self._device)
        if isinstance(self.action_space, spaces.Box):
            return ((policy.head.mode(params) - wanted) ** 2).mean()
        return -policy.head.log_prob(params, wanted).mean()
