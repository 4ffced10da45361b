"""What is captured as a graph on a GPU is the same algorithm as what runs one operation after the other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import minerva
from minerva.trainers.accelerate import Captured
from minerva.trainers.flat import Twin
from minerva.trainers.gradient_step import FlatStep, PlainStep
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.vmpo.trainer import VMPOTrainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")


class Pictures(gymnasium.Env[Any, Any]):
    """Shows a bar of 84×84 pixels that is to be pushed left or right."""

    observation_space = spaces.Box(0, 255, (84, 84, 2), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(10, 70)), 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, self.time = int(np.clip(self.place + 4 * (int(action) - 1), 0, 80)), self.time + 1
        return self._picture(), self.place / 80, False, self.time == 20, {}

    def _picture(self) -> Any:
        picture = np.zeros((84, 84, 2), np.uint8)
        picture[:, self.place : self.place + 4] = 255
        return picture


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in trainer.agent.state_dict().items()}


CASES: list[tuple[type[PPOTrainer] | type[VMPOTrainer], Any, dict[str, Any]]] = [
    (PPOTrainer, "Pendulum-v1", {"num_envs": 4, "rollout_steps": 16, "minibatch_size": 24, "update_epochs": 3}),
    (PPOTrainer, "CartPole-v1", {"num_envs": 4, "rollout_steps": 16, "minibatch_size": 32, "shared_encoder": True}),
    (PPOTrainer, Pictures, {"num_envs": 4, "rollout_steps": 8, "minibatch_size": 16, "update_epochs": 2}),
    (PPOTrainer, "Pendulum-v1", {"num_envs": 4, "rollout_steps": 16, "minibatch_size": 32, "lstm_units": 8}),
    (VMPOTrainer, "Pendulum-v1", {"num_envs": 4, "rollout_steps": 16, "m_steps": 3}),
    (VMPOTrainer, "CartPole-v1", {"num_envs": 4, "rollout_steps": 16, "m_steps": 2, "minibatches": 4}),
    (VMPOTrainer, "Pendulum-v1", {"num_envs": 4, "rollout_steps": 16, "m_steps": 2, "recompute_advantages": True}),
    (VMPOTrainer, "Pendulum-v1", {"num_envs": 4, "rollout_steps": 16, "lstm_units": 8}),
]


@pytest.mark.parametrize(("kind", "env", "fields"), CASES)
def test_a_run_on_a_gpu_is_the_run_on_a_cpu(
    kind: Any, env: Any, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One update: from then on rounding makes other actions, other episodes.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which an LSTM there would round to
    batch = fields["num_envs"] * fields["rollout_steps"]
    runs = []
    for device in ("cpu", "cuda"):
        trainer = kind(env, 3, device, compile=False, eval_episodes=0, console=False, **fields)
        acts_on_gpu = trainer.collector.rollout.obs.device.type == "cuda"
        assert acts_on_gpu == (device == "cuda" and env is Pictures)
        trainer.train(batch, tmp_path / device)
        runs.append(weights(trainer))
        trainer.close()
    if env is Pictures:  # where a GPU draws the noise the actions are others
        return
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(("kind", "env", "fields"), CASES)
def test_a_run_on_a_gpu_goes_on_where_it_was_left(kind: Any, env: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    batch = fields["num_envs"] * fields["rollout_steps"]
    common = {"compile": False, "eval_episodes": 0, "console": False, **fields}
    whole = kind(env, 3, "cuda", **common)
    whole.train(batch * 4, tmp_path / "whole")
    first = kind(env, 3, "cuda", **common)
    first.train(batch * 4, tmp_path / "parts", lambda trainer: trainer.env_steps < batch * 2 + 5)
    rest = kind(env, 3, "cuda", **common)
    rest.load(tmp_path / "parts")
    rest.train(batch * 4)
    for name, value in weights(whole).items():
        assert torch.equal(weights(rest)[name], value), name
    for trainer in (whole, first, rest):
        trainer.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_of_mpo_on_a_gpu_goes_on_where_it_was_left(overlap: bool, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "overlap": overlap, "update_after": 20, "batch_size": 16, "action_samples": 4, "policy_layer_sizes": (16,),
        "critic_layer_sizes": (16,), "eval_episodes": 0, "console": False, "compile": "auto",
    }  # fmt: skip
    runs = []
    for stop in (1000, 31):
        trainer = MPOTrainer("Pendulum-v1", 3, "cuda", **fields)
        folder = tmp_path / str(stop)

        def goes_on(trainer: Any, stop: int = stop) -> bool:
            return bool(trainer.env_steps < stop)

        trainer.train(60, out_dir=folder, callbacks=goes_on)
        if stop < 60:
            trainer.close()
            trainer = MPOTrainer("Pendulum-v1", 3, "cuda", **fields)
            trainer.load(folder)
            trainer.train(60)
        assert trainer.acceleration == "captured" and trainer.updates == 40
        runs.append(weights(trainer))
        trainer.close()
    for name, value in runs[0].items():
        assert torch.equal(runs[1][name], value), name


def test_captured_gradient_steps_are_plain_ones() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1, device="cuda")
    other = copy.deepcopy(module)

    def loss(net: Any, minibatch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        error = (net(minibatch[0]).squeeze(-1) - minibatch[1]) ** 2
        return error.mean(), error.max()

    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-5) for net in (module, other)]
    plain = PlainStep(module, optimizers[0], loss, 0.5)
    fast = FlatStep(other, optimizers[1], loss, 0.5, capture_it=True)
    for epoch in range(2):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + epoch)
        plain.begin()
        fast.begin()
        kept = []
        for _ in range(5):
            x = torch.randn(6, 3, device="cuda")
            y = 5 * x.sum(-1)
            one, two = plain((x, y)), fast((x, y))
            kept.append((one, two))
        for one, two in kept:  # a later step does not write over what an earlier one gave
            assert bool(one.applied) and bool(two.applied)
            torch.testing.assert_close(one.losses, two.losses, rtol=1e-4, atol=1e-5)
        y[1] = torch.nan
        assert not fast((x, y)).applied
        plain.end()
        fast.end()
        torch.testing.assert_close(module.weight, other.weight, rtol=1e-4, atol=1e-6)


def test_the_parts_that_are_captured_are_captured(tmp_path: Path) -> None:
    for kind, env, fields in CASES:
        trainer: Any = kind(env, 3, "cuda", eval_episodes=0, console=False, compile=False, **fields)
        trainer.train(fields["num_envs"] * fields["rollout_steps"], tmp_path / f"{kind.__name__}{len(str(fields))}")
        recurrent = "lstm_units" in fields
        if kind is PPOTrainer:
            assert isinstance(trainer._gradient_step, PlainStep if recurrent else FlatStep)
        else:
            assert all(isinstance(step, Captured) != recurrent for step in trainer.agent._steps)
        trainer.close()


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_a_large_policy_acts_as_a_graph_and_knows_what_was_learned(env: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"num_envs": 3, "rollout_steps": 8, "m_steps": 2, "policy_layer_sizes": (600, 600)}
    trainer = VMPOTrainer(env, 3, "cuda", eval_episodes=0, console=False, **fields)
    twin = torch.Generator("cuda").manual_seed(5)
    for learned in (False, True):
        if learned:
            trainer.train(24, tmp_path / "run")
        trainer.action_noise.manual_seed(5)
        twin.manual_seed(5)
        given: Any = trainer.collector.rollout.to_act_on()
        obs, state, starts = given
        for _ in range(2):
            obs = torch.randn_like(obs)
            found, _ = trainer.collector._act(obs, state, starts)
            expected, _ = trainer.agent.step(obs, state, starts, twin)
            assert found.device.type == "cuda"
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    trainer.close()


def test_what_acts_on_the_cpu_knows_what_was_learned() -> None:
    module = torch.nn.Linear(3, 2, device="cuda")
    twin = Twin(module)
    assert twin.module.weight.device.type == "cpu" and Twin(module, wanted=False).module is module
    with torch.no_grad():
        module.weight.add_(1.0)
    assert not torch.equal(twin.module.weight, module.weight.cpu())
    twin.refresh()
    assert torch.equal(twin.module.weight, module.weight.cpu()) and torch.equal(twin.module.bias, module.bias.cpu())


def test_a_captured_function_takes_what_it_is_given_each_time() -> None:
    captured = Captured(lambda x, y: x * y, ())
    for factor in (2.0, 3.0):
        x = torch.arange(4.0, device="cuda")
        assert captured(x, torch.full((4,), factor, device="cuda")).tolist() == [0, factor, 2 * factor, 3 * factor]


def test_an_old_graph_that_is_thrown_away_meanwhile_does_not_break_off_a_capture() -> None:
    x = torch.ones(4, device="cuda")

    def one_in_a_circle() -> list[Any]:
        captured = Captured(lambda x: x + 1, ())
        captured(x)
        circle: list[Any] = [captured]
        circle.append(circle)
        return circle

    held, calls = [one_in_a_circle()], 0

    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:  # three have warmed it up: this one is captured
            held.clear()
            assert len([[] for _ in range(200_000)]) == 200_000  # enough for Python to look for garbage
        return x * 2

    assert Captured(function, ())(x).tolist() == [2, 2, 2, 2] and calls == 4


def test_a_run_on_a_gpu_is_loaded_on_a_cpu(tmp_path: Path) -> None:
    trainer = PPOTrainer("CartPole-v1", 3, "cuda", eval_episodes=0, console=False, rollout_steps=64)
    trainer.train(128, tmp_path / "run")
    policy = minerva.load(tmp_path / "run", device="cpu")
    obs = np.zeros((2, 4), dtype=np.float32)
    assert policy.act(obs).shape == (2,)
    assert (policy.act(obs) == minerva.load(tmp_path / "run", device="cuda").act(obs)).all()
    trainer.close()
