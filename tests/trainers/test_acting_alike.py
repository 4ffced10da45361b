"""The trainer's evaluation, a loaded policy and the command line take the same actions, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import minerva
from minerva import api
from minerva.cli import main
from minerva.environments.base import clip_to_box
from minerva.evaluation import Evaluator
from minerva.trainers.actor import ActingPolicy
from tests.environments.tiny_envs import Noisy


class Bytes(Noisy):
    """Observe what is seen as bytes."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)  # type: ignore[arg-type]

    def _see(self) -> Any:
        return np.array([np.clip(128 + 20 * self.place, 0, 255), self.steps], dtype=np.uint8)


class Parts(Noisy):
    """Observe what is seen in two parts, one of them bytes."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"place": spaces.Box(-np.inf, np.inf, (1,), np.float32), "time": spaces.Box(0, 255, (1,), np.uint8)}
    )

    def _see(self) -> Any:
        return {"place": np.array([self.place], np.float32), "time": np.array([self.steps], np.uint8)}


SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 32, "minibatch_size": 32},
    "vmpo": {"rollout_steps": 32},
    "mpo": {"update_after": 20, "batch_size": 8, "action_samples": 2, "replay_size": 100},
}
COMMON: dict[str, Any] = {
    "policy_layer_sizes": (8,), "eval_episodes": 2, "eval_interval": 64, "eval_max_steps": 20, "console": False,
    "compile": False,
}  # fmt: skip


@pytest.mark.parametrize("env", [Bytes, Parts])
@pytest.mark.parametrize(
    ("algo", "fields"),
    [
        ("mpo", {}),
        ("mpo", {"normalize_obs": True}),
        ("ppo", {"lstm_units": 4}),
        ("vmpo", {"lstm_units": 4}),
    ],
)
def test_a_loaded_policy_acts_as_the_trainers_evaluation_does(
    algo: str, fields: dict[str, Any], env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = api.config_class(algo).from_fields(None, {**COMMON, **SMALL[algo], **fields})
    trainer = api.make_trainer(algo, env, 1, "cpu", config)
    trainer.train(64, out_dir=tmp_path / "run")
    loaded, batch, one = (minerva.load(tmp_path / "run") for _ in range(3))
    call, space = ActingPolicy.__call__, trainer.env.raw_observation_space
    taken: list[tuple[Any, Any]] = []

    def watch(policy: ActingPolicy, rows: Any, deterministic: bool = True) -> Any:
        actions = call(policy, rows, deterministic)
        taken.append((rows.copy(), actions.copy()))
        return actions

    with monkeypatch.context() as patch:
        patch.setattr(ActingPolicy, "__call__", watch)
        trainer.evaluate()
    trainer.close()
    assert len(taken) > 3
    for rows, actions in taken:
        assert np.array_equal(loaded.act_flat(rows), actions)
        raw = [spaces.unflatten(space, row) for row in rows]  # as the environments gave them
        stacked = {name: np.stack([part[name] for part in raw]) for name in raw[0]} if env is Parts else np.stack(raw)
        clipped = clip_to_box(actions, trainer.env.action_space)
        assert np.array_equal(batch.act(stacked), clipped)
        np.testing.assert_allclose(one.act(raw[0]), clipped[0], rtol=1e-5, atol=1e-6)  # one row rounds as it likes


def steps_of(play: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Return the bytes of observation and action of each step that `play` takes in Pendulum-v1."""
    step: Any = PendulumEnv.step  # not typed in Gymnasium
    taken = []

    def watch(env: Any, action: Any) -> Any:
        result = step(env, action)
        taken.append((result[0].tobytes(), np.asarray(action).tobytes()))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(PendulumEnv, "step", watch)
        play()
    return taken


@pytest.mark.parametrize("algo", SMALL)
def test_the_command_line_takes_the_same_actions_on_episodes_of_its_own(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**COMMON, **SMALL[algo], **({} if algo == "mpo" else {"lstm_units": 4})}
    config = api.config_class(algo).from_fields(None, fields)
    trainer = api.make_trainer(algo, "Pendulum-v1", 1, "cpu", config)
    trainer.train(64, out_dir=tmp_path / "run")
    others = Evaluator(lambda: gymnasium.make("Pendulum-v1"), 2, 1, 20, stream="evaluate")
    own = steps_of(trainer.evaluate, monkeypatch)
    expected = steps_of(lambda: others.run(ActingPolicy(trainer.agent.eval())), monkeypatch)
    others.close()
    trainer.close()
    capsys.readouterr()
    command = ["evaluate", str(tmp_path / "run"), "--episodes", "2"]
    seen = steps_of(lambda: main(command), monkeypatch)
    assert "Return" in capsys.readouterr().out
    assert seen == expected
    assert len(seen) == len(own) == 40
    assert not set(seen) & set(own)
