"""Observations and action masks that no policy can act on."""

from __future__ import annotations

import datetime
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.bad_input import Result

if TYPE_CHECKING:
    from minerva.api import Policy

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": BOX,
    "image": IMAGE,
    "dict": spaces.Dict({"where": BOX, "what": spaces.Discrete(4), "bits": spaces.MultiBinary(3)}),
    "discrete": spaces.Discrete(5, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
}
MASKED = "discrete"
"""Whose policy takes action masks."""
ACTIONS = 3


class Still(gymnasium.Env[Any, Any]):
    """An environment with an observation space and nothing else."""

    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, kind: str) -> None:
        self.observation_space = SPACES[kind]
        self._info = {"action_mask": np.ones(ACTIONS)} if kind == MASKED else {}

    def reset(  # noqa: D102
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: D102
        return self.observation_space.sample(), 0.0, False, False, self._info


def load_policies() -> dict[str, Policy]:
    """Return a policy for each space, loaded from a checkpoint."""
    import minerva

    loaded = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in SPACES:
            small: dict[str, Any] = {"rollout_steps": 8, "minibatch_size": 8, "eval_episodes": 0, "console": False}
            trainer = minerva.PPOTrainer(partial(Still, kind), device="cpu", **small)
            trainer.save(Path(folder) / f"{kind}.pt")
            trainer.close()
            loaded[kind] = minerva.load(Path(folder) / f"{kind}.pt")
    return loaded


def results(count: int, seed: int) -> Iterator[Result]:
    """Yield what became of so many bad observations and masks."""
    choose = random.Random(seed)
    policies = load_policies()
    for k in range(count):
        kind = choose.choice(list(SPACES))
        space = SPACES[kind]
        obs, mask = space.sample(), None
        if k % 5 == 4:
            kind, obs = MASKED, SPACES[MASKED].sample()
            mask = bad_mask(choose)
        else:
            obs = bad(space, choose)
        yield attempt(f"{kind}: {obs!r:.60}, mask {mask!r:.60}", policies[kind], obs, mask)


def attempt(case: str, policy: Policy, obs: Any, mask: Any = None) -> Result:
    """Act on an observation."""
    try:
        policy.act(obs, action_mask=mask)
    except ValueError as error:
        one_line = str(error).startswith(("observation", "action_mask")) and "\n" not in str(error)
        return Result("acting", case, "refused" if one_line else "traceback", str(error))
    except Exception as error:
        return Result("acting", case, "traceback", repr(error))
    return Result("acting", case, "accepted", "")


def bad(space: gymnasium.Space[Any], choose: random.Random) -> Any:
    """Return something like an observation of a space that is none."""
    if isinstance(space, spaces.Dict):
        obs = dict(space.sample())
        key = choose.choice(list(obs))
        how = choose.randrange(4)
        if how == 0:
            del obs[key]
        elif how == 1:
            obs[f"{key}x"] = obs[key]
        elif how == 2:
            return choose.choice([*obs.values(), None, list(obs.items()), "obs", {}])
        else:
            obs[key] = bad(space[key], choose)
        return obs
    if choose.random() < 0.4:
        return choose.choice(FOREIGN)
    values = np.asarray(space.sample())
    wrong: list[Any] = [
        values.astype(complex),
        values.astype(str),
        values.astype(object),
        values.astype("datetime64[s]"),
    ]
    wrong += [np.stack([values] * 2)[None], np.zeros((*values.shape, 2, 7)), np.full(values.shape, None)]
    if not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
        off = choose.choice([-1, 300, 0.5, np.nan, np.inf, -(2**40), 2**62])
        wrong.append(np.full(values.shape, off))
    else:
        spoiled = values.copy().astype(np.float64)
        spoiled[choose.randrange(len(spoiled))] = choose.choice([np.nan, np.inf, -np.inf, 1e39, -1e300])
        wrong += [
            spoiled,
            spoiled[None].repeat(choose.randrange(1, 4), axis=0),
            spoiled.tolist(),
            torch.tensor(spoiled),
        ]
    return choose.choice(wrong)


def bad_mask(choose: random.Random) -> Any:
    """Return something like a mask that is none."""
    values: list[Any] = [0, 1, 1]
    values[choose.randrange(3)] = choose.choice([np.nan, np.inf, 0.5, -1, 2, None, "1", 1j, 2**70])
    other: list[Any] = [
        values,
        [values],
        np.zeros(ACTIONS),
        np.ones(ACTIONS - 1),
        np.ones((2, ACTIONS)),
        "111",
        {},
        1.0,
    ]
    return choose.choice(other)


class Awkward:
    """An object that refuses to become an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("no\narray")


FOREIGN: tuple[Any, ...] = (
    None, "text", b"bytes", 1j, {}, {1: 2}, [[1.0], [2.0, 3.0]], [None] * 3, set(), object(), len, Awkward(),
    datetime.date(2026, 1, 1), np.datetime64("2026-01-01"), [np.timedelta64(1, "s")] * 3, ["1", "2", "3"], [1j, 0, 0],
    torch.zeros(3, requires_grad=True), torch.zeros(3, dtype=torch.complex64), torch.zeros(7, 3, 2), range(9),
    np.zeros(3, dtype=[("a", float)]), 2**70, float("nan"), [float("nan")] * 3, [2**70] * 3, np.zeros((3, 3, 3, 3, 3)),
)  # fmt: skip
"""What is an observation of none of the spaces."""
