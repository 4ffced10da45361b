from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

from minerva import environments
from minerva.environments import EnvFactory, EnvironmentFailureError, GymnasiumBatch, RewardNormalizer
from minerva.networks.numpy_mlp import Array
from minerva.storage.rollout import RolloutBuffer
from minerva.trainers.collector import RolloutCollector
from minerva.utils.running_norm import RunningNorm
from tests.environments.optional import needs
from tests.environments.tiny_envs import Failing, Noisy

STEPS = 9
FACTORIES: list[EnvFactory] = [partial(Noisy, 3), partial(Noisy, 5)]


class Policy:
    """Noise plus a part of what it sees, so that a wrong observation shows in the next action."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.seen: list[Array] = []

    def __call__(self, obs: Array, recurrent_state: Array, episode_starts: Array) -> tuple[Array, Array, None]:
        self.seen.append(obs.copy())
        noise = torch.randn(len(obs), 1, generator=self.generator).numpy()
        return 0.1 * obs[:, :1] + noise, recurrent_state, None


def collector(policy: Policy, normalize: bool = True, seed: int = 3) -> tuple[RolloutCollector, RunningNorm | None]:
    rollout = RolloutBuffer(STEPS, 2, 2, 1, torch.device("cpu"))
    norm = RunningNorm(2) if normalize else None
    rewards = RewardNormalizer(2, 0.9) if normalize else None
    return RolloutCollector(GymnasiumBatch(FACTORIES, seed), rollout, policy, norm, rewards), norm


def test_without_normalizers_the_rollout_holds_raw_values() -> None:
    policy = Policy()
    one, _ = collector(policy, normalize=False)
    env = GymnasiumBatch(FACTORIES, 3)
    one.begin()
    np.testing.assert_array_equal(one.rollout.obs[one.rollout.position], env.reset())
    for t in range(STEPS):
        step = one.step()
        again = env.step(one.rollout.actions[t].numpy())
        np.testing.assert_array_equal(step.observations, again.observations)
        np.testing.assert_array_equal(one.rollout.obs[t + 1], again.observations)
        np.testing.assert_array_equal(one.rollout.rewards[t], again.rewards.astype(np.float32))
        np.testing.assert_array_equal(one.rollout.restarting[t], again.restarting)
    assert one.rollout.full


def test_the_policy_acts_on_what_is_stored() -> None:
    policy = Policy()
    one, norm = collector(policy)
    one.begin()
    for _ in range(STEPS):
        one.step()
    assert np.array_equal(np.stack(policy.seen), one.rollout.obs[:-1].numpy())
    assert norm is not None
    assert norm.count.item() == pytest.approx(2 * (STEPS + 1) + 1e-4)
    # The last observation is not taken in again where the next rollout begins.
    last = one.rollout.obs[one.rollout.position].clone()
    one.rollout.carry_over()
    assert torch.equal(one.rollout.obs[one.rollout.position], last)
    one.step()
    assert norm.count.item() == pytest.approx(2 * (STEPS + 2) + 1e-4)


def test_the_steps_returned_are_raw_and_rewards_are_normalized_once_a_rollout_is_full() -> None:
    one, _ = collector(Policy())
    reference = RewardNormalizer(2, 0.9)
    one.begin()
    for _ in range(2):
        steps = [one.step() for _ in range(STEPS - 1)]
        np.testing.assert_array_equal(one.rollout.rewards[:-1], np.stack([x.rewards for x in steps]).astype(np.float32))
        steps.append(one.step())
        assert not np.array_equal(steps[0].observations, one.rollout.obs[1].numpy())
        # One step at a time, as they came.
        expected = [reference.normalize(x.rewards, x.terminated | x.truncated, x.restarting) for x in steps]
        np.testing.assert_allclose(one.rollout.rewards.numpy(), np.stack(expected), rtol=1e-6)
        assert any(x.restarting.any() for x in steps)
        one.rollout.carry_over()


def test_a_failed_step_stores_nothing() -> None:
    factories: list[EnvFactory] = [Noisy, partial(Failing, "nan reward", 2)]
    norm, rewards = RunningNorm(2), RewardNormalizer(2, 0.9)
    rollout = RolloutBuffer(STEPS, 2, 2, 1, torch.device("cpu"))
    one = RolloutCollector(GymnasiumBatch(factories, 0), rollout, Policy(), norm, rewards)
    one.begin()
    one.step()
    saved = one.rollout.state_dict()
    counts = norm.count.item(), rewards.statistics.count.item()
    with pytest.raises(EnvironmentFailureError, match="environment 1 returned the reward nan"):
        one.step()
    now = one.rollout.state_dict()
    assert now["position"] == saved["position"] == 1
    assert all(torch.equal(now[name], saved[name]) for name in ("obs", "actions", "rewards"))
    assert (norm.count.item(), rewards.statistics.count.item()) == counts


@pytest.mark.parametrize("saved_at", range(STEPS))
def test_saved_in_the_middle_of_a_rollout_it_goes_on_bit_for_bit(saved_at: int) -> None:
    policy, resumed_policy = Policy(), Policy()
    one, norm = collector(policy)
    one.begin()
    for _ in range(saved_at):
        one.step()
    state = copy.deepcopy(one.state_dict())  # as with any module's, its tensors are the living ones
    assert norm is not None
    norm_state = {name: value.clone() for name, value in norm.state_dict().items()}
    generator_state = policy.generator.get_state()
    for _ in range(saved_at, STEPS):
        one.step()
    other, other_norm = collector(resumed_policy, seed=77)
    assert other_norm is not None
    assert other.load_state_dict(state) is None
    other_norm.load_state_dict(norm_state)
    resumed_policy.generator.set_state(generator_state)
    for _ in range(saved_at, STEPS):
        other.step()
    for name in ("obs", "actions", "rewards", "terminated", "truncated", "restarting"):
        assert torch.equal(getattr(one.rollout, name), getattr(other.rollout, name)), name
    end, other_end = one.state_dict(), other.state_dict()
    for name, value in end["reward_normalizer"].items():
        assert torch.equal(value, other_end["reward_normalizer"][name])
    assert end["env"]["generators"] == other_end["env"]["generators"]
    assert end["env"]["returns"] == other_end["env"]["returns"]


@needs("envpool")
def test_episodes_that_cannot_go_on_end_with_the_newest_step() -> None:
    def make() -> RolloutCollector:
        env = environments.make("Pendulum-v1", 4, 1, backend="envpool")
        rollout = RolloutBuffer(STEPS, 4, 3, 1, torch.device("cpu"))
        return RolloutCollector(env, rollout, Policy(), None, RewardNormalizer(4, 0.9))

    one, other = make(), make()
    one.begin()
    before = [one.step().rewards for _ in range(3)]
    assert not one.rollout.truncated.any()
    note = other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert note is not None and "new ones start" in note
    assert other.rollout.truncated[:3].tolist() == [[0.0] * 4, [0.0] * 4, [1.0] * 4]
    step = other.step()
    assert step.restarting.all() and other.rollout.restarting[3].all() and other.rollout.episode_starts[4].all()
    # The returns whose deviation divides the rewards start again as well.
    rewards = np.stack([*before, step.rewards, *(other.step().rewards for _ in range(STEPS - 4))])
    ended, restarting = np.zeros((2, STEPS, 4), dtype=np.bool_)
    ended[2], restarting[3] = True, True
    expected = RewardNormalizer(4, 0.9).normalize_all(rewards, ended, restarting)
    np.testing.assert_allclose(other.rollout.rewards.numpy(), expected, rtol=1e-5)
    for _ in range(2):  # saved with a full rollout, and with an empty one
        assert other.state_dict()["reward_normalizer"]["discounted_return"].all()
        one.load_state_dict(copy.deepcopy(other.state_dict()))
        assert not one.state_dict()["reward_normalizer"]["discounted_return"].any()
        other.rollout.carry_over()
