"""The one-file implementations: short, on their own, equal to the package's updates, and able to learn."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from minerva.annotate import examine
from minerva.environments import RewardNormalizer
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.mpo.agent import MPOAgent
from minerva.trainers.ppo.agent import Agent as PPOAgent
from minerva.trainers.ppo.config import PPOConfig
from minerva.trainers.ppo.update import Updater
from minerva.trainers.vmpo.agent import VMPOAgent
from minerva.utils.running_norm import RunningNorm

FOLDER = Path(__file__).parent.parent.parent / "examples" / "one_file"
NAMES = ("ppo", "mpo", "vmpo")
OBS_DIM, ACT_DIM, UNITS = 3, 2, 16


def load(name: str) -> Any:
    module = sys.modules.get(f"one_file_{name}")
    if module is None:
        spec = importlib.util.spec_from_file_location(f"one_file_{name}", FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[f"one_file_{name}"] = importlib.util.module_from_spec(spec)  # dataclasses look it up
        spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_random_state() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        yield


def perturb(module: nn.Module) -> None:
    """Move every weight, so that no bias is 0 and no head is tiny."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)


def assert_equal_weights(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        difference = (value - theirs[name]).abs() - 1e-4 * theirs[name].abs()
        assert difference.max() < 1e-6, f"{name}: {value} is not {theirs[name]}"


# The same updates as the package's


def random_rollout() -> dict[str, Tensor]:
    """Random steps [T, N], with all kinds of ends; the step after an end restarts."""
    steps, num_envs = 32, 4
    ends = torch.rand(steps, num_envs)
    restarting = torch.zeros(steps, num_envs)
    for t in range(1, steps):
        ends[t][ends[t - 1] < 0.2] = 1  # no episode of no steps
        restarting[t] = (ends[t - 1] < 0.2).float()
    assert restarting.sum() > 10
    return {
        "obs": torch.randn(steps + 1, num_envs, OBS_DIM),
        "actions": torch.randn(steps, num_envs, ACT_DIM),
        "rewards": torch.randn(steps, num_envs),
        "terminated": (ends < 0.1).float(),
        "truncated": ((ends >= 0.1) & (ends < 0.2)).float(),
        "restarting": restarting,
    }


def real_ppo_update(agent: PPOAgent, rollout: dict[str, Tensor], config: PPOConfig, seed: int) -> dict[str, Tensor]:
    """Make the package's first update on a rollout; return the weights after it."""
    steps, num_envs = rollout["rewards"].shape
    buffer = RolloutBuffer(steps, num_envs, OBS_DIM, ACT_DIM, torch.device("cpu"))
    for name, part in rollout.items():
        getattr(buffer, name).copy_(part)
    buffer.position = steps
    Updater(agent.policy, config).learn(buffer, 1.0, torch.Generator().manual_seed(seed))
    return ppo_weights(agent)


def ppo_weights(agent: PPOAgent) -> dict[str, Tensor]:
    """Return the weights by the names of the one-file agent."""
    networks = nn.ModuleDict({"actor_mean": agent.actor_mean, "critic": agent.critic})
    return {**networks.state_dict(), "actor_logstd": agent.actor_logstd.detach()}


@pytest.mark.parametrize("target_kl", [10.0, 1e-6])  # never, and after the first epoch
def test_ppo_updates_as_the_package_does(target_kl: float) -> None:
    ppo = load("ppo")
    rollout = random_rollout()
    hp = ppo.Hyperparameters(hidden_units=UNITS, ent_coef=0.01, update_epochs=3, minibatch_size=40, target_kl=target_kl)
    steps, num_envs = rollout["rewards"].shape
    config = PPOConfig(
        rollout_steps=steps, num_envs=num_envs, ent_coef=0.01, update_epochs=3, minibatch_size=40, target_kl=target_kl
    )
    real = PPOAgent(OBS_DIM, ACT_DIM, (UNITS, UNITS), (UNITS, UNITS), normalize_obs=False)
    perturb(real)
    agent = ppo.Agent(OBS_DIM, ACT_DIM, hp)
    agent.load_state_dict(ppo_weights(real))
    before = {name: value.detach().clone() for name, value in agent.named_parameters()}
    parts = {**rollout, "weights": 1 - rollout["restarting"]}
    batch = ppo.make_batch(agent, ppo.Rollout(*(parts[name] for name in ppo.Rollout._fields)), hp)
    optimizer = torch.optim.Adam(agent.parameters(), lr=hp.learning_rate, eps=1e-5)

    ppo.update(agent, optimizer, batch, hp, torch.Generator().manual_seed(3))

    after = {name: value.detach() for name, value in agent.named_parameters()}
    assert all((after[name] != before[name]).any() for name in after)
    assert optimizer.state[agent.actor_logstd]["step"] == (4 if target_kl < 1 else 12)
    assert_equal_weights(after, real_ppo_update(real, rollout, config, seed=3))


def test_mpo_updates_as_the_package_does() -> None:
    mpo = load("mpo")
    low, high = torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 2.0])
    hp = mpo.Hyperparameters(
        hidden_units=UNITS, batch_size=32, action_samples=5, target_period=2, alpha_mean_init=1.0,
        alpha_stddev_init=2.0, max_grad_norm=0.5,
    )  # fmt: skip
    real = MPOAgent(
        OBS_DIM, ACT_DIM, low, high, "cpu", (UNITS, UNITS), (UNITS, UNITS), generator=torch.Generator().manual_seed(5),
        gamma=hp.gamma, target_networks_update_period=hp.target_period, policy_lr=hp.learning_rate,
        q_lr=hp.learning_rate, kl_epsilon=hp.epsilon, mstep_kl_epsilon=hp.epsilon_mean,
        mstep_kl_epsilon_stddev=hp.epsilon_stddev, temperature_init=hp.temperature_init, temperature_lr=hp.dual_lr,
        lambda_lr=hp.dual_lr, max_grad_norm=hp.max_grad_norm, action_samples=hp.action_samples,
        init_log_alpha_mean=hp.alpha_mean_init, init_log_alpha_stddev=hp.alpha_stddev_init,
    )  # fmt: skip
    perturb(real)
    agent = mpo.Agent(OBS_DIM, low, high, hp)
    names = {"policy": "policy", "critic": "q", "policy_target": "policy_target", "critic_target": "q_target"}
    duals = ("log_temperature", "log_alpha_mean", "log_alpha_stddev")
    for ours, theirs in names.items():
        bounds = {"action_low", "action_high"}
        state = {name: x for name, x in getattr(real, theirs).state_dict().items() if name not in bounds}
        getattr(agent, ours).load_state_dict(state)
    with torch.no_grad():
        for name in duals:
            getattr(agent, name).copy_(getattr(real, name))
    generator = torch.Generator().manual_seed(5)

    for _ in range(3):  # the third begins with new targets; at the second, the policy has left the target policy
        obs, next_obs = torch.randn(2, hp.batch_size, OBS_DIM)
        actions = torch.randn(hp.batch_size, ACT_DIM).clamp(low, high)
        rewards, terminated = torch.randn(hp.batch_size), (torch.rand(hp.batch_size) < 0.3).float()
        noise = torch.stack([torch.randn(hp.batch_size, 5, ACT_DIM, generator=generator) for _ in range(2)])
        mpo.update(agent, mpo.Batch(obs, actions, rewards, terminated, next_obs), noise, hp)
        batch = {"obs": obs, "actions": actions, "next_obs": next_obs}
        assert real.update({**batch, "rewards": rewards[:, None], "dones": terminated[:, None]}) is not None

        for ours, theirs in names.items():
            expected = dict(getattr(real, theirs).named_parameters())
            assert_equal_weights(dict(getattr(agent, ours).named_parameters()), expected)
        assert_equal_weights(*({name: getattr(x, name) for name in duals} for x in (agent, real)))


def test_vmpo_updates_as_the_package_does() -> None:
    vmpo = load("vmpo")
    low, high = torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 2.0])
    hp = vmpo.Hyperparameters(hidden_units=UNITS, m_steps=3, max_grad_norm=0.5)
    real = VMPOAgent(
        OBS_DIM, ACT_DIM, low, high, policy_layer_sizes=(UNITS, UNITS), value_layer_sizes=(UNITS, UNITS),
        ppo_like_backbone=True, log_std_init=hp.log_std_init, normalize_obs=False, policy_lr=hp.policy_lr,
        value_lr=hp.value_lr, max_grad_norm=hp.max_grad_norm, topk_fraction=hp.topk_fraction,
        epsilon_eta=hp.epsilon_eta, temperature_lr=hp.temperature_lr, m_steps=hp.m_steps, epsilon_mu=hp.epsilon_mu,
        epsilon_sigma=hp.epsilon_sigma, alpha_lr=hp.alpha_lr,
    )  # fmt: skip
    perturb(real)
    agent = vmpo.Agent(OBS_DIM, ACT_DIM, hp)
    duals = ("log_temperature", "log_alpha_mu", "log_alpha_sigma")
    with torch.no_grad():
        for name in duals:
            getattr(agent, name).copy_(getattr(real, name))
        for name, value in real.policy.named_parameters():
            agent.get_parameter(name.replace("policy_head", "policy_mean")).copy_(value)

    for _ in range(2):
        rollout = random_rollout()
        parts = {**rollout, "raw_actions": rollout["actions"].clamp(-2, 2), "weights": 1 - rollout["restarting"]}
        batch = vmpo.make_batch(agent, vmpo.Rollout(*(parts[name] for name in vmpo.Rollout._fields)), hp)
        # The policy that acted was another one: from the first step on there is a divergence.
        old_means, old_log_stds = batch.old_means + 0.1 * torch.randn(batch.old_means.shape), batch.old_log_stds - 0.1
        batch = batch._replace(old_means=old_means, old_log_stds=old_log_stds)
        vmpo.update(agent, batch, hp)
        metrics = real.update(
            {
                "obs": batch.obs,
                "actions": (high + low) / 2 + (high - low) / 2 * batch.raw_actions.tanh(),
                "old_means": old_means,
                "old_log_stds": old_log_stds,
                "returns": batch.returns[:, None],
                "advantages": batch.advantages[:, None],
                "restarting_weights": batch.weights[:, None],
            }
        )
        assert metrics is not None

        networks = {n.replace("policy_head", "policy_mean"): value for n, value in real.policy.named_parameters()}
        expected = {**networks, **{name: getattr(real, name) for name in duals}}
        assert_equal_weights(dict(agent.named_parameters()), expected)


# What they do at an episode's end


class Clock(gym.Env[np.ndarray, np.ndarray]):
    """Shows the episode's number and its step. Even episodes are cut off after 3 steps, odd ones end after 2."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.step_count = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_count = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        odd = self.episode % 2 == 1
        return self._observe(), 1.0 + self.step_count, odd and self.step_count == 2, self.step_count == 3, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.step_count], dtype=np.float32)


@pytest.fixture
def clock() -> Iterator[str]:
    gym.register("Clock-v0", lambda **_: Clock())
    yield "Clock-v0"
    del gym.registry["Clock-v0"]


@pytest.mark.parametrize("name", ["ppo", "vmpo"])
def test_truncation_is_not_termination_and_a_restarting_step_has_no_weight(name: str, clock: str) -> None:
    module = load(name)
    collector = module.Collector(module.Hyperparameters(env=clock, num_envs=2, rollout_steps=9))
    agent = module.Agent(2, 1, collector.hp)
    rollout = collector.collect(agent, torch.Generator())
    for column in range(2):
        assert rollout.truncated[:, column].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
        assert rollout.terminated[:, column].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]
        assert rollout.weights[:, column].tolist() == [1, 1, 1, 0, 1, 1, 0, 1, 1]
    assert collector.episode_returns == [9, 9, 5, 5]  # 2 + 3 + 4, and 2 + 3
    following = collector.collect(agent, torch.Generator())
    assert (following.obs[0] == rollout.obs[-1]).all()
    assert following.weights[:, 0].tolist() == [1, 0, 1, 1, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("name", ["ppo", "vmpo"])
def test_advantages_bootstrap_past_a_time_limit_and_not_past_a_terminal(name: str) -> None:
    module = load(name)
    hp = module.Hyperparameters(hidden_units=UNITS, gamma=0.9, gae_lambda=0.8)
    agent, given = module.Agent(OBS_DIM, ACT_DIM, hp), random_rollout()
    perturb(agent)
    parts = {**given, "raw_actions": given["actions"], "weights": 1 - given["restarting"]}
    batch = module.make_batch(agent, module.Rollout(*(parts[field] for field in module.Rollout._fields)), hp)
    values = agent(given["obs"])[2].detach()
    following = torch.zeros(len(values[0]))
    for t in reversed(range(len(given["rewards"]))):
        bootstrap = torch.where(given["terminated"][t] == 1, 0.0, 0.9 * values[t + 1])
        ended = (given["terminated"][t] == 1) | (given["truncated"][t] == 1)
        following = given["rewards"][t] + bootstrap - values[t] + torch.where(ended, 0.0, 0.9 * 0.8 * following)
        counts = given["restarting"][t] == 0
        torch.testing.assert_close(batch.advantages.view(-1, len(following))[t][counts], following[counts])
        torch.testing.assert_close(batch.returns.view(-1, len(following))[t][counts], (following + values[t])[counts])
    assert (batch.weights.view(-1, len(following)) == 1 - given["restarting"]).all()


def test_mpo_replays_real_transitions_alone(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mpo = load("mpo")
    batches: list[Any] = []
    monkeypatch.setattr(mpo, "update", lambda agent, batch, noise, hp: batches.append(batch))
    mpo.train(mpo.Hyperparameters(env=clock, steps=40, update_after=10, batch_size=50, replay_size=20, hidden_units=4))
    assert len(batches) == 31
    batch = mpo.Batch(*map(torch.cat, zip(*batches, strict=True)))
    episode, step = batch.obs.unbind(-1)
    assert (batch.next_obs == torch.stack([episode, step + 1], dim=-1)).all()
    assert (batch.rewards == step + 2).all()
    assert (batch.terminated == (episode % 2 == 1) * (step == 1)).all()
    assert batch.terminated.any() and (step == 2).any()  # both kinds of ends were drawn
    assert batches[-1].obs[:, 0].min() > 5  # of the newest transitions


# PPO normalizes as the package does


def test_ppo_normalizes_as_the_package_does(clock: str) -> None:
    ppo = load("ppo")
    hp = ppo.Hyperparameters(env=clock, num_envs=3, rollout_steps=40)
    collector = ppo.Collector(hp)
    steps: list[Any] = []
    take = collector.envs.step

    def record(actions: np.ndarray) -> Any:
        # Noise, for the environments are all alike.
        observations, rewards, *rest = take(actions)
        noisy = observations + np.random.default_rng(len(steps)).normal(size=observations.shape), rewards
        steps.append((*noisy, *rest))
        return steps[-1]

    collector.envs.step = record
    rollout = collector.collect(ppo.Agent(2, 1, hp), torch.Generator())
    observations, rewards, terminated, truncated, _ = zip(*steps, strict=True)
    normalizer = RunningNorm(2)
    expected = [normalizer.see(x) for x in (np.tile([[0.0, 0.0]], (3, 1)), *observations)]
    np.testing.assert_allclose(rollout.obs, np.stack(expected), rtol=1e-5, atol=1e-6)
    ended = np.stack(terminated) | np.stack(truncated)
    scaled = RewardNormalizer(3, hp.gamma).normalize_all(np.stack(rewards), ended, rollout.weights.numpy() == 0)
    np.testing.assert_allclose(rollout.rewards, scaled, rtol=1e-5)


# What they are: short files that stand alone, run and learn


@pytest.mark.parametrize("name", NAMES)
def test_file_is_short_and_needs_the_objectives_alone(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 250
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            imported.add(node.module)
    own = {module for module in imported if module.split(".")[0] in ("minerva", "examples", "benchmarks", "tests")}
    assert own and all(f"{module}.".startswith("minerva.objectives.") for module in own)


def test_every_file_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NAMES)


def test_formulas_stand_above_code_and_cite_known_papers() -> None:
    report = examine(FOLDER)
    assert not report.problems
    assert len(report.modules) == 3 and all(len(module.formulas) >= 8 for module in report.modules)
    bibliography = (FOLDER.parent.parent / "docs" / "bibliography.md").read_text(encoding="utf-8")
    assert all(f"### {formula.paper} " in bibliography for formula in report.formulas if formula.paper)


@pytest.mark.parametrize("name", NAMES)
def test_runs_as_a_script(name: str, tmp_path: Path) -> None:
    options = ["--env", "Pendulum-v1", "--steps", "800", "--hidden-units", "8"]
    options += ["--update-after", "790"] if name == "mpo" else ["--rollout-steps", "200", "--num-envs", "2"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py"), *options],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^step 800: .*return.* -\d+\.\d$", ended.stdout, re.MULTILINE), ended.stdout
    assert ended.stderr == ""


# Small networks and loose bounds: they learn fast, and then no better.
SMALL_MPO = {
    "update_after": 500, "hidden_units": 64, "batch_size": 64, "action_samples": 10, "target_period": 25,
    "learning_rate": 1e-3, "epsilon_mean": 0.02, "alpha_mean_init": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "steps", "settings"), [("ppo", 16_384, {}), ("mpo", 1_500, SMALL_MPO), ("vmpo", 16_384, {})]
)
def test_learns(name: str, steps: int, settings: dict[str, Any]) -> None:
    module = load(name)
    returns = module.train(module.Hyperparameters(env="InvertedPendulum-v5", steps=steps, **settings))
    assert np.mean(returns[:20]) < 15  # as a random policy
    assert np.mean(returns[-10:]) > 30
