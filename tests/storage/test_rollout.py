from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from minerva.storage.rollout import RolloutBuffer

T, N, OBS, A = 3, 2, 4, 1
CPU = torch.device("cpu")


def filled(steps: int) -> RolloutBuffer:
    rollout = RolloutBuffer(T, N, OBS, A, CPU)
    rollout.begin(torch.full((N, OBS), 0.5))
    for t in range(steps):
        add(rollout, t)
    return rollout


def add(rollout: RolloutBuffer, t: int) -> None:
    rollout.add(
        actions=torch.full((N, A), 10.0 + t),
        next_obs=torch.full((N, OBS), 20.0 + t),
        rewards=np.array([30.0 + t, 40.0 + t]),
        terminated=np.array([t == 0, False]),
        truncated=np.array([False, t == 1]),
        restarting=np.array([t == 1, t == 2]),
    )


def test_steps_are_stored_time_major() -> None:
    rollout = filled(T)
    assert rollout.full
    assert rollout.obs[:, 0, 0].tolist() == [0.5, 20, 21, 22]
    assert rollout.actions[:, 1, 0].tolist() == [10, 11, 12]
    assert rollout.rewards.tolist() == [[30, 40], [31, 41], [32, 42]]
    assert rollout.terminated.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert rollout.truncated.tolist() == [[0, 0], [0, 1], [0, 0]]
    assert rollout.restarting.tolist() == [[0, 0], [1, 0], [0, 1]]
    shapes = [tuple(x.shape) for x in (rollout.obs, rollout.actions, rollout.rewards)]
    assert shapes == [(T + 1, N, OBS), (T, N, A), (T, N)]


def test_what_to_act_on() -> None:
    rollout = filled(0)
    assert torch.equal(rollout.obs[rollout.position], torch.full((N, OBS), 0.5))
    assert not rollout.full
    add(rollout, 0)
    assert torch.equal(rollout.obs[rollout.position], torch.full((N, OBS), 20.0))


def test_the_last_observation_is_the_first_of_the_next_rollout() -> None:
    rollout = filled(T)
    rollout.carry_over()
    assert rollout.position == 0
    assert torch.equal(rollout.obs[rollout.position], torch.full((N, OBS), 22.0))


def parts(rollout: RolloutBuffer) -> list[Tensor]:
    return [
        rollout.obs, rollout.actions, rollout.rewards, rollout.terminated, rollout.truncated, rollout.restarting,
    ]  # fmt: skip


def test_a_rollout_saved_at_any_step_goes_on() -> None:
    whole = filled(T)
    for saved_at in range(T + 1):
        saved = filled(saved_at)
        state = saved.state_dict()
        assert len(state["actions"]) == saved_at  # what is not filled is not saved
        saved.carry_over()
        for t in range(T):
            add(saved, 100 + t)  # the state is a copy: going on does not change it
        other = RolloutBuffer(T, N, OBS, A, CPU)
        other.load_state_dict(state)
        assert other.position == saved_at
        assert torch.equal(other.obs[saved_at], whole.obs[saved_at])
        for t in range(saved_at, T):
            add(other, t)
        assert all(torch.equal(x, y) for x, y in zip(parts(other), parts(whole), strict=True))


def test_episode_starts_and_the_recurrent_state_are_carried_over() -> None:
    rollout = RolloutBuffer(2, 2, 1, 1, torch.device("cpu"), state_dim=3)
    rollout.begin(torch.zeros(2, 1))
    assert rollout.episode_starts[rollout.position].tolist() == [1.0, 1.0] and not rollout.recurrent_state.any()
    nothing = np.zeros(2)
    for t, restarting in enumerate(([1.0, 0.0], [0.0, 1.0])):
        state = torch.full((2, 3), float(t + 1))
        rollout.add(torch.zeros(2, 1), torch.zeros(2, 1), nothing, nothing, nothing, np.array(restarting), state)
    assert rollout.episode_starts.tolist() == [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    assert not rollout.first_recurrent_state.any() and (rollout.recurrent_state == 2).all()
    rollout.carry_over()
    # The second environment's last step crossed into a new episode: the next rollout begins with it.
    assert rollout.episode_starts[rollout.position].tolist() == [0.0, 1.0]
    assert (rollout.first_recurrent_state == 2).all() and (rollout.recurrent_state == 2).all()
    rollout.begin(torch.zeros(2, 1))
    assert (
        rollout.episode_starts[rollout.position].tolist() == [1.0, 1.0]
        and not rollout.first_recurrent_state.any()
        and not rollout.recurrent_state.any()
    )


def test_a_rollout_may_continue_where_another_buffer_ended() -> None:
    rollout = RolloutBuffer(T, N, OBS, A, CPU, state_dim=2)
    state, starts = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([True, False])
    rollout.begin(torch.ones(N, OBS), starts, state)
    _, recurrent, episode_starts = rollout.current()
    assert np.asarray(recurrent).tolist() == state.tolist() == rollout.first_recurrent_state.tolist()
    assert np.asarray(episode_starts).tolist() == [1, 0]


def test_an_episode_may_begin_without_a_restarting_step() -> None:
    rollout, never, ended = filled(0), np.zeros(N, np.bool_), np.array([False, True])
    zeros = np.zeros(N)
    rollout.add(torch.zeros(N, A), torch.zeros(N, OBS), zeros, ended, never, never, episode_starts=ended)
    assert rollout.episode_starts[1].tolist() == [0, 1]
    assert not rollout.restarting.any()


def test_a_rollout_is_learned_from_where_it_is_or_where_it_is_moved_to() -> None:
    rollout = filled(T)
    assert rollout.on(CPU) is rollout
    moved = rollout.on(torch.device("meta"))
    assert moved is not rollout and all(part.device.type == "meta" for part in parts(moved))
    assert all(part.device.type == "cpu" for part in parts(rollout))
