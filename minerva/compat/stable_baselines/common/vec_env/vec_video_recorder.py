"""`VecVideoRecorder`: record what environments show as MP4 files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minerva.compat.stable_baselines.common.vec_env.base_vec_env import Array, VecEnv, VecEnvStepReturn, VecEnvWrapper

_FRAMES_PER_SECOND = 30


class VecVideoRecorder(VecEnvWrapper):
    """Record videos of ``render(mode="rgb_array")``: one from each reset, and one wherever a function says so.

    Args:
        venv: The vector environment to wrap.
        video_folder: Folder of the files, ``<name_prefix>-step-<first>-to-step-<last>.mp4``.
        record_video_trigger: Whether to start a video at a step, which is its argument.
        video_length: Steps of a video.
        name_prefix: Prefix of the file names.
    """

    handles_terminal_observation = True

    def __init__(
        self,
        venv: VecEnv,
        video_folder: str | os.PathLike[str],
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
    ) -> None:
        super().__init__(venv)
        self.record_video_trigger = record_video_trigger
        self.video_folder = str(Path(video_folder).absolute())
        Path(self.video_folder).mkdir(parents=True, exist_ok=True)
        self.video_length = video_length
        self.name_prefix = name_prefix
        self.step_id = 0
        self.recording = False
        self._frames: list[Array] = []
        self._path = Path()
        _ffmpeg()  # a missing program is reported before the first step

    def reset(self) -> Any:
        """Reset every environment and start a video."""
        obs = self.venv.reset()
        self.start_video_recorder()
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """Finish the step and record it, or start a video."""
        result = self.venv.step_wait()
        self.step_id += 1
        if self.recording:
            self._capture()
            if len(self._frames) > self.video_length:
                self.close_video_recorder()
        elif self.record_video_trigger(self.step_id):
            self.start_video_recorder()
        return result

    def start_video_recorder(self) -> None:
        """Write the video that is being recorded, and start another."""
        self.close_video_recorder()
        name = f"{self.name_prefix}-step-{self.step_id}-to-step-{self.step_id + self.video_length}.mp4"
        self._path = Path(self.video_folder) / name
        self.recording = True
        self._capture()

    def _capture(self) -> None:
        frame = self.venv.render(mode="rgb_array")
        if not isinstance(frame, np.ndarray):
            raise ValueError(
                "venv: its render must return an image; make the environments with render_mode='rgb_array', or with "
                "gym.make of minerva.compat."
            )
        self._frames.append(frame)

    def close_video_recorder(self) -> None:
        """Write the video that is being recorded, if any."""
        if self.recording:
            _write(self._frames, self._path)
        self.recording, self._frames = False, []

    def close(self) -> None:
        """Write the video that is being recorded and close every environment."""
        self.close_video_recorder()
        super().close()


def _ffmpeg() -> str:
    """Return the path of the program that writes MP4 files.

    Raises:
        ValueError: It is not installed.
    """
    path = shutil.which("ffmpeg")
    if path is None:
        raise ValueError("VecVideoRecorder: needs the program ffmpeg, which is not installed (Debian: ffmpeg).")
    return path


def _write(frames: list[Array], path: Path) -> None:
    height, width, _ = frames[0].shape
    pixels = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {_FRAMES_PER_SECOND} -i -".split()
    # Players expect this format, which needs an even number of pixels.
    video = ["-an", "-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", str(path)]
    command = [_ffmpeg(), "-y", "-loglevel", "error", *pixels, *video]
    subprocess.run(command, input=b"".join(frame.astype(np.uint8).tobytes() for frame in frames), check=True)
