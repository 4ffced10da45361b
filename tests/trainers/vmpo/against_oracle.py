"""The oracle of V-MPO's update in the state of an agent, and their comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from minerva.trainers.vmpo.agent import VMPOAgent
from tests.objectives import oracle_vmpo


def oracle_state(agent: VMPOAgent, fields: dict[str, Any]) -> oracle_vmpo.State:
    settings = {name: value for name, value in fields.items() if name != "temperature_init"}
    return oracle_vmpo.State(
        {name: value.detach().numpy().copy() for name, value in agent.policy.named_parameters()},
        {name: parameter.detach().numpy().copy() for name, parameter in duals_of(agent).items()},
        settings=oracle_vmpo.Settings(**settings),
    )


def assert_same_as_oracle(agent: VMPOAgent, state: oracle_vmpo.State) -> None:
    for name, parameter in agent.policy.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), state.networks[name], rtol=1e-5, atol=1e-6)
    found = torch.stack(list(duals_of(agent).values()))
    np.testing.assert_allclose(found.detach().numpy(), list(state.duals.values()), rtol=1e-7)


def duals_of(agent: VMPOAgent) -> dict[str, nn.Parameter]:
    return {"eta": agent.log_temperature, **dict(agent.alphas.named_parameters())}
