"""Environments that do one thing wrong, trained for tens of steps: each must end its run with one sentence.

A case is a space, the moment of the fault, the part that is wrong, in which way, and the algorithm that trains. A few
run in worker processes. A case is repeated with ``run_case(Case(...))``, from the line that names it.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.bad_input import Result
from minerva import api
from minerva.environments import EnvironmentFailureError
from minerva.storage.replay import ReplayBuffer
from minerva.trainers.trainer import Trainer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # worker processes may not find this module


class UnprintableError(Exception):
    """An exception whose message raises another one."""

    def __str__(self) -> str:
        raise ValueError("no message")


class BareError(BaseException):
    """An exception that `except Exception` misses."""


SPACES: dict[str, gymnasium.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "number": spaces.Box(-1.0, 1.0, (1,), np.float32),
    "bytes": spaces.Box(0, 255, (4, 4, 1), np.uint8),
    "discrete": spaces.Discrete(3, start=1),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(2)}),
    "tuple": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(2)]),
}
NUMBERS_WRONG: dict[str, Callable[[Any], Any]] = {  # for spaces whose observation is one array
    "None": lambda good: None,
    "text": lambda good: "no observation",
    "bytes": lambda good: b"\0\0",
    "a complex number": lambda good: 1j,
    "an object": lambda good: object(),
    "a function": lambda good: len,
    "a generator": lambda good: (x for x in (1, 2, 3)),
    "a set": lambda good: {1, 2, 3},
    "a dict": lambda good: {"a": good},
    "nothing": lambda good: np.zeros(0),
    "one more axis": lambda good: np.asarray(good)[None],
    "two of them": lambda good: np.stack([good, good]),
    "five numbers": lambda good: np.zeros(5),
    "seven axes": lambda good: np.zeros((1,) * 7),
    "complex numbers": lambda good: np.asarray(good) + 0j,
    "texts": lambda good: np.asarray(good).astype(str),
    "objects": lambda good: np.full(np.shape(good), None),
    "dates": lambda good: np.zeros(np.shape(good), "datetime64[s]"),
    "a ragged list": lambda good: [1, [2, 3], 4],
    "a list of None": lambda good: [None, None, None],
    "not a number": lambda good: np.full(np.shape(good), np.nan),
    "infinite": lambda good: np.full(np.shape(good), -np.inf),
    "too large for float32": lambda good: np.full(np.shape(good), 1e300),
}
PARTS_WRONG: dict[str, Callable[[Any], Any]] = {  # for Dict and Tuple
    "None": lambda good: None,
    "text": lambda good: "ab",
    "a number": lambda good: 1.0,
    "an array": lambda good: np.zeros(4),
    "nothing": lambda good: {} if isinstance(good, Mapping) else (),
    "one part missing": lambda good: _parts(good, list(_items(good))[:1]),
    "one part more": lambda good: {**good, "c": 0} if isinstance(good, Mapping) else (*good, 0),
    "the other kind": lambda good: tuple(good.values()) if isinstance(good, Mapping) else dict(enumerate(good)),
    "a part of None": lambda good: _parts(good, [(key, None) for key, _ in _items(good)]),
    "a part of text": lambda good: _parts(good, [(key, "x") for key, _ in _items(good)]),
    "a part of another shape": lambda good: _parts(good, [(key, np.zeros(9)) for key, _ in _items(good)]),
    "a part that is complex": lambda good: _parts(good, [(key, np.asarray(part) + 0j) for key, part in _items(good)]),
    "a part that is not a number": lambda good: _parts(good, _not_numbers(good)),
}  # fmt: skip
REWARDS: dict[str, Any] = {
    "None": None, "text": "7", "empty text": "", "bytes": b"7", "complex": 1j, "NaN": np.nan, "infinite": np.inf,
    "minus infinite": -np.inf, "too large": 1e300, "a huge integer": 10**400, "a list": [1.0], "a tuple": (1.0, 2.0),
    "a dict": {"reward": 1.0}, "two numbers": np.zeros(2), "no number": np.zeros(0), "a matrix": np.zeros((2, 2)),
    "one in an array": np.zeros(1), "an object": object(), "a function": len, "a date": np.datetime64("2020-01-01"),
    "text in an array": np.array("7"), "None in an array": np.array(None), "NaN of NumPy": np.float32("nan"),
    "complex of NumPy": np.complex64(1j), "a type": float, "not implemented": NotImplemented,
}  # fmt: skip
FLAGS: dict[str, Any] = {
    "None": None, "text": "no", "empty text": "", "bytes": b"", "two": 2, "minus one": -1, "a half": 0.5,
    "a float": 1.0, "NaN": np.nan, "complex": 1j, "a list": [], "a list of one": [False], "a dict": {},
    "an object": object(),
    "two flags": np.zeros(2, bool), "no flag": np.zeros(0, bool), "one in an array": np.zeros(1, bool),
    "a function": bool, "not implemented": NotImplemented, "ellipsis": ...,
}  # fmt: skip
INFOS: dict[str, Any] = {
    "None": None, "text": "", "a list": [], "a number": 0, "a set": set(), "True": True, "a type": dict, "a tuple": (),
}  # fmt: skip
WHOLE: dict[str, Callable[[tuple[Any, ...]], Any]] = {  # what the call returns instead
    "None": lambda good: None,
    "the observation alone": lambda good: good[0],
    "nothing": lambda good: (),
    "one value": lambda good: good[:1],
    "one value less": lambda good: good[:-1],
    "one value more": lambda good: (*good, {}),
    "the old interface": lambda good: (*good[:3], good[-1]),
    "in the other order": lambda good: good[::-1],
    "a dict": lambda good: dict(enumerate(good)),
    "a generator": lambda good: (value for value in good),
    "text": lambda good: "abcde",
    "True": lambda good: True,
}
RAISED: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("the simulator is gone"),
    "an empty error": ValueError,
    "an unprintable error": UnprintableError,
    "an error with percent and braces": lambda: OSError("%s {0} \n\x00"),
    "a long error": lambda: KeyError("x" * 10_000),
    "exit 0": lambda: SystemExit(0),
    "exit None": SystemExit,
    "exit text": lambda: SystemExit("bye"),
    "exit 3": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "BareError": BareError,
    "BrokenPipeError": BrokenPipeError,
    "EOFError": EOFError,
    "AssertionError": AssertionError,
    "a warning": lambda: UserWarning("raised"),
    "a group": lambda: ExceptionGroup("several", [ValueError("a"), OSError("b")]),
}
SPACES_WRONG: dict[str, Any] = {
    "None": None, "a tuple": (3,), "a number": 3, "text": "Box(3)", "a class": spaces.Box, "missing": AttributeError,
    "words": spaces.Text(5), "a sequence": spaces.Sequence(spaces.Discrete(2)), "a graph":
    spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)), "words in a dict": spaces.Dict({"a": spaces.Text(3)}),
}  # fmt: skip

MOMENTS = {"reset": 0, "first step": 1, "step": 7, "end": 10}  # of every episode; episodes have ten steps
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 16, "minibatch_size": 16, "update_epochs": 1, "critic_layer_sizes": (4,)},
    "vmpo": {"rollout_steps": 16, "value_layer_sizes": (4,)},
    "mpo": {"replay_size": 100, "update_after": 10, "batch_size": 4, "action_samples": 2, "critic_layer_sizes": (4,)},
}
STEPS = 32


class Case(NamedTuple):
    """One environment, and what trains on it."""

    space: str  # a key of SPACES
    part: Literal["observation", "reward", "terminated", "truncated", "info", "whole", "raise", "observation_space",
                  "action_space", "make"]  # fmt: skip
    wrong: str  # a key of the part's table
    moment: str  # a key of MOMENTS
    algo: str
    vectorization: str = "sync"


class Faulty(gymnasium.Env[Any, Any]):
    """Do one thing wrong at one moment."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, case: Case) -> None:
        self.case = case
        self.observation_space = SPACES[case.space]
        if case.part == "make":
            raise RAISED[case.wrong]()
        if case.part in ("observation_space", "action_space"):
            wrong = SPACES_WRONG[case.wrong]
            if wrong is AttributeError:
                wrong = None
            setattr(self, case.part, wrong)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode of ten steps."""
        super().reset(seed=seed)
        self.steps = 0
        return self._returned(("observation", "info"))

    def step(self, action: Any) -> Any:
        """Take a step."""
        self.steps += 1
        return self._returned(("observation", "reward", "terminated", "truncated", "info"))

    def _returned(self, names: tuple[str, ...]) -> Any:
        case, good = self.case, _good(self.case.space)
        values = {"observation": good, "reward": 1.0, "terminated": self.steps == 10, "truncated": False, "info": {}}
        result = tuple(values[name] for name in names)
        if self.steps != MOMENTS[case.moment]:
            return result
        if case.part == "raise":
            raise RAISED[case.wrong]()
        if case.part == "whole":
            return WHOLE[case.wrong](result)
        if case.part == "observation":
            values["observation"] = _wrong_observations(case.space)[case.wrong](good)
        elif case.part in ("reward", "terminated", "truncated", "info"):
            values[case.part] = _table(case.part)[case.wrong]
        return tuple(values[name] for name in names)


def results(count: int, seed: int) -> Iterator[Result]:
    """Yield the results of `count` cases, drawn from all cases; one in forty runs in worker processes."""
    random = np.random.default_rng(seed)
    cases = all_cases()
    order = random.permutation(len(cases))
    for k in range(count):
        case = cases[order[k % len(cases)]]
        yield run_case(case._replace(vectorization="subprocess") if k % 40 == 39 else case)


def all_cases() -> list[Case]:
    """Return all cases in process."""
    algorithms = itertools.cycle(ALGORITHMS)
    cases = []
    for space, moment in itertools.product(SPACES, MOMENTS):
        cases += [Case(space, "observation", wrong, moment, next(algorithms)) for wrong in _wrong_observations(space)]
    for moment in MOMENTS:
        parts: list[Any] = ["info", "whole", "raise"]
        parts += [] if moment == "reset" else ["reward", "terminated", "truncated"]
        cases += [
            Case("vector", part, wrong, moment, algo)
            for part in parts
            for wrong, algo in itertools.product(_table(part), ALGORITHMS)
        ]
    cases += [Case("vector", "make", wrong, "reset", algo) for wrong, algo in itertools.product(RAISED, ALGORITHMS)]
    for part in ("observation_space", "action_space"):
        tables: Any = itertools.product(SPACES_WRONG, ALGORITHMS)
        cases += [Case("vector", part, wrong, "reset", algo) for wrong, algo in tables]
    return cases


def run_case(case: Case) -> Result:
    """Train on a case's environment; what is wrong in it must be refused."""
    fields = {
        "num_envs": 2, "policy_layer_sizes": (4,), "eval_episodes": 0, "console": False, "compile": False,
        "vectorization": case.vectorization, **ALGORITHMS[case.algo],
    }  # fmt: skip
    trainer: Trainer | None = None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            config = api.config_class(case.algo).from_fields(None, fields)
            trainer = api.make_trainer(case.algo, partial(Faulty, case), 1, "cpu", config)
            trainer.train(STEPS, out_dir=Path(folder) / "run")
        except (EnvironmentFailureError, ValueError) as error:
            return Result("environments", repr(case), *_judged(error, trainer, Path(folder) / "run"))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return Result("environments", repr(case), "traceback", _text(error))
        finally:
            if trainer is not None:
                trainer.close()
        told = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
        dropped = next((text for text in told if "is dropped" in text), None)
        if dropped is not None and isinstance(trainer.replay, ReplayBuffer) and trainer.replay.dropped > 0:
            return Result("environments", repr(case), "refused", dropped)  # MPO leaves such a step out and goes on
    return Result("environments", repr(case), "accepted", "the run ended as if nothing had been wrong")


def _judged(error: Exception, trainer: Trainer | None, folder: Path) -> tuple[Any, str]:
    text = _text(error)
    if not text or "Traceback" in text or "setting an array element" in text:
        return "traceback", text
    if isinstance(error, ValueError) and not text.startswith("env: ") and not text.startswith("observation space: "):
        return "traceback", text
    if trainer is not None and trainer.env_steps > 0 and not list(folder.glob("*_last.pt")):
        return "crash", f"nothing is saved: {text}"
    return "refused", text


def _text(error: BaseException) -> str:
    with suppress(Exception):
        return str(error)
    return type(error).__name__


def _table(part: str) -> Mapping[str, Any]:
    return {
        "reward": REWARDS, "terminated": FLAGS, "truncated": FLAGS, "info": INFOS, "whole": WHOLE, "raise": RAISED,
    }[part]  # fmt: skip


def _wrong_observations(space: str) -> dict[str, Callable[[Any], Any]]:
    if space in ("dict", "tuple"):
        return PARTS_WRONG
    extra: dict[str, Callable[[Any], Any]] = {}
    if space in ("discrete", "multidiscrete", "multibinary", "bytes"):
        extra = {
            "below": lambda good: np.asarray(good).astype(np.int64) - 9,
            "above": lambda good: np.asarray(good).astype(np.int64) + 999,
            "fractions": lambda good: np.asarray(good) + 0.5,
        }
    return {**NUMBERS_WRONG, **extra}


def _good(space: str) -> Any:
    return {
        "vector": np.zeros(3, np.float32), "matrix": np.zeros((2, 2)), "number": np.zeros(1, np.float32),
        "bytes": np.zeros((4, 4, 1), np.uint8), "discrete": 1, "multidiscrete": np.array([1, 2]),
        "multibinary": np.array([0, 1, 0], np.int8), "dict": {"a": np.zeros(2, np.float32), "b": 1},
        "tuple": (np.zeros(2, np.float32), np.array([0, 1], np.int8)),
    }[space]  # fmt: skip


def _items(parts: Any) -> list[tuple[Any, Any]]:
    return list(parts.items()) if isinstance(parts, Mapping) else list(enumerate(parts))


def _not_numbers(good: Any) -> list[tuple[Any, Any]]:
    return [(key, np.full(np.shape(part), np.nan)) for key, part in _items(good)]


def _parts(good: Any, items: list[tuple[Any, Any]]) -> Any:
    return dict(items) if isinstance(good, Mapping) else tuple(part for _, part in items)
