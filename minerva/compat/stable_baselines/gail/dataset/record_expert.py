"""Record demonstrations of a model, or of a function that chooses actions."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minerva.compat.gym.core import with_old_interface
from minerva.compat.stable_baselines.common.vec_env import VecEnv


def generate_expert_traj(
    model: Any,
    save_path: str | os.PathLike[str] | None = None,
    env: Any = None,
    n_timesteps: int = 0,
    n_episodes: int = 100,
    image_folder: str = "recorded_images",
) -> dict[str, NDArray[Any]]:
    """Record whole episodes, for an `ExpertDataset`; close the environment at the end.

    Args:
        model: A model, or a function from an observation to an action.
        save_path: The file, ``.npz`` is added; None to write none.
        env: The environment (default: the model's). Of several, the first is recorded.
        n_timesteps: Steps for which the model is trained before.
        n_episodes: Number of episodes.
        image_folder: Folder beside the file for observations that are pictures; the data have their paths.

    Returns:
        The data.
    """
    is_model = hasattr(model, "predict")
    if env is None and is_model:
        env = model.get_env()
    if env is None:
        raise ValueError("env: must be given, or be set in the model.")
    is_vec_env = isinstance(env, VecEnv)
    if not is_vec_env:
        env = with_old_interface(env)
    elif env.num_envs > 1:
        warnings.warn("env: only the first environment is recorded.", UserWarning, stacklevel=2)
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name), (spaces.Box, spaces.Discrete)):
            raise ValueError(f"env: its {name} must be a Box or Discrete, got {getattr(env, name)}.")
    pictures = _picture_folder(env.observation_space, save_path, image_folder)
    if n_timesteps > 0 and is_model:
        model.learn(n_timesteps)

    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[float] = []
    starts: list[bool] = []
    returns: list[float] = []
    observation, state = env.reset(), None
    start, total = True, 0.0
    mask = [True] * env.num_envs if is_vec_env else None
    while len(returns) < n_episodes:
        seen = observation[0] if is_vec_env else observation
        observations.append(seen if pictures is None else _save_picture(pictures / f"{len(actions)}.png", seen))
        starts.append(start)
        if is_model:
            action, state = model.predict(observation, state=state, mask=mask)
        else:
            action = model(observation)
        observation, reward, done, _ = env.step(action)
        if is_vec_env:
            mask = list(done)
            action, reward, done = action[0], reward[0], done[0]
        actions.append(action)
        rewards.append(float(reward))
        total += float(reward)
        start = bool(done)
        if done:
            returns.append(total)
            total = 0.0
            if not is_vec_env:
                observation, state = env.reset(), None

    data = {
        "actions": _column(actions, env.action_space),
        "obs": np.array(observations) if pictures is not None else _column(observations, env.observation_space),
        "rewards": np.array(rewards),
        "episode_returns": np.array(returns),
        "episode_starts": np.array(starts),
    }
    for key, values in data.items():
        print(key, values.shape)
    if save_path is not None:
        np.savez(save_path, **data)  # type: ignore[arg-type]
    env.close()
    return data


def _column(values: list[Any], space: Any) -> NDArray[Any]:
    return np.array(values).reshape(len(values), *(space.shape or (1,)))


def _picture_folder(space: Any, save_path: Any, name: str) -> Path | None:
    """Return the folder for pictures, None where observations are stored as numbers."""
    shape = space.shape
    if space.dtype != np.uint8 or len(shape) != 3:
        return None
    if save_path is None or shape[-1] not in (1, 3, 4):
        warnings.warn(
            f"save_path: observations of the shape {shape} are stored as numbers, which needs much memory; pictures of "
            "1, 3 or 4 channels can be stored as files if save_path is given.",
            UserWarning,
            stacklevel=3,
        )
        return None
    folder = Path(save_path).parent / name
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Images will be recorded to {folder}/")
    return folder


def _save_picture(path: Path, picture: NDArray[np.uint8]) -> str:
    import cv2

    if not cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.shape[-1] == 3 else picture):
        raise OSError(f"image_folder: {path} cannot be written.")
    return str(path)
