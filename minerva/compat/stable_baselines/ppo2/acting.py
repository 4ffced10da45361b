"""How a PPO2 model acts: choose actions, and compute their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor

from minerva.compat.stable_baselines.common.base_class import ActorCriticRLModel
from minerva.environments.base import clip_to_box
from minerva.environments.spaces import action_converter, rows_of
from minerva.networks.actor_critic import ActorCriticOutput
from minerva.networks.heads import BernoulliHead, DistParams, GaussianHead
from minerva.trainers.ppo.agent import Agent
from minerva.utils.precision import exact_cudnn


class Acting(ActorCriticRLModel):
    """The acting half of `PPO2`.

    Attributes:
        agent: The networks.
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        n_envs: Number of environments; 0 without any.
    """

    agent: Agent
    observation_space: Space[Any]
    action_space: Space[Any]
    n_envs: int
    _mask_dim: int
    _device: torch.device
    _noise: torch.Generator

    @property
    def initial_state(self) -> NDArray[np.float32] | None:
        """The recurrent state at the start of episodes, ``[N, S]``, or None without a recurrent policy."""
        size = self.agent.state_dim
        return np.zeros((max(1, self.n_envs), size), np.float32) if size else None

    def predict(
        self,
        observation: Any,
        state: Any = None,
        mask: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Choose actions.

        Args:
            observation: One observation, or a batch as vector environments return it.
            state: The recurrent state that the previous call returned, ``[B, S]``; None for zeros.
            mask: Whether an episode has just ended, ``[B]``: sets the recurrent state to zero there.
            deterministic: Whether to return the most likely action instead of a sample.
            action_masks: Which actions are allowed, ``[B, K]``, for environments with action masks; None for all.

        Returns:
            Actions as elements of the action space, within its bounds, and the recurrent state, ``[B, S]``, or None
            without a recurrent policy.
        """
        rows, recurrent_state, single = self._inputs(observation, state, mask, action_masks)
        with exact_cudnn(self._device):
            chosen, recurrent_state = self.agent.act_recurrent(rows, recurrent_state, deterministic, self._noise)
        clipped = clip_to_box(chosen.cpu().numpy(), self.action_space)
        actions = action_converter(self.action_space)(clipped)
        return (actions[0] if single else actions), self._old_state(recurrent_state)

    @torch.no_grad()
    def action_probability(
        self,
        observation: Any,
        state: Any = None,
        mask: Any = None,
        actions: Any = None,
        logp: bool = False,
        action_masks: Any = None,
    ) -> Any:
        """Compute the probabilities of actions.

        Args:
            observation: As for `predict`.
            state: As for `predict`.
            mask: As for `predict`.
            actions: The actions to score, one per observation; None for the whole distribution.
            logp: Whether to return log-probabilities, with `actions`.
            action_masks: As for `predict`.

        Returns:
            With `actions`, their probabilities (densities in a Box), ``[B, 1]``. Without, the distribution:
            probabilities ``[B, n]`` for Discrete, a list of these for MultiDiscrete, probabilities of 1 ``[B, n]`` for
            MultiBinary, mean and standard deviation ``([B, A], [B, A])`` for a Box. A single observation has no B
            dimension.
        """
        rows, recurrent_state, single = self._inputs(observation, state, mask, action_masks)
        with exact_cudnn(self._device):
            params, _ = self.agent.policy.policy_step(self.agent.prepare(rows), recurrent_state)
        if actions is not None:
            given = torch.from_numpy(stored_actions(self.action_space, actions, len(rows))).to(self._device)
            score = self.agent.policy.head.log_prob(params, given)
            numbers = (score if logp else score.exp()).cpu().numpy()[:, None]
            return numbers[0] if single else numbers
        return self._distribution(params, single)

    @torch.no_grad()
    def step(
        self, obs: Any, state: Any = None, mask: Any = None, deterministic: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.float32]]:
        """Choose actions for a batch, as collecting does.

        Args:
            obs: A batch of observations.
            state: As for `predict`.
            mask: As for `predict`.
            deterministic: As for `predict`.

        Returns:
            Actions, not clipped to the bounds of a Box; values ``[B]``; the recurrent state, or None; and the negative
            log-probabilities of the actions, ``[B]``.
        """
        params, value, after = self._evaluate(obs, state, mask)
        head = self.agent.policy.head
        noise = head.draw_noise(value.shape, self._noise, value)
        actions = head.mode(params) if deterministic else head.sample(params, noise)
        converted = action_converter(self.action_space)(actions[0].cpu().numpy())
        neglogp = -head.log_prob(params, actions)[0].cpu().numpy()
        return converted, value[0].cpu().numpy(), self._old_state(after), neglogp

    def proba_step(self, obs: Any, state: Any = None, mask: Any = None) -> Any:
        """Return the distribution of the actions for a batch, as `action_probability` does."""
        return self.action_probability(obs, state, mask)

    @torch.no_grad()
    def value(self, obs: Any, state: Any = None, mask: Any = None) -> NDArray[np.float32]:
        """Return the values of a batch of observations, ``[B]``; arguments as for `predict`."""
        value: NDArray[np.float32] = self._evaluate(obs, state, mask).value[0].cpu().numpy()
        return value

    def _evaluate(self, obs: Any, state: Any, mask: Any) -> ActorCriticOutput:
        """Evaluate policy and critic on a batch, as sequences of one step."""
        rows, recurrent_state, _ = self._inputs(obs, state, mask, None)
        starts = torch.zeros(1, len(rows), device=self._device)
        with exact_cudnn(self._device):
            return self.agent.policy.forward_sequence(self.agent.prepare(rows)[None], recurrent_state, starts)

    def _distribution(self, params: DistParams, single: bool) -> Any:
        def out(part: Tensor) -> NDArray[np.float32]:
            numbers: NDArray[np.float32] = part.cpu().numpy()
            return numbers[0] if single else numbers

        head, given = self.agent.policy.head, params[0]
        if isinstance(head, GaussianHead):
            return out(given), out(params[1].exp().expand_as(given))
        if isinstance(self.action_space, spaces.Discrete):
            return out(given.softmax(-1))
        if isinstance(head, BernoulliHead):
            return out(given.sigmoid())
        assert isinstance(self.action_space, spaces.MultiDiscrete)
        groups = torch.split(given, self.action_space.nvec.flatten().tolist(), dim=-1)
        return [out(group.softmax(-1)) for group in groups]

    def _inputs(self, observation: Any, state: Any, mask: Any, action_masks: Any) -> tuple[Tensor, Tensor, bool]:
        """Return rows ``[B, O]``, the recurrent state before them ``[B, S]``, and whether there was one observation."""
        if (
            isinstance(observation, tuple)
            and len(observation) == 2
            and isinstance(observation[1], dict)
            and not isinstance(self.observation_space, spaces.Tuple)
        ):
            raise ValueError(
                "observation: must be an observation, got a tuple (observation, info) as reset returns it in "
                "Gymnasium; pass its first part: obs, info = env.reset()."
            )
        flat, single = rows_of(self.observation_space, observation)
        count = len(flat)
        if self._mask_dim:
            shape = (count, self._mask_dim)
            allowed = np.ones(shape, np.float32) if action_masks is None else np.asarray(action_masks, np.float32)
            flat = np.concatenate([flat, allowed.reshape(shape)], axis=1)
        elif action_masks is not None:
            raise ValueError("action_masks: the environment of this policy has no action masks; omit them.")
        size = (count, self.agent.state_dim)
        if state is None:
            recurrent_state = torch.zeros(size, device=self._device)
        else:
            recurrent_state = torch.as_tensor(np.asarray(state, dtype=np.float32), device=self._device)
            if recurrent_state.shape != size:
                raise ValueError(f"state: must have the shape {size}, got {tuple(recurrent_state.shape)}.")
        if mask is not None:
            ended = torch.as_tensor(np.asarray(mask, dtype=np.float32).reshape(-1), device=self._device)
            if len(ended) != count:
                raise ValueError(f"mask: must have {count} entries, one per observation; got {len(ended)}.")
            recurrent_state = recurrent_state * (1 - ended)[:, None]
        return torch.from_numpy(flat).to(self._device), exchange_halves(recurrent_state), single

    def _old_state(self, recurrent_state: Tensor) -> NDArray[np.float32] | None:
        return exchange_halves(recurrent_state).cpu().numpy() if self.agent.state_dim else None


def exchange_halves(recurrent_state: Tensor) -> Tensor:
    """Convert recurrent states ``[B, S]``: stable-baselines' begin with the cell state, Minerva's end with it."""
    return recurrent_state.roll(recurrent_state.shape[-1] // 2, dims=-1)


def stored_actions(space: Space[Any], actions: Any, count: int) -> NDArray[np.float32]:
    """Convert `count` actions of a space into rows ``[count, A]``, from which log-probabilities are computed.

    Raises:
        ValueError: The number of actions is not `count`.
    """
    values = np.asarray(actions, dtype=np.float32)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        values = values - np.asarray(space.start, dtype=np.float32)
    size = max(1, int(np.prod(space.shape or ())))
    if values.size != count * size:
        raise ValueError(
            f"actions: must be {count} actions of {space}, one per observation, got an array of shape {values.shape}."
        )
    return values.reshape(count, size)
