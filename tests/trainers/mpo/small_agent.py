"""A tiny agent, batches for it, and the oracle that it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minerva.trainers.mpo.agent import MPOAgent
from minerva.trainers.mpo.update import Batch, SequenceBatch
from tests.networks.samples import move_parameters
from tests.trainers.mpo.oracle_mpo_update import Oracle

OBS, ACT, ROWS, SAMPLES, STEPS = 3, 2, 5, 6, 4
LOW, HIGH = np.array([-0.75, -0.5]), np.array([0.5, 1.0])
NETWORKS = ("policy", "policy_target", "q", "q_target")
METRICS = {
    "loss/q", "loss/policy", "loss/dual_eta", "loss/dual", "kl/q_pi", "kl/mean", "kl/std", "eta", "alpha_mean",
    "alpha_std", "lambda", "q/min", "q/max", "pi/std_min", "pi/std_max", "entropy", "train/param_delta",
}  # fmt: skip

Arrays = dict[str, NDArray[Any]]

# Far from the defaults, all rates different, and multipliers that matter.
SETTINGS: dict[str, Any] = {
    "policy_lr": 0.02, "q_lr": 0.03, "temperature_lr": 0.05, "lambda_lr": 0.04, "gamma": 0.9, "kl_epsilon": 0.2,
    "mstep_kl_epsilon": 0.03, "temperature_init": 0.2, "init_log_alpha_mean": 0.5, "init_log_alpha_stddev": -0.5,
    "action_samples": SAMPLES,
}  # fmt: skip
RETRACE: dict[str, Any] = {
    "use_retrace": True, "retrace_steps": STEPS, "retrace_mc_actions": 3, "retrace_lambda": 0.8,
}  # fmt: skip


def make_agent(seed: int = 0, **fields: Any) -> MPOAgent:
    torch.manual_seed(seed)
    agent = MPOAgent(OBS, ACT, LOW, HIGH, "cpu", (8, 5), (7, 6), **{**SETTINGS, **fields})
    # Away from the start, and targets that differ: every part of the networks then matters.
    for name in NETWORKS:
        move_parameters(getattr(agent, name), 0.2)
    return agent


def make_oracle(agent: MPOAgent, **fields: Any) -> Oracle:
    networks = {name: list(getattr(agent, name).parameters()) for name in NETWORKS}
    return Oracle(networks, torch.from_numpy(LOW), torch.from_numpy(HIGH), {**SETTINGS, **fields})


def transitions(seed: int = 0, rows: int = ROWS) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(rows, OBS)),
        "actions_exec": rng.normal(size=(rows, ACT)),  # some outside the bounds
        "rewards": rng.normal(size=(rows, 1)),
        "dones": (np.arange(rows) % 3 == 1).astype(float)[:, None],
        "next_obs": rng.normal(size=(rows, OBS)),
    }


def n_step_transitions(seed: int = 0) -> Arrays:
    batch = transitions(seed)
    del batch["dones"]
    return {**batch, "discounts": np.array([0.9**3, 0.9, 0.0, 0.9**2, 0.9**3])[:, None]}


def sequences(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    dones, ended = np.zeros((ROWS, STEPS, 1)), np.zeros((ROWS, STEPS, 1))
    dones[1, 1] = dones[3, 0] = dones[4, 3] = 1
    ended[2, 2:] = ended[1, 1:] = ended[3, 0:] = ended[4, 3] = 1  # row 2 was truncated
    return {
        "obs": rng.normal(size=(ROWS, STEPS, OBS)),
        "actions_exec": rng.normal(size=(ROWS, STEPS, ACT)),
        "actions_raw": rng.normal(size=(ROWS, STEPS, ACT)),
        "behaviour_logp": rng.normal(size=(ROWS, STEPS, 1)) - 5,  # ratios on both sides of 1
        "rewards": rng.normal(size=(ROWS, STEPS, 1)),
        "dones": dones,
        "ended": ended,
        "next_obs": rng.normal(size=(ROWS, STEPS, OBS)),
    }


def oracle_batch(batch: Arrays, gamma: float) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
    flat = {name: tensors[name].squeeze(-1) for name in tensors.keys() & {"rewards", "behaviour_logp", "ended"}}
    result = {**tensors, **flat, "actions": tensors["actions_exec"]}
    if "behaviour_logp" in batch:
        return {**result, "terminated": tensors["dones"].squeeze(-1)}
    discounts = tensors["discounts"] if "discounts" in batch else gamma * (1 - tensors["dones"])
    return {**result, "discounts": discounts.squeeze(-1)}


def agent_batch(batch: dict[str, Tensor]) -> Batch | SequenceBatch:
    kind = SequenceBatch if "behaviour_logp" in batch else Batch
    return kind(*(batch[name] for name in kind._fields))


def duals_of(agent: MPOAgent) -> dict[str, Tensor]:
    return {
        "temperature": agent.log_temperature,
        "alpha_mean": agent.log_alpha_mean,
        "alpha_stddev": agent.log_alpha_stddev,
        "penalty_temperature": agent.duals.get_parameter("penalty_temperature"),
    }


def assert_same_as_oracle(agent: MPOAgent, oracle: Oracle, atol: float) -> None:
    for name in NETWORKS:
        found = torch.cat([parameter.detach().reshape(-1) for parameter in getattr(agent, name).parameters()])
        expected = torch.cat([tensor.detach().reshape(-1) for tensor in oracle.networks[name]])
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol, msg=lambda text: f"{name}: {text}")  # noqa: B023
    for name, dual in duals_of(agent).items():
        torch.testing.assert_close(dual.detach().double(), oracle.duals[name].detach(), rtol=1e-6, atol=atol)


def state_of(agent: MPOAgent) -> dict[str, Tensor]:
    state = {name: value.clone() for name, value in agent.state_dict().items()}
    return {**state, **{name: value for name, value in agent.optimizer_state().items() if name != "skipped"}}
