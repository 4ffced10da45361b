"""What is captured as a graph on a GPU is the same algorithm as what runs one operation after the other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import minerva
from minerva.acceleration.applied import Acceleration, AppliedUpdate
from minerva.acceleration.cuda_graph import CudaGraph
from minerva.acceleration.flat import CpuCopy, FlatModule
from minerva.acceleration.learnable import Learnable, Optimizer, minimize
from minerva.acceleration.tree import leaves
from minerva.callbacks import Callback
from minerva.trainers.mpo.trainer import MPOTrainer
from minerva.trainers.ppo import update as ppo
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.vmpo import update as vmpo
from minerva.trainers.vmpo.batch import make_batch as make_vmpo_batch
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
def test_a_run_on_a_gpu_is_the_run_on_a_cpu(kind: Any, env: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    # One update: from then on rounding makes other actions, other episodes.
    batch = fields["num_envs"] * fields["rollout_steps"]
    runs = []
    for device in ("cpu", "cuda"):
        trainer = kind(env, 3, device, eval_episodes=0, console=False, **fields)
        acts_on_gpu = trainer.collector.rollout.obs.device.type == "cuda"
        assert acts_on_gpu == (device == "cuda" and env is Pictures)
        trainer.train(batch, tmp_path / device)
        runs.append(weights(trainer))
        trainer.close()
    if env is Pictures:  # where a GPU draws the noise the actions are others
        return
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=1e-3, atol=2e-5, msg=name)


class FirstRatios(Callback):
    """Note how far the first minibatches are from ratio 1, before anything is learned from a rollout."""

    def __init__(self) -> None:
        self.log_ratios: list[float] = []

    def on_rollout_end(self, trainer: Any) -> None:
        rollout, policy, config = trainer.collector.rollout.on(trainer.device), trainer.agent.policy, trainer.config
        real = (rollout.restarting == 0).cpu()
        with torch.no_grad():
            if isinstance(trainer, VMPOTrainer):
                rows = make_vmpo_batch(policy, rollout, config)
                found, _ = vmpo.evaluate(policy, rows.obs, rows.recurrent_state, rows.episode_starts)
                log_probs, old = (policy.head.log_prob(params, rows.actions) for params in (found, rows.old))
            else:
                batch = ppo.make_batch(policy, rollout, config)
                first = next(ppo.minibatches(batch, config, torch.Generator().manual_seed(0), real))
                params = policy.forward_sequence(first.obs, first.recurrent_state, first.episode_starts).params
                log_probs, old = policy.head.log_prob(params, first.actions), first.log_probs
        self.log_ratios.append((log_probs - old).abs().max().item())


@pytest.mark.parametrize(("kind", "env", "fields"), CASES)
def test_the_first_ratio_is_one(kind: Any, env: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    # Where cuDNN computes: its TF32 would round differently for each number of rows.
    cudnn: Any = torch.backends.cudnn
    precision, ratios = cudnn.conv.fp32_precision, FirstRatios()
    batch = fields["num_envs"] * fields["rollout_steps"]
    trainer = kind(env, 3, "cuda", eval_episodes=0, console=False, **fields)
    trainer.train(batch * 6, tmp_path / "run", ratios)
    trainer.close()
    assert len(ratios.log_ratios) == 6 and max(ratios.log_ratios) < 1e-5, ratios.log_ratios
    assert cudnn.conv.fp32_precision == precision


@pytest.mark.parametrize(("kind", "env", "fields"), CASES)
def test_a_run_on_a_gpu_goes_on_where_it_was_left(kind: Any, env: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    batch = fields["num_envs"] * fields["rollout_steps"]
    common = {"eval_episodes": 0, "console": False, **fields}
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
        assert trainer.acceleration == Acceleration(captured=True) and trainer.updates == 40
        runs.append(weights(trainer))
        trainer.close()
    for name, value in runs[0].items():
        assert torch.equal(runs[1][name], value), name


class LinearState(NamedTuple):
    net: Learnable


def squared_error(net: nn.Linear, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    error = (net(x).squeeze(-1) - y) ** 2
    return error.mean(), (error.mean(), error.max())


def test_captured_gradient_steps_are_plain_ones() -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 1, device="cuda")
    states, steps = [], []
    for acceleration in (Acceleration(), Acceleration(captured=True)):
        flat = FlatModule(copy.deepcopy(module))
        optimizer = Optimizer(flat, 0.01, max_grad_norm=0.5)

        def update(
            state: LinearState, x: Tensor, y: Tensor, rate: Tensor, optimizer: Optimizer[nn.Linear] = optimizer
        ) -> tuple[LinearState, tuple[Tensor, Tensor]]:
            net, losses = minimize(squared_error, state.net, optimizer.scaled(rate), x, y)
            return LinearState(net), losses

        states.append(LinearState(Learnable.start(flat.vector)))
        steps.append(AppliedUpdate(update, states[-1], acceleration))
    plain, captured = steps
    for k in range(10):
        x = torch.randn(6, 3, device="cuda")
        inputs = x, 5 * x.sum(-1), torch.tensor(1 / (1 + k // 5), device="cuda")
        (one, expected), (two, losses) = plain(*inputs), captured(*inputs)
        assert bool(one) and bool(two)
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(leaves(states[1]), leaves(states[0]), rtol=1e-4, atol=1e-6)
    before = [tensor.clone() for tensor in leaves(states[1])]
    finite, _ = captured(inputs[0], inputs[1] * torch.nan, inputs[2])
    assert not finite and all(torch.equal(a, b) for a, b in zip(leaves(states[1]), before, strict=True))


def test_updates_are_captured_where_they_are_the_same_every_time(tmp_path: Path) -> None:
    for compiled in ("auto", False):
        for k, (kind, env, fields) in enumerate(CASES):
            trainer: Any = kind(env, 3, "cuda", eval_episodes=0, console=False, compile=compiled, **fields)
            trainer.train(fields["num_envs"] * fields["rollout_steps"], tmp_path / f"{compiled}{k}")
            static = "lstm_units" not in fields
            assert trainer.acceleration == Acceleration(captured=static and compiled == "auto")
            trainer.close()


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_a_large_policy_acts_as_a_graph_and_knows_what_was_learned(env: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"num_envs": 3, "rollout_steps": 8, "m_steps": 2, "policy_layer_sizes": (600, 600)}
    trainer = VMPOTrainer(env, 3, "cuda", eval_episodes=0, console=False, **fields)
    noise, policy = torch.Generator("cuda").manual_seed(5), trainer.agent.policy
    for learned in (False, True):
        if learned:
            trainer.train(24, tmp_path / "run")
        trainer.actor.generator.manual_seed(5)
        noise.manual_seed(5)
        obs, state, starts = trainer.collector.rollout.current()
        for _ in range(2):
            obs = torch.randn_like(torch.as_tensor(obs))
            found, _, _ = trainer.actor(obs, state, starts)
            with torch.no_grad():
                params, _ = policy.policy_step(obs, obs[:, :0])
                expected = policy.head.sample(params, policy.head.draw_noise((len(obs),), noise, params[0]))
            assert found.device.type == "cuda"
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    trainer.close()


def test_what_acts_on_the_cpu_knows_what_was_learned() -> None:
    module = nn.Linear(3, 2, device="cuda")
    copied = CpuCopy(module)
    assert copied.module.weight.device.type == "cpu" and CpuCopy(module, wanted=False).module is module
    with torch.no_grad():
        module.weight.add_(1.0)
    copied.refresh()  # nobody has said that it is outdated
    assert not torch.equal(copied.module.weight, module.weight.cpu())
    copied.invalidate()
    copied.refresh()
    assert torch.equal(copied.module.weight, module.weight.cpu()) and torch.equal(copied.module.bias, module.bias.cpu())


@pytest.mark.parametrize("kind", [MPOTrainer, PPOTrainer])
def test_a_run_starts_with_the_weights_that_the_agent_has_then(kind: Any, tmp_path: Path) -> None:
    trainer = kind("Pendulum-v1", 3, "cuda", eval_episodes=0, console=False)
    learned, acting = trainer.agent.policy, trainer.actor._copy.module
    assert acting is not learned
    with torch.no_grad():
        next(learned.parameters()).add_(1.0)  # loaded from elsewhere, say
    trainer.train(2**14, out_dir=tmp_path / "run", callbacks=lambda trainer: False)
    trainer.close()
    for parameter, copied in zip(learned.parameters(), acting.parameters(), strict=True):
        assert torch.equal(copied, parameter.cpu())


def test_a_captured_function_takes_what_it_is_given_each_time() -> None:
    captured = CudaGraph(lambda x, y: x * y)
    for factor in (2.0, 3.0):
        x = torch.arange(4.0, device="cuda")
        assert captured(x, torch.full((4,), factor, device="cuda")).tolist() == [0, factor, 2 * factor, 3 * factor]


def test_an_old_graph_that_is_thrown_away_meanwhile_does_not_break_off_a_capture() -> None:
    x = torch.ones(4, device="cuda")

    def one_in_a_circle() -> list[Any]:
        captured = CudaGraph(lambda x: x + 1)
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

    assert CudaGraph(function)(x).tolist() == [2, 2, 2, 2] and calls == 4


def test_a_run_on_a_gpu_is_loaded_on_a_cpu(tmp_path: Path) -> None:
    trainer = PPOTrainer("CartPole-v1", 3, "cuda", eval_episodes=0, console=False, rollout_steps=64)
    trainer.train(128, tmp_path / "run")
    policy = minerva.load(tmp_path / "run", device="cpu")
    obs = np.zeros((2, 4), dtype=np.float32)
    assert policy.act(obs).shape == (2,)
    assert (policy.act(obs) == minerva.load(tmp_path / "run", device="cuda").act(obs)).all()
    trainer.close()
