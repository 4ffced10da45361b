from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minerva.callbacks import Callback, ProgressBar
from minerva.compat.stable_baselines import (
    PPO2,
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    DummyVecEnv,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnRewardThreshold,
    VecNormalize,
)
from minerva.compat.stable_baselines.common.callbacks import ConvertCallback
from tests.compat.stable_baselines.samples import BATCH, N_ENVS, N_STEPS, cart_pole, noisy, small_model
from tests.environments.tiny_envs import Noisy


class Diary(BaseCallback):
    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.stop_at = stop_at

    def _init_callback(self) -> None:
        self.entries.append("init")

    def _on_training_start(self) -> None:
        self.entries.append("training start")

    def _on_rollout_start(self) -> None:
        self.entries.append("rollout start")

    def _on_step(self) -> bool | None:
        assert self.num_timesteps == self.n_calls * N_ENVS == self.model.num_timesteps
        assert self.training_env is self.model.get_env()
        self.entries.append("step")
        return None if self.stop_at is None else self.n_calls < self.stop_at

    def _on_rollout_end(self) -> None:
        self.entries.append("rollout end")

    def _on_training_end(self) -> None:
        self.entries.append("training end")


ROLLOUT = ["rollout start", *["step"] * N_STEPS, "rollout end"]


def test_events_come_in_order() -> None:
    diary = Diary()
    small_model().learn(2 * BATCH, callback=diary)
    assert diary.entries == ["init", "training start", *ROLLOUT, *ROLLOUT, "training end"]


def test_a_rollout_that_was_stopped_is_not_learned_from() -> None:
    diary, model, other = Diary(stop_at=N_STEPS + 3), small_model(), small_model()
    model.learn(3 * BATCH, callback=[diary])
    stopped = ["rollout start", *["step"] * 3, "rollout end"]
    assert diary.entries == ["init", "training start", *ROLLOUT, *stopped, "training end"]
    assert model.num_timesteps == BATCH + 3 * N_ENVS
    # So the model equals one that had only one rollout.
    other.learn(BATCH)
    for name, weight in model.get_parameters().items():
        np.testing.assert_array_equal(weight, other.get_parameters()[name])


def test_learning_continues_after_a_stop() -> None:
    model = small_model()
    model.learn(3 * BATCH, callback=Diary(stop_at=3))
    diary = Diary()
    model.learn(BATCH, callback=diary)
    assert diary.entries == ["init", "training start", *ROLLOUT, "training end"]


def test_functions_are_called_at_every_step_and_see_it() -> None:
    seen: list[dict[str, Any]] = []

    def look(_locals: dict[str, Any], _globals: dict[str, Any]) -> None:
        seen.append({name: _locals[name] for name in ("obs", "rewards", "dones", "infos", "n_steps", "update")})
        assert isinstance(_locals["self"].model, PPO2)
        assert _locals["self"].num_timesteps == _locals["self"].model.num_timesteps

    model = small_model(env=noisy(length=5))
    model.learn(2 * BATCH, callback=look)
    assert len(seen) == 2 * N_STEPS
    assert [one["n_steps"] for one in seen] == [*range(1, 9), *range(1, 9)]
    assert [one["update"] for one in seen] == [1] * 8 + [2] * 8
    ends = [t for t, one in enumerate(seen) if one["dones"].all()]
    assert ends == [4, 9, 14]
    info = seen[4]["infos"][1]
    assert info["TimeLimit.truncated"]
    assert info["episode"]["l"] == 5
    assert info["episode"]["r"] == pytest.approx(sum(one["rewards"][1] for one in seen[:5]))
    assert seen[4]["obs"][1].shape == (2,)
    assert seen[4]["obs"][1][1] == 0  # the first observation of the next episode
    assert "episode" not in seen[3]["infos"][1]
    assert info["terminal_observation"][1] == 5
    assert [record["l"] for record in model.ep_info_buf] == [5] * 6


def test_callbacks_see_what_the_policy_did() -> None:
    """Values and probabilities beside those computed here from the network; a random number is never drawn for them."""
    seen: list[dict[str, Any]] = []

    class Looking(BaseCallback):
        def _on_rollout_start(self) -> None:
            assert self.locals["total_timesteps"] == BATCH
            self.before = np.array(self.model.runner.obs)

        def _on_step(self) -> None:
            names = ("actions", "clipped_actions", "values", "neglogpacs", "infos")
            assert "values" in self.locals
            assert self.locals.get("nothing") is None
            seen.append({"before": self.before, **{name: self.locals[name] for name in names}})
            self.before = np.array(self.locals["obs"])

    model, other = small_model(env=noisy()), small_model(env=noisy())
    agent = copy.deepcopy(model.agent)
    model.learn(BATCH, callback=Looking())
    for step in seen:
        with torch.no_grad():
            rows = torch.from_numpy(step["before"])
            mean, values = agent.actor_mean(rows), agent.critic(rows)[:, 0]
            normal: Any = torch.distributions.Normal(mean, agent.actor_logstd.exp())
            neglogp = -normal.log_prob(torch.from_numpy(step["actions"])).sum(-1)
        np.testing.assert_allclose(step["values"], values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(step["neglogpacs"], neglogp, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(step["clipped_actions"], np.clip(step["actions"], -1, 1))
    other.learn(BATCH)
    for name, weight in model.get_parameters().items():
        np.testing.assert_array_equal(weight, other.get_parameters()[name])


def test_a_function_that_returns_false_stops_training() -> None:
    model = small_model()
    calls: list[int] = []

    def stop(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        calls.append(_locals["self"].num_timesteps)
        return len(calls) < 4

    model.learn(10 * BATCH, callback=stop)
    assert calls == [2, 4, 6, 8]


def test_minerva_callbacks_and_other_objects_are_called() -> None:
    class Own(Callback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_step(self, trainer: Any) -> None:
            self.steps.append(trainer.env_steps)

    class Other:
        called = 0

        def on_step(self) -> bool:
            self.called += 1
            return self.called < 3

    own, other = Own(), Other()
    small_model().learn(BATCH, callback=[own, other])
    assert own.steps == [2, 4, 6]
    assert other.called == 3
    with pytest.raises(ValueError, match=r"callback: must be a BaseCallback, .*got int"):
        small_model().learn(BATCH, callback=3)


def test_minervas_progress_bar_follows() -> None:
    stream = io.StringIO()
    small_model(env=noisy()).learn(2 * BATCH, callback=ProgressBar(stream))
    assert "32" in stream.getvalue()


def test_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    callback = CheckpointCallback(save_freq=5, save_path=folder, name_prefix="mine")
    small_model().learn(2 * BATCH, callback=callback)
    assert sorted(path.name for path in folder.iterdir()) == [
        "mine_10_steps.zip",
        "mine_20_steps.zip",
        "mine_30_steps.zip",
    ]
    assert PPO2.load(folder / "mine_20_steps").num_timesteps == 20


class Fixed(Noisy):
    """The return of each episode is its number."""

    episode = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episode += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.episode / self.length, terminated, truncated, info


def test_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = EvalCallback(
        Fixed(), n_eval_episodes=2, eval_freq=4, log_path=tmp_path / "logs", best_model_save_path=tmp_path / "best"
    )
    model = small_model(env=noisy())
    model.learn(BATCH, callback=evaluation)
    saved = np.load(tmp_path / "logs" / "evaluations.npz")
    assert saved["timesteps"].tolist() == [8, 16]
    # Another episode starts after the last one of an evaluation; the next evaluation resets it.
    np.testing.assert_allclose(saved["results"], [[1, 2], [4, 5]], rtol=1e-5)
    assert saved["ep_lengths"].tolist() == [[5, 5], [5, 5]]
    assert evaluation.best_mean_reward == pytest.approx(4.5)
    assert PPO2.load(tmp_path / "best" / "best_model").num_timesteps == 16
    assert "Eval num_timesteps=8, episode_reward=1.50 +/- 0.50" in capsys.readouterr().out


def test_training_stops_at_a_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    stop = StopTrainingOnRewardThreshold(reward_threshold=4, verbose=1)
    evaluation = EvalCallback(Fixed(), callback_on_new_best=stop, n_eval_episodes=2, eval_freq=3, verbose=0)
    model = small_model(env=noisy()).learn(10 * BATCH, callback=evaluation)
    assert model.num_timesteps == 2 * 3 * N_ENVS
    assert capsys.readouterr().out.startswith("Stopping training because the mean reward 4.50 is above the threshold 4")
    with pytest.raises(ValueError, match="must be part of an EvalCallback"):
        small_model().learn(BATCH, callback=StopTrainingOnRewardThreshold(3))


def test_an_evaluation_has_the_statistics_of_training() -> None:
    eval_env = VecNormalize(DummyVecEnv([cart_pole]), training=False, norm_reward=False)
    model = small_model(env=VecNormalize(DummyVecEnv([cart_pole] * N_ENVS)))
    model.learn(BATCH, callback=EvalCallback(eval_env, eval_freq=N_STEPS, n_eval_episodes=1, verbose=0))
    training = model.get_vec_normalize_env()
    assert training is not None
    assert training.obs_rms.count == pytest.approx(BATCH, abs=1)
    assert eval_env.obs_rms.mean.tolist() == training.obs_rms.mean.tolist()


def test_evaluation_leaves_training_as_it_is() -> None:
    plain, evaluated = small_model(), small_model()
    plain.learn(2 * BATCH)
    evaluated.learn(2 * BATCH, callback=EvalCallback(cart_pole(), eval_freq=2, n_eval_episodes=1, verbose=0))
    for name, weight in plain.get_parameters().items():
        np.testing.assert_array_equal(weight, evaluated.get_parameters()[name])


def test_every_n_timesteps_and_lists() -> None:
    inner = Every()
    small_model().learn(2 * BATCH, callback=CallbackList([EveryNTimesteps(10, inner), lambda _l, _g: True]))
    assert inner.at == [10, 20, 30]


class Every(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.at: list[int] = []

    def _on_step(self) -> bool:
        self.at.append(self.num_timesteps)
        return True


def test_recorded_values_are_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    class Recording(BaseCallback):
        def _on_rollout_end(self) -> None:
            self.logger.record("my_number", 0.125)

    small_model(verbose=1).learn(BATCH, callback=Recording())
    assert "| my_number          | 0.125" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [0, 2.5, True])
def test_invalid_numbers_are_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match="save_freq: must be a positive integer"):
        CheckpointCallback(wrong, "x")
    with pytest.raises(ValueError, match="n_eval_episodes: must be a positive integer"):
        EvalCallback(cart_pole(), n_eval_episodes=wrong)
    with pytest.raises(ValueError, match="eval_env: must hold one environment, got 2"):
        EvalCallback(noisy(count=2))


def test_attributes_have_the_types_of_stable_baselines(tmp_path: Path) -> None:
    """Scripts join the paths, and pass `verbose` on."""
    checkpoints = CheckpointCallback(5, tmp_path / "logs")
    evaluation = EvalCallback(cart_pole(), log_path=tmp_path, best_model_save_path=str(tmp_path))
    assert checkpoints.save_path + "/more" == f"{tmp_path}/logs/more"
    assert (evaluation.log_path, evaluation.best_model_save_path) == (f"{tmp_path}/evaluations", str(tmp_path))
    assert ConvertCallback(lambda _l, _g: True, verbose=1).verbose == 1
