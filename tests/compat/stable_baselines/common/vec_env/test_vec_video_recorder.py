from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minerva.compat.stable_baselines.common.vec_env import DummyVecEnv, VecVideoRecorder
from tests.environments.tiny_envs import Noisy


class Painted(Noisy):
    def render(self) -> Any:
        return np.full((33, 46, 3), min(20 * self.steps, 255), np.uint8)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_videos_are_recorded(tmp_path: Path) -> None:
    venv = VecVideoRecorder(
        DummyVecEnv([lambda: Painted(50)]),
        tmp_path / "videos",
        lambda step: step == 8,
        video_length=3,
        name_prefix="mine",
    )
    venv.reset()
    for _ in range(13):
        venv.step(np.zeros((1, 1), np.float32))
    venv.close()
    files = sorted((tmp_path / "videos").iterdir())
    assert [file.name for file in files] == ["mine-step-0-to-step-3.mp4", "mine-step-8-to-step-11.mp4"]
    for file, begin in zip(files, (0, 8), strict=True):
        raw = subprocess.run(
            ["ffmpeg", "-loglevel", "error", "-i", str(file), "-f", "rawvideo", "-pix_fmt", "gray", "-"],
            capture_output=True, check=True,
        ).stdout  # fmt: skip
        shown = np.frombuffer(raw, np.uint8).reshape(4, 34, 46)[:, 5, 5].astype(float)
        np.testing.assert_allclose(shown, [20 * (begin + k) for k in range(4)], atol=20)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = DummyVecEnv([Noisy])
    if shutil.which("ffmpeg"):
        with pytest.raises(ValueError, match="its render must return an image"):
            VecVideoRecorder(DummyVecEnv([Blank]), tmp_path, lambda step: False).reset()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="needs the program ffmpeg"):
        VecVideoRecorder(venv, tmp_path, lambda step: False)


class Blank(Noisy):
    def render(self) -> Any:
        return None
