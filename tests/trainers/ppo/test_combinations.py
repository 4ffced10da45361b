"""Action head × encoder × recurrent core: each combination acts, is replayed by the update, learns and resumes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import minerva
from minerva.environments import EnvFactory
from minerva.networks.actor_critic import ActorCriticOutput
from minerva.trainers.ppo.trainer import PPOTrainer
from minerva.trainers.ppo.update import make_batch, minibatches
from tests.environments.tiny_envs import Noisy, Picking
from tests.trainers.combinations import assert_loaded_policy_acts_alike
from tests.trainers.ppo.small_run import assert_resumes_exactly, small_trainer

VECTOR = spaces.Box(-1000, 1000, (6,), np.float32)
IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
DISCRETE, MULTI, BINARY = spaces.Discrete(4, start=3), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)

STEPS = 13  # no multiple of an episode and its restart: rollouts begin in the middle of episodes
LSTM = {"lstm_units": 5, "minibatch_size": 2 * STEPS, "num_envs": 4}
# Layer norm divides small cell states by their deviation, and their rounding with them: up to 1.7e-6 with other seeds.
NORMALIZED_LSTM = {**LSTM, "lstm_layer_norm": True, "seed": 2}
CASES: dict[str, tuple[EnvFactory, dict[str, Any]]] = {
    "box": (Noisy, {}),
    "box, shared": (Noisy, {"shared_encoder": True}),
    "box, memory": (Noisy, LSTM),
    "box, one memory": (Noisy, {**LSTM, "shared_encoder": True}),
    "discrete": (partial(Picking, DISCRETE, VECTOR), {}),
    "discrete, memory with layer norm": (partial(Picking, DISCRETE, VECTOR), NORMALIZED_LSTM),
    "multi-discrete": (partial(Picking, MULTI, VECTOR), {}),
    "multi-binary, memory": (partial(Picking, BINARY, VECTOR), LSTM),
    "discrete, masks": (partial(Picking, DISCRETE, VECTOR, "info"), {}),
    "multi-discrete, masks, memory": (partial(Picking, MULTI, VECTOR, "method"), LSTM),
    "discrete, image": (partial(Picking, DISCRETE, IMAGE), {"shared_encoder": True}),
    "discrete, image, masks, memory": (partial(Picking, DISCRETE, IMAGE, "info"), {**LSTM, "shared_encoder": True}),
    "discrete, image as numbers": (partial(Picking, DISCRETE, IMAGE), {"encoder": "mlp"}),
}

every_case = pytest.mark.parametrize("name", CASES)


def trainer_for(name: str, **fields: Any) -> PPOTrainer:
    factory, own = CASES[name]
    return small_trainer(factory, **{"num_envs": 2, "rollout_steps": STEPS, "eval_max_steps": 3, **own, **fields})


def stepped(trainer: PPOTrainer, obs: Tensor, state: Tensor, starts: Tensor) -> ActorCriticOutput:
    """What policy and critic say of single observations, one step at a time."""
    with torch.no_grad():
        return trainer.agent.policy.forward_sequence(obs[None], state, starts[None])


@every_case
def test_the_update_sees_what_acting_saw(name: str) -> None:
    trainer = trainer_for(name)
    rollout, agent = trainer.collector.rollout, trainer.agent
    trainer.begin()
    states = set()
    for _ in range(2):  # the second one begins in the middle of episodes
        log_probs, values = [], []
        while not rollout.full:
            now = rollout.obs[rollout.position], rollout.recurrent_state, rollout.episode_starts[rollout.position]
            obs, state, starts = (part.clone() for part in now)
            position = rollout.position
            trainer.collector.step()
            params, value, after = stepped(trainer, obs, state, starts)
            log_probs.append(agent.policy.head.log_prob(params, rollout.actions[position][None])[0].detach())
            values.append(value[0])
            torch.testing.assert_close(rollout.recurrent_state, after, rtol=0, atol=1e-6)
            states.add(float(after.sum()))
        batch = make_batch(agent.policy, rollout, trainer.config)
        shape = (STEPS, trainer.config.num_envs)
        torch.testing.assert_close(batch.log_probs.reshape(shape), torch.stack(log_probs), rtol=0, atol=1e-6)
        torch.testing.assert_close(batch.values.reshape(shape), torch.stack(values), rtol=0, atol=1e-6)
        assert rollout.restarting.sum() >= 2  # over the ends of episodes
        rollout.carry_over()
    assert len(states) > 15 if agent.state_dim else states == {0.0}
    trainer.close()


@every_case
def test_it_learns_and_its_policy_is_loaded(name: str, tmp_path: Path) -> None:
    trainer = trainer_for(name)
    before = {key: value.clone() for key, value in trainer.agent.state_dict().items()}
    result = trainer.train(STEPS * trainer.config.num_envs * 2, tmp_path / "run")
    assert result.updates == 2 and result.last_evaluation is not None
    moved = [key for key, value in trainer.agent.named_parameters() if not torch.equal(value, before[key])]
    assert len(moved) == len(list(trainer.agent.parameters()))
    policy = minerva.load(tmp_path / "run")
    env = CASES[name][0]()
    observation, _ = env.reset(seed=0)
    actions = [policy.act(observation, deterministic) for deterministic in (True, False)]
    assert all(env.action_space.contains(action) for action in actions)
    assert_loaded_policy_acts_alike(trainer, policy)
    trainer.close()


@pytest.mark.parametrize(
    "name", ["box, memory", "discrete", "multi-discrete, masks, memory", "discrete, image, masks, memory"]
)
def test_a_run_that_was_left_in_mid_rollout_goes_on_exactly(name: str, tmp_path: Path) -> None:
    num_envs = CASES[name][1].get("num_envs", 2)
    total = STEPS * num_envs * 4
    assert_resumes_exactly(lambda: trainer_for(name), [total // 2 + 3 * num_envs], total, tmp_path)


# Masks


def test_what_a_mask_forbids_is_never_done(tmp_path: Path) -> None:
    taken = 0

    class Strict(Picking):
        def step(self, action: Any) -> Any:
            nonlocal taken
            allowed = self.masks[0]
            assert allowed[action - 3], "a forbidden action"
            taken += int(not allowed.all())
            return super().step(action)

    trainer = small_trainer(lambda: Strict(DISCRETE, VECTOR, "info"), num_envs=4, eval_episodes=5, eval_max_steps=100)
    trainer.train(16 * 4 * 5, tmp_path / "run")
    trainer.close()
    assert taken > 200
    policy = minerva.load(tmp_path / "run")
    env = Picking(DISCRETE, VECTOR, "info")
    observation, _ = env.reset(seed=1)
    for allowed in range(4):
        mask = np.eye(4)[allowed]
        assert policy.act(observation, action_mask=mask) == policy.act(observation, False, mask) == allowed + 3
    several = policy.act(np.stack([observation] * 2), action_mask=np.eye(4)[[1, 3]])
    assert several.tolist() == [4, 6]
    with pytest.raises(ValueError, match=r"action_mask: this policy takes \(1, 4\), got an array of shape \(3,\)"):
        policy.act(observation, action_mask=[1, 1, 0])


def test_a_mask_for_a_policy_that_takes_none(tmp_path: Path) -> None:
    trainer = small_trainer(partial(Picking, DISCRETE, VECTOR), eval_episodes=0)
    trainer.train(32, tmp_path / "run")
    trainer.close()
    with pytest.raises(ValueError, match="action_mask: this policy takes no mask at all"):
        minerva.load(tmp_path / "run").act(np.zeros(6, np.float32), action_mask=[1, 1, 0, 0])


# Memory


def test_minibatches_of_a_memory_are_whole_environments() -> None:
    trainer = trainer_for("box, memory")
    trainer.begin()
    rollout = trainer.collector.rollout
    for _ in range(2):
        while not rollout.full:
            trainer.collector.step()
        batch = make_batch(trainer.agent.policy, rollout, trainer.config)
        rollout.carry_over()
    real = torch.ones(STEPS, 4, dtype=torch.bool)
    found = list(minibatches(batch, trainer.config, torch.Generator().manual_seed(0), real))
    assert [part.obs.shape for part in found] == [(STEPS, 2, 2), (STEPS, 2, 2)]
    order = [int((batch.obs[0] == row).all(-1).nonzero()) for part in found for row in part.obs[0]]
    assert sorted(order) == [0, 1, 2, 3]
    for name, full in batch._asdict().items():
        parts = [getattr(part, name) for part in found]
        if name == "recurrent_state":
            assert torch.equal(torch.cat(parts), full[order]) and full.any()
        else:
            assert torch.equal(torch.cat(parts, dim=1), full[:, order]), name
    trainer.close()


def test_the_settings_of_a_memory_are_checked() -> None:
    with pytest.raises(ValueError, match=r"minibatch_size: .*rollout_steps = 16 .*num_envs = 4 .*got 24, try 16\."):
        small_trainer(num_envs=4, lstm_units=8, minibatch_size=24)
    with pytest.raises(ValueError, match=r"minibatch_size: .*got 48, try"):
        small_trainer(num_envs=4, lstm_units=8, minibatch_size=48)
    with pytest.raises(ValueError, match=r"lstm_layer_norm: needs lstm_units"):
        small_trainer(lstm_layer_norm=True)
    with pytest.raises(ValueError, match=r"compile: True is not for recurrent policies"):
        small_trainer(lstm_units=8, minibatch_size=16, compile=True)
    with pytest.raises(ValueError, match=r"lstm_units: must be at least 1"):
        small_trainer(lstm_units=0)


class Recall(gymnasium.Env[Any, Any]):
    """Shows a cue in the first observation alone and asks for it in the fifth: only a memory can answer."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == 5
        return np.array([0, self.steps == 4], dtype=np.float32), float(over and action == self.cue), over, False, {}


@pytest.mark.parametrize("memory", [True, False])
def test_a_task_that_only_a_memory_can_solve(memory: bool, tmp_path: Path) -> None:
    own: dict[str, Any] = {"lstm_units": 16} if memory else {}
    trainer = PPOTrainer(
        Recall, 1, "cpu", num_envs=16, rollout_steps=32, policy_layer_sizes=(16,), critic_layer_sizes=(16,),
        policy_lr=1e-2, update_epochs=4, normalize_reward=False, target_kl=None, gamma=0.9, eval_episodes=100,
        eval_interval=10**9, console=False, compile=False, minibatch_size=128, **own,
    )  # fmt: skip
    result = trainer.train(20_000, tmp_path / "run")
    trainer.close()
    assert result.last_evaluation is not None
    found = result.last_evaluation.returns.mean()
    assert found == 1.0 if memory else found < 0.7


# A user's own encoder


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 7)

    def forward(self, rows: Tensor) -> Tensor:
        features: Tensor = self.layer(rows) ** 2
        return features


@pytest.mark.parametrize("shared", [False, True])
def test_a_users_own_encoder(shared: bool, tmp_path: Path) -> None:
    trainer = small_trainer(Noisy, make_encoder=Squared, shared_encoder=shared)
    own = [module for module in trainer.agent.modules() if isinstance(module, Squared)]
    assert len(own) == (1 if shared else 2) and trainer.config.encoder == "custom"
    for head in (trainer.agent.policy.policy_head, trainer.agent.policy.value_head):
        assert isinstance(head, nn.Linear) and head.in_features == 7
    before = own[0].layer.weight.clone()
    trainer.train(16 * 3, tmp_path / "run")
    trainer.close()
    assert not torch.equal(own[0].layer.weight, before)
    observation = np.array([0.3, 1.0], dtype=np.float32)
    expected = trainer.agent.get_deterministic_action(torch.from_numpy(observation)[None]).detach().numpy()
    found = minerva.load(tmp_path / "run", make_encoder=Squared).act(observation[None])
    np.testing.assert_allclose(found, expected.clip(-1, 1), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="encoder: 'custom' needs the function that builds it"):
        minerva.load(tmp_path / "run")


def test_an_encoder_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"make_encoder: .*rows of shape \(B, 2\).*got \(2, 1, 2\)"):
        small_trainer(Noisy, make_encoder=lambda: nn.Unflatten(1, (1, 2)))
    with pytest.raises(ValueError, match=r"encoder: 'cnn' needs an image"):
        small_trainer(Noisy, encoder="cnn")


def test_acting_asks_a_critic_with_an_encoder_of_its_own_for_nothing() -> None:
    trainer = small_trainer(Noisy, make_encoder=Squared)
    for module in (trainer.agent.policy.value_encoder, trainer.agent.policy.value_head):
        module.register_forward_hook(lambda *_: pytest.fail("the critic was asked"))
    trainer.begin()
    trainer.collector.step()
    trainer.close()


# Images


def test_bytes_stay_bytes_and_are_scaled_by_the_encoder_alone() -> None:
    trainer = trainer_for("discrete, image")
    trainer.begin()
    assert trainer.collector.rollout.obs.dtype == torch.uint8
    assert isinstance(trainer.agent.obs_normalizer, nn.Identity)
    obs = trainer.collector.rollout.obs[trainer.collector.rollout.position]
    assert obs.max() > 200
    torch.testing.assert_close(trainer.agent.get_value(obs), trainer.agent.get_value(obs.float()))
    trainer.close()


def test_a_dict_of_an_image_and_numbers(tmp_path: Path) -> None:
    class Both(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"picture": spaces.Box(0, 255, (36, 36, 1), np.uint8), "speed": VECTOR})
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return self._see(), {}

        def step(self, action: Any) -> Any:
            return self._see(), 1.0, bool(self.np_random.random() < 0.1), False, {}

        def _see(self) -> Any:
            picture = self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)
            return {"picture": picture, "speed": self.np_random.normal(size=6).astype(np.float32)}

    trainer = small_trainer(Both, shared_encoder=True)
    head = trainer.agent.policy.policy_head
    assert isinstance(head, nn.Linear) and head.in_features == 512 + 6
    trainer.train(32, tmp_path / "run")
    trainer.close()
    observation, _ = Both().reset(seed=0)
    assert minerva.load(tmp_path / "run").act(observation) in (0, 1)


def test_a_full_tensorboard_log_shows_weights_inputs_and_images(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = trainer_for("discrete, image", tensorboard=True, full_tensorboard_log=True, eval_episodes=0)
    trainer.train(STEPS * 2 * 2, tmp_path / "run")
    trainer.close()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"histograms": 0, "images": 0})
    events.Reload()
    tags = events.Tags()
    inputs = {f"inputs/{name}" for name in ("obs", "actions", "log_probs", "values", "advantages", "returns")}
    weights = {f"weights/{name}" for name, _ in trainer.agent.named_parameters()}
    assert set(tags["histograms"]) == inputs | weights
    assert len(events.Histograms("inputs/obs")) == 2
    assert tags["images"] == ["observation"]
    image = events.Images("observation")[0]
    assert (image.height, image.width) == (40, 36)
