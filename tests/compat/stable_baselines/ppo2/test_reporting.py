from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from minerva.compat.stable_baselines import BaseCallback, DummyVecEnv, logger
from minerva.compat.stable_baselines.ppo2.reporting import as_picture, new_run_folder
from tests.compat.stable_baselines.samples import BATCH, N_STEPS, noisy, small_model
from tests.environments.tiny_envs import Picking

TABLE = {
    "serial_timesteps", "n_updates", "total_timesteps", "fps", "explained_variance", "ep_reward_mean", "ep_len_mean",
    "time_elapsed", "policy_loss", "value_loss", "policy_entropy", "approxkl", "clipfrac",
}  # fmt: skip
GRAPH = {
    "entropy_loss", "policy_gradient_loss", "value_function_loss", "approximate_kullback-leibler", "clip_factor",
    "loss", "learning_rate", "clip_range", "clip_range_vf", "advantage", "old_neglog_action_probability",
    "old_value_pred", "discounted_rewards", "episode_reward",
}  # fmt: skip


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"images": 0, "histograms": 0})
    found.Reload()
    return found


def test_tensorboard_has_every_name(tmp_path: Path) -> None:
    model = small_model(
        env=noisy(), tensorboard_log=tmp_path, learning_rate=lambda share: 1e-3 * share, cliprange="lin_0.2"
    )
    model.learn(4 * BATCH)
    found = events(tmp_path / "PPO2_1")
    tags = found.Tags()
    assert set(tags["scalars"]) == TABLE | GRAPH
    assert tags["histograms"] == tags["images"] == []
    steps = {event.step: event.value for event in found.Scalars("learning_rate")}
    assert steps == pytest.approx({16: 1e-3, 32: 7.5e-4, 48: 5e-4, 64: 2.5e-4})
    assert [event.value for event in found.Scalars("clip_range_vf")] == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert [event.value for event in found.Scalars("serial_timesteps")] == [8, 16, 24, 32]
    assert [event.step for event in found.Scalars("episode_reward")] == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50, 60, 60]
    assert {event.value for event in found.Scalars("ep_len_mean")} == {5}
    assert model.trainer is not None
    assert model.trainer.last_update is not None
    batch = model.trainer.last_update.batch
    assert batch.weights.all()
    newest = {tag: found.Scalars(tag)[-1].value for tag in TABLE | GRAPH}
    means = model.trainer.last_update.means
    for old, ours in (
        ("approxkl", "square_kl"),
        ("approximate_kullback-leibler", "square_kl"),
        ("policy_loss", "policy"),
        ("value_loss", "value"),
        ("policy_entropy", "entropy"),
        ("clipfrac", "clipfrac"),
        ("clip_factor", "clipfrac"),
        ("loss", "total"),
    ):
        assert newest[old] == pytest.approx(means[ours], rel=1e-5), old
    assert newest["approxkl"] > 0
    assert newest["discounted_rewards"] == pytest.approx(batch.returns.mean().item(), rel=1e-4)
    assert newest["old_value_pred"] == pytest.approx(batch.values.mean().item(), rel=1e-4)
    assert newest["old_neglog_action_probability"] == pytest.approx(-batch.log_probs.mean().item(), rel=1e-4)
    assert newest["advantage"] == pytest.approx(batch.advantages.mean().item(), rel=1e-4, abs=1e-5)
    assert newest["loss"] == pytest.approx(
        newest["policy_gradient_loss"] - 0.01 * newest["entropy_loss"] + 0.5 * newest["value_function_loss"], rel=1e-4
    )


def test_no_range_where_values_are_not_clipped(tmp_path: Path) -> None:
    small_model(env=noisy(), tensorboard_log=tmp_path, cliprange_vf=-1).learn(BATCH)
    assert set(events(tmp_path / "PPO2_1").Tags()["scalars"]) == (TABLE | GRAPH) - {"clip_range_vf"}


def test_histograms_of_weights_and_inputs(tmp_path: Path) -> None:
    model = small_model(env=noisy(), tensorboard_log=tmp_path, full_tensorboard_log=True)
    model.learn(BATCH)
    found = events(tmp_path / "PPO2_1")
    inputs = ("advantage", "old_neglog_action_probability", "old_value_pred", "discounted_rewards", "observation")
    wanted = {f"inputs/{name}" for name in inputs} | {f"weights/{name}" for name, _ in model.agent.named_parameters()}
    assert set(found.Tags()["histograms"]) == wanted
    assert found.Tags()["images"] == []
    (histogram,) = found.Histograms("inputs/advantage")
    assert histogram.histogram_value.num == BATCH


@pytest.mark.parametrize("shape", [(36, 36, 4), (4, 36, 36)])
@pytest.mark.parametrize("policy", ["CnnPolicy", "CnnLstmPolicy"])
def test_images_of_observations(tmp_path: Path, policy: str, shape: tuple[int, ...]) -> None:
    venv = DummyVecEnv([lambda: Picking(spaces.Discrete(2), spaces.Box(0, 255, shape, np.uint8))] * 2)
    settings = {"policy_kwargs": {"n_lstm": 4} if "Lstm" in policy else {}, "n_steps": 4, "noptepochs": 1}
    small_model(policy, venv, tensorboard_log=tmp_path, full_tensorboard_log=True, **settings).learn(8)
    found = events(tmp_path / "PPO2_1")
    assert found.Tags()["images"] == ["observation"]
    (image,) = found.Images("observation")
    assert (image.height, image.width) == (36, 36)
    assert "inputs/observation" not in found.Tags()["histograms"]


def test_pictures() -> None:
    image = np.arange(4 * 5 * 3).reshape(4, 5, 3)
    for shape, layout, wanted in (
        ((4, 5, 3), True, image),
        ((4, 5, 2), True, image[..., 1:2]),
        ((2, 4, 5), False, image[..., 1:2]),
        ((4, 5), False, image[..., :1]),
    ):
        part = image[..., : 3 if 3 in shape else 2]
        stored = part if layout else np.moveaxis(part, -1, 0)
        stored = image[..., 0] if len(shape) == 2 else stored
        picture = as_picture(stored.reshape(-1), spaces.Box(0, 255, shape, np.uint8), layout)
        np.testing.assert_array_equal(picture, wanted)


def test_event_files_are_numbered(tmp_path: Path) -> None:
    model = small_model(tensorboard_log=str(tmp_path))
    model.learn(BATCH)
    model.learn(BATCH)
    model.learn(BATCH, reset_num_timesteps=False)
    model.learn(BATCH, tb_log_name="other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PPO2_1", "PPO2_2", "other_1"]
    # Two files of the same second: TensorBoard reads them in the order of their names, and ".10" comes before ".9".
    assert sorted(event.step for event in events(tmp_path / "PPO2_2").Scalars("n_updates")) == [16, 32]
    (tmp_path / "PPO2_9").mkdir()
    (tmp_path / "PPO2_x").mkdir()
    assert new_run_folder(tmp_path, "PPO2").name == "PPO2_10"


def test_a_new_model_never_writes_into_the_folder_of_another_run(tmp_path: Path) -> None:
    for _ in range(2):
        model = small_model(tensorboard_log=str(tmp_path)).learn(BATCH, reset_num_timesteps=False)
        model.learn(BATCH, reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PPO2_1", "PPO2_2"]


def test_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    small_model(env=noisy(), verbose=1).learn(5 * BATCH, log_interval=2)
    printed = capsys.readouterr().out
    tables = re.findall(r"-+\n((?:\|.*\|\n)+)-+\n", printed)
    assert len(tables) == 3  # the first, the second and the fourth
    rows = dict(re.findall(r"\| (\S+) +\| (\S+) +\|", tables[-1]))
    assert rows.keys() == TABLE
    assert list(rows) == sorted(rows)
    assert (rows["n_updates"], rows["serial_timesteps"], rows["total_timesteps"]) == ("4", str(4 * N_STEPS), "64")
    assert rows["ep_len_mean"] == "5"


def test_the_table_goes_where_the_logger_is_configured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Recording(BaseCallback):
        def _on_rollout_end(self) -> None:
            self.logger.logkv("half", self.num_timesteps / 2)

    with logger.ScopedConfigure(tmp_path, ["csv"]):
        small_model(env=noisy(), verbose=1).learn(3 * BATCH, callback=Recording(), log_interval=2)
    assert not capsys.readouterr().out
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == TABLE | {"half"}
    assert [(row["n_updates"], row["total_timesteps"], row["half"]) for row in rows] == [
        ("1", "16", "8.0"),
        ("2", "32", "16.0"),
    ]
    with logger.ScopedConfigure(tmp_path / "quiet", ["csv"]):
        small_model(env=noisy()).learn(BATCH, callback=Recording())
        assert not logger.getkvs()
    assert not (tmp_path / "quiet" / "progress.csv").read_text()
