from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from minerva.acceleration.applied import Acceleration
from minerva.acceleration.compiled import compiler_available
from minerva.acceleration.tree import leaves, rebuild
from minerva.trainers.vmpo import update
from minerva.trainers.vmpo.batch import Batch, make_batch
from tests.trainers.ppo.small_run import same
from tests.trainers.vmpo.poison import POISONS, poison
from tests.trainers.vmpo.small_agent import (
    learned,
    make_agent,
    make_data,
    make_discrete_agent,
    make_discrete_data,
    make_rollout,
)


@pytest.mark.skipif(
    not compiler_available() and not os.environ.get("CI"), reason="no C++ compiler is installed (Debian: g++)"
)
@pytest.mark.parametrize("case", ["continuous", "shared", "discrete"])
def test_compiled_and_plain_updates_are_the_same_algorithm(case: str) -> None:
    fields: dict[str, Any] = {"m_steps": 3, "policy_lr": 0.01, "alpha_lr": 0.01}
    if case == "discrete":
        plain, fast = (make_discrete_agent(spaces.Discrete(3), masks=True, **fields) for _ in range(2))
    else:
        plain, fast = (make_agent(**fields, shared_encoder=case == "shared") for _ in range(2))
    fast.updater.set_acceleration(Acceleration(compiled=True))
    for seed in range(3):
        batch = make_discrete_data(plain, seed=seed) if case == "discrete" else make_data(plain, seed=seed)
        one, other = plain.update(batch), fast.update(batch)
        assert one is not None and other is not None
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for name, tensor in learned(plain).items():
        torch.testing.assert_close(learned(fast)[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    before = learned(fast)
    batch["returns"][4] = 1e30
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert fast.update(batch) is None
    assert same(learned(fast), before)


class OnCPU:
    """What `CudaGraph` does, without a GPU: the same storage for inputs and outputs, call after call."""

    def __init__(self, function: Any, written: Any = ()) -> None:
        assert not written
        self._function = function
        self._in: list[Tensor] | None = None
        self._out: Any = None

    def __call__(self, *inputs: Any) -> Any:
        given = leaves(inputs)
        self._in = self._in or [leaf.clone() for leaf in given]
        for held, leaf in zip(self._in, given, strict=True):
            held.copy_(leaf)
        out = self._function(*rebuild(inputs, iter(self._in)))
        if self._out is None:
            # What is passed through is the input's storage, as in a graph.
            own = {leaf.data_ptr() for leaf in self._in}
            self._out = rebuild(out, (leaf if leaf.data_ptr() in own else leaf.clone() for leaf in leaves(out)))
        for held, leaf in zip(leaves(self._out), leaves(out), strict=True):
            held.copy_(leaf)
        return self._out


@pytest.fixture
def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minerva.acceleration.applied.CudaGraph", OnCPU)


@pytest.mark.usefixtures("graphs_on_cpu")
@pytest.mark.parametrize(
    ("fields", "recompute"), [({}, False), ({"minibatches": 4}, False), ({"topk_fraction": 1.0}, True)]
)
def test_captured_steps_hand_on_what_they_should(fields: dict[str, Any], recompute: bool) -> None:
    fields = {"m_steps": 3, "rollout_steps": 8, "num_envs": 2, "policy_lr": 0.01, **fields}
    plain, captured = (make_agent(**fields, recompute_advantages=recompute) for _ in range(2))
    captured.updater.set_acceleration(Acceleration(captured=True))
    assert isinstance(captured.updater._m_step, OnCPU)
    rollout = make_rollout(plain, 8)

    def both(batch: Batch, seed: int) -> None:
        made_of = rollout if recompute else None
        found = [
            agent.updater.learn(batch, 0.5, torch.Generator().manual_seed(seed), made_of) for agent in (plain, captured)
        ]
        assert found[0] == found[1] is not None and same(learned(plain), learned(captured))

    def data(seed: int) -> Batch:
        return plain._to_batch(make_data(plain, seed=seed))

    for seed in range(3):
        batch = make_batch(plain.policy, rollout, plain.config) if recompute else data(seed)
        both(batch, seed)
    before = learned(captured)
    if not recompute:
        batch.returns[4] = 1e30  # a step that is undone, and one after it
        with pytest.warns(RuntimeWarning, match="skipped"):
            assert captured.updater.learn(batch) is None
        assert same(learned(captured), before)
        both(data(9), 9)


@pytest.mark.usefixtures("graphs_on_cpu")
@pytest.mark.parametrize("what", POISONS)
def test_a_bad_number_of_an_early_captured_step_is_not_written_over(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(m_steps=3, rollout_steps=8, num_envs=2, recompute_advantages=True)
    rollout, before = make_rollout(agent, 8), learned(agent)
    calls = poison(what, 1, monkeypatch)
    agent.updater.set_acceleration(Acceleration(captured=True))
    batch = make_batch(agent.policy, rollout, agent.config)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert agent.updater.learn(batch, rollout=rollout) is None
    assert len(calls) == 3 and same(learned(agent), before)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_no_step_asks_what_its_numbers_are(fraction: float) -> None:
    """A graph is captured without a look at the numbers in it: these tensors have none."""
    agent = make_agent(topk_fraction=fraction, control_variate=True)
    batch, state = agent._to_batch(make_data(agent)), agent.updater.state

    def traced(function: Any, *arguments: Any) -> Any:
        step = partial(function, agent.updater.optimizers, agent.config)

        def flat(*tensors: Tensor) -> list[Tensor]:
            return leaves((step(*rebuild(arguments, iter(tensors))),))

        make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves(arguments))
        return step(*arguments)

    with torch.no_grad():
        new, weighted, _ = traced(update.e_step, state, batch)
        new, losses = traced(update.m_step, new, weighted, torch.ones(1))
        traced(update.final_metrics, state.policy.parameters, new, weighted, losses)
