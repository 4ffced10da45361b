"""Structurally wrong, damaged and oversized checkpoints, made from real ones of the three algorithms."""

from __future__ import annotations

import copy
import pickle
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bad_input import Result
from minerva.checkpointing import FORMAT

Place = tuple[Any, ...]  # keys and indices from the root of a checkpoint

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 16, "minibatch_size": 16, "policy_layer_sizes": (4,), "critic_layer_sizes": (4,)},
    "vmpo": {"rollout_steps": 16, "policy_layer_sizes": (4,), "value_layer_sizes": (4,)},
    "mpo": {
        "policy_layer_sizes": (4,), "critic_layer_sizes": (4,), "replay_size": 100, "update_after": 30, "batch_size": 8,
    },
}  # fmt: skip
COMMON = {"num_envs": 2, "eval_episodes": 0, "console": False, "compile": False}

HARMLESS = (
    ("versions",),  # a description
    ("config",),  # a setting that is missing has its default
    ("state", "health"),  # rules that are not known are ignored
    ("replay", "segments"),  # without them, an empty replay buffer is filled again, with a note
)
"""Where an entry may be missing or have another name."""
OPTIONAL = (
    ("replay",), ("run", "evaluated_at"), ("run", "total_steps"), ("state", "acceleration"),
    ("state", "collector", "chosen"),
)  # fmt: skip
"""What may be None."""


BOTH: tuple[str, ...] = ("minerva.load", "trainer.load")


def make_checkpoints(folder: Path) -> dict[str, Any]:
    """Train the algorithms for a moment; return a trainer of each, whose run is in a folder of its name."""
    from minerva import api

    trainers = {}
    for algo, fields in SMALL.items():
        config = api.config_class(algo).from_fields(None, {**COMMON, **fields})
        trainers[algo] = api.make_trainer(algo, "Pendulum-v1", 1, "cpu", config)
        trainers[algo].train(76, out_dir=folder / algo)
    return trainers


def results(count: int, seed: int) -> Iterator[Result]:
    """Yield what became of so many wrong checkpoints."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainers = make_checkpoints(folder)
        bombs = list(BOMBS)
        for k in range(count):
            algo = choose.choice(list(SMALL))
            path = folder / algo / f"{algo}_last.pt"
            good = path.read_bytes()
            try:
                if k % 10 == 8:
                    case, loads = damage(path, choose), BOTH
                elif k % 10 == 9:
                    case = bombs[k // 10 % len(bombs)]
                    path.write_bytes(BOMBS[case]())
                    loads = BOTH
                else:
                    case, loads = change(path, choose)
                yield from (attempt(f"{algo}: {case}", load, path, trainers[algo]) for load in loads)
            finally:
                path.write_bytes(good)
        for trainer in trainers.values():
            trainer.close()


def attempt(case: str, load: str, path: Path, trainer: Any) -> Result:
    """Load a checkpoint, in one way or the other."""
    import minerva

    case = f"{load} of {case}"
    try:
        minerva.load(path) if load == "minerva.load" else trainer.load(path)
    except ValueError as error:
        one_line = str(error).startswith(("checkpoint:", "replay:", "algo:")) and "\n" not in str(error)
        return Result("checkpoints", case, "refused" if one_line else "traceback", str(error))
    except Exception as error:
        return Result("checkpoints", case, "traceback", repr(error))
    return Result("checkpoints", case, "accepted", "")


# Wrong parts


def change(path: Path, choose: random.Random) -> tuple[str, tuple[str, ...]]:
    """Change a part of a checkpoint; return what was done and which ways of loading look at the part."""
    tree = torch.load(path, weights_only=True)
    while True:
        place = choose.choice(list(places(tree)))
        parent = tree
        for key in place[:-1]:
            parent = parent[key]
        done = change_part(parent, place, choose)
        if done is not None:
            break
    torch.save(tree, path)
    if done == "add" and place == ("state", "agent"):  # beside what a policy consists of
        return f"{done} beside state.agent", BOTH[1:]
    of_policy = place[0] != "replay" and (place[0] != "state" or place[1:2] in ((), ("agent",)))
    return f"{done} at {'.'.join(map(str, place))}", ("minerva.load", "trainer.load") if of_policy else (
        "trainer.load",
    )


def places(tree: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all parts, some of long lists."""
    if place:
        yield place
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from places(part, (*place, key))
    elif isinstance(tree, list):
        for i, part in enumerate(tree[:3]):
            yield from places(part, (*place, i))


def change_part(parent: Any, place: Place, choose: random.Random) -> str | None:
    """Change a part of its parent; return what was done, or None where it would be harmless."""
    key, part = place[-1], parent[place[-1]]
    loose = any(place[: len(where)] == where and len(place) > len(where) for where in HARMLESS)
    if place == ("config", "env_kwargs") or place[-1] == "shape":  # others may be right too
        return None
    how = choose.choice(["delete", "rename", "add", "retype", "negate", "nest", "reshape", "lengthen"])
    if how == "delete" and isinstance(parent, dict) and not loose:
        del parent[key]
    elif how == "rename" and isinstance(parent, dict) and not loose:
        parent[f"{key}x"] = parent.pop(key)
    elif how == "add" and isinstance(parent, dict) and not (loose and place[0] != "config"):
        parent[choose.choice(["extra", "__class__", ""])] = part
    elif how == "retype":
        other = choose.choice(OTHERS)
        if type(other) is type(part) or (other is None and place in OPTIONAL):
            return None
        if other is None and place[0] == "config" and "None" in _annotation(place[-1]):
            return None
        parent[key] = copy.deepcopy(other)
        how = f"retype to {other!r:.30}"
    elif how == "negate" and type(part) is int and part > 0 and place[0] not in ("config", "observation_space"):
        parent[key] = -part
    elif how == "nest" and not (isinstance(part, str) and loose):
        parent[key] = {"x": part} if isinstance(part, dict) else [part]
    elif how == "reshape" and isinstance(part, Tensor) and part.numel():
        parent[key] = choose.choice([
            part.unsqueeze(0), part.double() if part.dtype != torch.float64 else part.float(), torch.cat([part, part])
            if part.ndim else part.reshape(1), part.to(torch.complex64), part.tolist(),
        ])  # fmt: skip
    elif how == "lengthen" and isinstance(part, list) and part and place not in HARMLESS:
        parent[key] = part + part[:1] if choose.random() < 0.5 else part[:-1]
    else:
        return None
    return how


OTHERS: tuple[Any, ...] = (
    None,
    "text",
    -1,
    2**70,
    0.5,
    True,
    [],
    {},
    (),
    [1, "a"],
    {"a": 1},
    torch.zeros(2),
    torch.zeros(0, 3),
)


def _annotation(field: str) -> str:
    from minerva import api

    return " ".join(
        str(f.type) for algo in SMALL for f in api.config_class(algo).__dataclass_fields__.values() if f.name == field
    )


# Damaged files


def damage(path: Path, choose: random.Random) -> str:
    """Damage a file; return how."""
    content = bytearray(path.read_bytes())
    how = choose.choice(["cut", "overwrite", "empty", "noise", "prefix"])
    at = choose.randrange(len(content))
    if how == "cut":
        content = content[:at]
    elif how == "overwrite":  # within what an entry holds: between entries there is padding
        with zipfile.ZipFile(path) as archive:
            entry = choose.choice([entry for entry in archive.infolist() if entry.file_size > 8])
            start = content.index(archive.read(entry), entry.header_offset)
        content[start : start + 8] = bytes(byte ^ 255 for byte in content[start : start + 8])
    elif how == "empty":
        content = bytearray()
    elif how == "noise":
        content = bytearray(choose.randbytes(at + 1))
    else:
        content = bytearray(choose.randbytes(100)) + content
    path.write_bytes(bytes(content))
    return f"{how} at byte {at}"


# Files that would take far more memory than they are large


def _archive(tree: Any, compression: int = zipfile.ZIP_STORED, replace: bytes | None = None) -> bytes:
    """Return an archive as torch writes it, compressed on request, or with another pickle."""
    with tempfile.TemporaryDirectory() as folder:
        written, packed = Path(folder) / "written.pt", Path(folder) / "packed.pt"
        torch.save(tree, written)
        with zipfile.ZipFile(written) as old, zipfile.ZipFile(packed, "w", compression) as new:
            for entry in old.infolist():
                content = old.read(entry)
                new.writestr(entry.filename, replace if replace and entry.filename.endswith("data.pkl") else content)
        return packed.read_bytes()


def _pickled(call: bytes) -> bytes:
    """Return a pickle of a checkpoint whose state is made by the opcodes of a call."""
    text = b"X" + struct.pack("<I", 5)
    head = (
        b"\x80\x02}("
        + b"X\x06\x00\x00\x00formatK"
        + bytes([FORMAT])
        + b"X\x09\x00\x00\x00algorithmX\x03\x00\x00\x00ppo"
    )
    return head + text + b"state" + call + b"u."


def _laughs() -> bytes:
    node: Any = [0]
    for _ in range(40):
        node = [node] * 10
    return _archive({"format": FORMAT, "algorithm": "ppo", "state": node})


def _deep() -> bytes:
    node: Any = 0
    for _ in range(300):
        node = [node]
    return _archive({"format": FORMAT, "algorithm": "ppo", "state": node})


def _beyond() -> bytes:
    """A tensor of four gigabytes over a storage of eight numbers."""
    tree = {"format": FORMAT, "algorithm": "ppo", "state": torch.zeros(8)}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tree, Path(folder) / "x.pt")
        with zipfile.ZipFile(Path(folder) / "x.pt") as archive:
            pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    size = b"K\x08\x85"  # the tuple (8,)
    assert pickled.count(size) == 1
    return _archive(tree, replace=pickled.replace(size, b"J" + struct.pack("<i", 10**9) + b"\x85"))


BOMBS: dict[str, Callable[[], bytes]] = {
    "compressed zeros": lambda: _archive(
        {"format": FORMAT, "algorithm": "ppo", "state": torch.zeros(10**7)}, zipfile.ZIP_DEFLATED
    ),
    "a tensor of one number repeated": lambda: _archive(
        {"format": FORMAT, "algorithm": "ppo", "state": torch.zeros(1).expand(10**9)}
    ),
    "a tensor beyond its storage": _beyond,
    "a list of lists of lists": _laughs,
    "a deep list": _deep,
    "a call of bytearray": lambda: _archive(
        0, replace=_pickled(b"cbuiltins\nbytearray\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R")
    ),
    "a call of a storage": lambda: _archive(
        0, replace=_pickled(b"ctorch\nFloatStorage\nJ" + struct.pack("<i", 2**31 - 1) + b"\x85R")
    ),
    "a sparse tensor": lambda: _archive(
        {
            "format": FORMAT,
            "algorithm": "ppo",
            "state": torch.sparse_coo_tensor(torch.zeros(1, 0), torch.zeros(0), (2**40,), check_invariants=False),
        }
    ),
    "a pickle alone": lambda: pickle.dumps({"format": FORMAT, "algorithm": "ppo"}),
}
"""Functions that return files, by name."""
