"""Restarting rows alone teach nothing: no gradient step is made, nothing is lost, and the run continues."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from minerva.acceleration.applied import Acceleration, moments
from minerva.callbacks import Callback
from minerva.trainers.ppo.update import Updater
from minerva.trainers.vmpo.batch import make_batch
from tests.environments.tiny_envs import Noisy
from tests.trainers.ppo import samples as ppo
from tests.trainers.ppo import small_run as ppo_run
from tests.trainers.ppo.small_run import interrupt_at, logged, metrics_of, same, same_run, trained
from tests.trainers.vmpo import small_agent as vmpo
from tests.trainers.vmpo import small_run as vmpo_run

ACCELERATIONS = [Acceleration(), Acceleration(compiled=True)]
BANDIT = partial(Noisy, 1)  # every second row is restarting
MAKERS = {"ppo": ppo_run.small_trainer, "vmpo": vmpo_run.small_trainer}


def one_step_trainer(algo: str, **fields: Any) -> Any:
    size = {"minibatch_size": fields.get("num_envs", 1)} if algo == "ppo" else {"topk_fraction": 1.0}
    return MAKERS[algo](BANDIT, rollout_steps=1, eval_episodes=0, **{**size, **fields})


def learned(trainer: Any) -> dict[str, Any]:
    return {**{k: v.clone() for k, v in trainer.agent.state_dict().items()}, **moments(trainer.updater.state)}


@pytest.mark.parametrize("lstm_units", [None, 3])
@pytest.mark.parametrize("algo", MAKERS)
def test_a_rollout_of_restarting_rows_changes_nothing_and_the_run_continues(
    algo: str, lstm_units: int | None, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []
    trainer = one_step_trainer(algo, num_envs=2, lstm_units=lstm_units, normalize_obs=False)
    trained(trainer, 8, tmp_path / "run", lambda trainer: seen.append(learned(trainer)))
    assert trainer.updates == 4 and len(seen) == 4  # each was noted before the update of its step
    final = learned(trainer)
    real = [not same(before, after) for before, after in zip(seen, [*seen[1:], final], strict=True)]
    assert real == [True, False, True, False]
    assert trainer.updater.skipped == 0
    rows = metrics_of(tmp_path / "run")
    of_nothing = {name for step, name, _ in rows if step in (4, 8)}
    assert of_nothing == {"charts/learning_rate"} | (
        {"vmpo/restarting_frac", "health/skipped"} if algo == "vmpo" else set()
    )
    assert all(value == 1 for step, name, value in rows if step == 4 and name == "vmpo/restarting_frac")


@pytest.mark.parametrize("algo", MAKERS)
def test_it_resumes_after_a_rollout_of_restarting_rows(algo: str, tmp_path: Path) -> None:
    trained(one_step_trainer(algo), 6, tmp_path / "whole")
    with pytest.raises(SystemExit):
        trained(one_step_trainer(algo), 6, tmp_path / "run", interrupt_at(2))
    trainer = one_step_trainer(algo)
    trainer.load(tmp_path / "run")
    trained(trainer, 6, tmp_path / "run")
    assert same_run(tmp_path / "whole", tmp_path / "run")


def test_vmpo_continues_where_too_few_rows_are_real_to_keep_one(tmp_path: Path) -> None:
    class Restart(Callback):
        def on_rollout_end(self, trainer: Any) -> None:
            trainer.collector.rollout.restarting[0, :3] = 1

    trainer = vmpo_run.small_trainer(rollout_steps=1, num_envs=4, eval_episodes=0)  # it keeps half
    before = learned(trainer)
    trained(trainer, 8, tmp_path / "run", Restart())
    before["obs_normalizer.count"] += 12
    assert trainer.updates == 2 and learned(trainer)["obs_normalizer.count"] == before["obs_normalizer.count"]
    assert same(moments(trainer.updater.state), {name: before[name] for name in moments(trainer.updater.state)})
    assert logged(tmp_path / "run", "vmpo/restarting_frac") == [(4, 0.75), (8, 0.75)]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("acceleration", ACCELERATIONS)
@pytest.mark.parametrize("optimizer_type", ["adam", "sgd"])
def test_ppo_takes_no_step_on_a_minibatch_of_restarting_rows(optimizer_type: str, acceleration: Acceleration) -> None:
    agent = ppo.make_agent()
    config = ppo.make_config(minibatch_size=4, update_epochs=1, norm_adv=False, optimizer_type=optimizer_type)
    updater = Updater(agent.policy, config)
    updater.set_acceleration(acceleration)
    ppo.run_update(agent, ppo.make_rollout(agent), config, updater)
    assert moments(updater.state)["policy.steps"].item() == 6  # and from now on there is momentum
    rollout = ppo.make_rollout(agent, seed=1)
    rollout.restarting[:] = 1
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    rollout.restarting.view(-1)[order[8:12]] = 0  # the third minibatch of six
    result = ppo.run_update(agent, rollout, config, updater)
    assert (result.gradient_steps, result.skipped) == (1, 0) and updater.skipped == 0
    assert moments(updater.state)["policy.steps"].item() == 7
    assert result.means["value"] == result.metrics["losses/value_loss"] > 0
    before = [ppo.weights_of(agent), moments(updater.state)]
    rollout.restarting[:] = 1
    nothing = ppo.run_update(agent, rollout, config, updater)
    assert (nothing.metrics, nothing.means, nothing.gradient_steps, nothing.skipped) == ({}, {}, 0, 0)
    assert same([ppo.weights_of(agent), moments(updater.state)], before)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("acceleration", ACCELERATIONS)
def test_vmpo_takes_no_step_on_a_minibatch_of_restarting_rows(acceleration: Acceleration) -> None:
    steps = []
    for minibatches in (1, 6):
        agent = vmpo.make_agent(minibatches=minibatches, rollout_steps=12, num_envs=2, m_steps=2, topk_fraction=1.0)
        agent.updater.set_acceleration(acceleration)
        rollout = vmpo.make_rollout(agent, 12)
        rollout.restarting[:] = 1
        generator = torch.Generator().manual_seed(3)
        orders = [torch.randperm(24, generator=generator) for _ in range(2)]
        rollout.restarting.view(-1)[orders[0][8]] = 0  # one row, in one minibatch of each pass
        batch = make_batch(agent.policy, rollout, agent.config)
        metrics = agent.updater.learn(batch, generator=torch.Generator().manual_seed(3))
        assert metrics is not None and not any(map(math.isnan, {**metrics, "value/explained_var": 0.0}.values()))
        assert metrics["loss/value"] > 0  # that of the minibatch with the row
        steps.append({name: part.item() for name, part in moments(agent.updater.state).items() if "steps" in name})
    assert steps[0] == steps[1] == {"policy.steps": 2, "alphas.steps": 2, "temperature.steps": 1}
