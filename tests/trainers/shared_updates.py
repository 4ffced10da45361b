"""Updates on one rollout, by one process or by several that have its columns; as a program, this is one of several."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from minerva.acceleration.applied import moments
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.actor import BaseAgent, Shapes
from minerva.trainers.ppo import update as ppo_update
from minerva.trainers.ppo.agent import make_agent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.vmpo import update as vmpo_update
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.trainers.vmpo.batch import make_batch
from minerva.trainers.vmpo.config import VMPOConfig
from minerva.utils.ranks import ALONE, Ranks, join
from minerva.utils.seeding import initialization_seed
from tests.networks.samples import move_parameters
from tests.trainers.pairs import COUNT, connect

OBS, STEPS, ENVS = 3, 12, 4
BOX, CHOICES = spaces.Box(-1.0, 2.0, (2,), np.float32), spaces.Discrete(3)
Learned = dict[str, Any]
"""What an update has made: parameters and moments as vectors, and metrics."""


class Case(NamedTuple):
    """An update."""

    algorithm: str
    space: spaces.Space[Any]
    fields: dict[str, Any]
    dtype: torch.dtype = torch.float64
    spoil: Callable[[RolloutBuffer], None] = lambda rollout: None


def _poison(rollout: RolloutBuffer) -> None:
    rollout.rewards[5, 3] = torch.nan


def _only_restarts(rollout: RolloutBuffer) -> None:
    """Leave the last rank of two hardly a real row."""
    rollout.restarting[:, 2:] = 1
    rollout.restarting[0, 2] = 0


RECURRENT = {"lstm_units": 4}
PPO = {"minibatch_size": 20, "update_epochs": 3}  # the last minibatch is a short one
VMPO = {"minibatches": 4, "m_steps": 3, "control_variate": True}
SINGLE = torch.float32
CASES = {
    "a gradient step of PPO": Case("ppo", BOX, {"minibatch_size": 48, "update_epochs": 1}, SINGLE),
    "a gradient step of recurrent PPO": Case(
        "ppo", BOX, {"minibatch_size": 48, "update_epochs": 1, **RECURRENT}, SINGLE
    ),
    "a gradient step of V-MPO": Case("vmpo", BOX, {}, SINGLE),
    "a gradient step of recurrent V-MPO": Case("vmpo", BOX, RECURRENT, SINGLE),
    "PPO": Case("ppo", BOX, {**PPO, "recompute_advantages": True, "target_kl": None}),
    "PPO that stops early": Case("ppo", BOX, {**PPO, "policy_lr": 0.05, "target_kl": 0.05, "update_epochs": 8}),
    "PPO with other options": Case("ppo", CHOICES, {**PPO, "norm_adv": False, "clip_vloss": False, "ent_coef": 0.1}),
    "PPO with minibatches of one rank": Case("ppo", BOX, {**PPO, "minibatch_size": 4}, spoil=_only_restarts),
    "PPO with a reward that is not a number": Case("ppo", BOX, {**PPO, "minibatch_size": 8}, spoil=_poison),
    "recurrent PPO": Case("ppo", BOX, {"minibatch_size": 24, "update_epochs": 3, **RECURRENT}),
    "V-MPO": Case("vmpo", BOX, {**VMPO, "recompute_advantages": True, "advantage_estimator": "gae"}),
    "V-MPO with all samples": Case("vmpo", CHOICES, {**VMPO, "topk_fraction": 1.0, "normalize_advantages": False}),
    "V-MPO with minibatches of one rank": Case("vmpo", BOX, {**VMPO, "minibatches": 12}, spoil=_only_restarts),
    "V-MPO with a reward that is not a number": Case("vmpo", BOX, VMPO, spoil=_poison),
    "recurrent V-MPO": Case("vmpo", BOX, {"m_steps": 3, **RECURRENT}),
}


def make_rollout(case: Case, agent: BaseAgent) -> RolloutBuffer:
    """A rollout of all environments, with ends of both kinds, in the precision of the case."""
    generator = torch.Generator().manual_seed(5)
    head, width = agent.policy.head, agent.state_dim
    rollout = RolloutBuffer(STEPS, ENVS, OBS, head.action_dim, torch.device("cpu"), width)
    rollout.obs = torch.randn(STEPS + 1, ENVS, OBS, generator=generator)
    noise = torch.randn(STEPS, ENVS, head.action_dim, generator=generator)
    rollout.actions = noise.tanh() * 1.4 + 0.5 if case.space is BOX else (noise > 0).float() + (noise > 1).float()
    rollout.rewards, rollout.position = torch.randn(STEPS, ENVS, generator=generator), STEPS
    rollout.first_recurrent_state = torch.randn(ENVS, width, generator=generator)
    for t, env in ((3, 0), (6, 2), (9, 3)):
        (rollout.terminated if env else rollout.truncated)[t, env] = 1
        rollout.restarting[t + 1, env] = rollout.episode_starts[t + 2, env] = 1
    case.spoil(rollout)
    for name in _TENSORS:
        setattr(rollout, name, getattr(rollout, name).to(case.dtype))
    return rollout


_TENSORS = (
    "obs", "actions", "rewards", "terminated", "truncated", "restarting", "episode_starts", "first_recurrent_state"
)  # fmt: skip


def columns(rollout: RolloutBuffer, ranks: Ranks) -> RolloutBuffer:
    """The part of a rollout that one of several processes has collected."""
    n = ENVS // ranks.count
    own = RolloutBuffer(
        STEPS, n, OBS, rollout.actions.shape[-1], torch.device("cpu"), rollout.recurrent_state.shape[-1]
    )
    own.position = STEPS
    for name in _TENSORS:
        part = getattr(rollout, name)
        chosen = slice(ranks.rank * n, (ranks.rank + 1) * n)
        setattr(own, name, part[chosen] if name == "first_recurrent_state" else part[:, chosen])
    return own


def shuffler(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + rank)


def composed(orders: list[Tensor], parts: int) -> list[Tensor]:
    """Minibatches of a whole rollout, as rows, to which each process contributes as it has shuffled its own rows."""
    n = ENVS // COUNT
    whole = [own // n * ENVS + rank * n + own % n for rank, own in enumerate(orders)]
    return [torch.cat(chunks) for chunks in zip(*(torch.split(order, parts) for order in whole), strict=True)]


def learn(case: Case, ranks: Ranks) -> Learned:
    """Make the update, as one of several processes, or as one with the minibatches of `COUNT` of them."""
    fields = {"rollout_steps": STEPS, "num_envs": ENVS, "compile": False, **case.fields}
    return (_learn_ppo if case.algorithm == "ppo" else _learn_vmpo)(case, fields, ranks)


def _learn_ppo(case: Case, fields: dict[str, Any], ranks: Ranks) -> Learned:
    sizes: dict[str, Any] = {"policy_layer_sizes": (8,), "critic_layer_sizes": (8,)}
    config = PPOConfig(**sizes, **fields)
    with initialization_seed(3):
        agent = make_agent(config, Shapes(spaces.Box(-1, 1, (OBS,)), case.space, OBS)).to(case.dtype)
        move_parameters(agent.policy, 0.2)
    updater = ppo_update.Updater(agent.policy, config)
    rollout = columns(make_rollout(case, agent), ranks)
    with pytest.MonkeyPatch.context() as patch:
        if ranks.count > 1:
            updater.set_ranks(ranks)
        else:
            shufflers = [shuffler(rank) for rank in range(COUNT)]
            patch.setattr(ppo_update, "minibatches", partial(_minibatches, shufflers))
        result = updater.learn(rollout, 1.0, shuffler(ranks.rank))
    counts = {"gradient_steps": result.gradient_steps, "skipped": result.skipped}
    return {**_learned(updater), "metrics": {**result.metrics, **counts}}


def _minibatches(
    shufflers: list[torch.Generator], batch: ppo_update.Batch, config: PPOConfig, _: torch.Generator, real: Tensor
) -> Iterator[ppo_update.Batch]:
    if batch.weights.dim() == 2:
        n, size = ENVS // COUNT, config.minibatch_size // STEPS // COUNT
        orders = [torch.randperm(n, generator=one) + rank * n for rank, one in enumerate(shufflers)]
        for chosen in (torch.cat(parts) for parts in zip(*(torch.split(one, size) for one in orders), strict=True)):
            if real[:, chosen].any():
                rows = [part[:, chosen] for part in batch[:-1]]
                yield ppo_update.Batch(*[*rows, batch.recurrent_state[chosen]])
        return
    orders = [torch.randperm(STEPS * ENVS // COUNT, generator=one) for one in shufflers]
    for chosen in composed(orders, config.minibatch_size // COUNT):
        if real.flatten()[chosen].any():
            yield ppo_update.Batch(*(part[chosen] for part in batch))


def _learn_vmpo(case: Case, fields: dict[str, Any], ranks: Ranks) -> Learned:
    sizes: dict[str, Any] = {"policy_layer_sizes": (8, 8), "value_layer_sizes": (8,)}
    config = VMPOConfig(**sizes, **fields)
    with initialization_seed(3):
        given: dict[str, Any] = {"action_space": case.space, "observation_space": spaces.Box(-1, 1, (OBS,))}
        width = 2 if case.space is BOX else 1
        agent = VMPOAgent(OBS, width, config=config, **given).to(case.dtype)
        move_parameters(agent.policy, 0.2)
    # In another precision there are other parameters: what learns them is made again.
    updater = vmpo_update.Updater(agent.policy, agent.alphas, agent.temperature, config)
    rollout = columns(make_rollout(case, agent), ranks)
    batch = make_batch(agent.policy, rollout, config)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        if ranks.count > 1:
            updater.set_ranks(ranks)
        elif config.minibatches > 1:
            shufflers = [shuffler(rank) for rank in range(COUNT)]
            patch.setattr(torch, "randperm", _whole_order(shufflers, config, torch.randperm))
        metrics = updater.learn(batch, 1.0, shuffler(ranks.rank), rollout)
    return {**_learned(updater), "metrics": {**(metrics or {}), "skipped": updater.skipped}}


def _whole_order(
    shufflers: list[torch.Generator], config: VMPOConfig, randperm: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    rows = STEPS * ENVS // COUNT

    def whole_order(count: int, **_: Any) -> Tensor:
        return torch.cat(composed([randperm(rows, generator=one) for one in shufflers], rows // config.minibatches))

    return whole_order


def _learned(updater: ppo_update.Updater | vmpo_update.Updater) -> Learned:
    parameters = {name: part.parameters.clone() for name, part in updater.state._asdict().items()}
    return {"parameters": parameters, "moments": moments(updater.state)}


if __name__ == "__main__":
    rank, folder, _ = connect()
    ranks = join(torch.device("cpu"))
    assert (ranks.rank, ranks.count) == (rank, COUNT) and ranks is not ALONE
    torch.save({name: learn(case, ranks) for name, case in CASES.items()}, folder / f"{rank}.pt")
