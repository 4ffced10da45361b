"""Read the files of stable-baselines itself, without running anything that is pickled in them.

Such a file is a zip archive of three entries: ``data``, JSON with the arguments of the model; ``parameters``, arrays by
name as `numpy.savez` writes them; and ``parameter_list``, JSON with their names in order. What JSON cannot hold, as
spaces and functions, is pickled there, with its type and its attributes beside it as text. Only this text is read.
"""

from __future__ import annotations

import io
import json
import math
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines.common.activations import CUSTOM_FUNCTION, activation_name
from minerva.compat.stable_baselines.common.policies import (
    LSTM,
    POLICIES,
    ActorCriticPolicy,
    FeedForwardPolicy,
    LstmPolicy,
)
from minerva.environments.spaces import flat_size, space_to_plain
from minerva.networks.cnn import flat_features, image_layout
from minerva.networks.heads import head_for
from minerva.utils.schedules import FUNCTION

Arrays = dict[str, NDArray[Any]]

MAX_BYTES = 2 * 2**30
"""Size up to which an archive is read."""
MAX_IMAGE_SIZE = 2**24
"""Numbers of an image up to which its space is built from its shape alone."""
SCHEDULES = ("learning_rate", "cliprange", "cliprange_vf")
"""The settings that may be functions."""
_ENTRIES = {"data", "parameters", "parameter_list"}
_SETTINGS = {
    "gamma": 0.99, "n_steps": 128, "ent_coef": 0.01, "learning_rate": 2.5e-4, "vf_coef": 0.5, "max_grad_norm": 0.5,
    "lam": 0.95, "nminibatches": 4, "noptepochs": 4, "cliprange": 0.2, "cliprange_vf": None, "verbose": 0,
}  # fmt: skip
"""PPO2's settings, with the defaults for those that a file lacks."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)")
_LAYER = re.compile(r"model/((?:pi|vf|shared)_fc)(\d+)/w:0")


def is_stable_baselines_file(path: Path) -> bool:
    """Return whether a file has the form of stable-baselines' files."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist()) >= _ENTRIES


def read_stable_baselines_file(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Read a PPO2 of stable-baselines into the form of Minerva's own files.

    Args:
        path: The file.
        given: What replaces parts of the file: spaces, and arguments of PPO2.

    Returns:
        As `PPO2.save` stores it. The layers follow from names and shapes of the parameters, whatever class they are of.

    Raises:
        CheckpointError: The file is damaged, or was not written by PPO2.
        ValueError: A space cannot be told from the file.
    """
    try:
        data, parameters = _contents(path)
        architecture = architecture_of(parameters)
        found = {name: _space(data.get(name)) for name in ("observation_space", "action_space")}
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise CheckpointError(
            f"checkpoint: {path} is damaged, or not a PPO2 of stable-baselines ({type(error).__name__}: {error})."
        ) from error
    policy_kwargs = data.get("policy_kwargs")
    policy_kwargs = policy_kwargs if isinstance(policy_kwargs, dict) else {}
    act_fun = _act_fun(policy_kwargs)
    architecture["act_fun"] = act_fun or "tanh"
    name = _class_name(data.get("policy"))
    if act_fun == CUSTOM_FUNCTION or (act_fun is None and name is not None and name not in POLICIES):
        if given.get("policy") is None and "act_fun" not in (given.get("policy_kwargs") or {}):
            warnings.warn(
                f"policy: {path} is of {name or 'a policy'} with an activation function that cannot be told from the "
                "file; tanh is taken. If it was another one, pass the class: PPO2.load(path, policy=...).",
                stacklevel=4,
            )
        architecture["act_fun"] = "tanh"
    settings = {key: _plain_setting(path, data, key, given) for key in _SETTINGS}
    return {
        "policy": None,
        "policy_kwargs": _plain_kwargs(policy_kwargs, act_fun),
        "architecture": architecture,
        "settings": settings,
        "seed": data.get("seed") if isinstance(data.get("seed"), int) else None,
        "num_timesteps": 0,
        "observation_space": space_to_plain(
            given.get("observation_space") or found["observation_space"] or _observation_space(parameters)
        ),
        "action_space": space_to_plain(
            given.get("action_space") or found["action_space"] or _action_space(data.get("action_space"), parameters)
        ),
        "mask_dim": 0,
        "parameters": {key: torch.from_numpy(array) for key, array in parameters.items()},
        "optimizer": None,
    }


def _contents(path: Path) -> tuple[dict[str, Any], Arrays]:
    with zipfile.ZipFile(path) as archive:
        _check_size(archive, path)
        data = json.loads(archive.read("data").decode())
        names = json.loads(archive.read("parameter_list").decode())
        content = archive.read("parameters")
    with zipfile.ZipFile(io.BytesIO(content)) as arrays:
        _check_size(arrays, path)
    loaded = np.load(io.BytesIO(content), allow_pickle=False)
    parameters = {str(name): np.asarray(loaded[name], dtype=np.float32) for name in names}
    if not isinstance(data, dict) or "model/pi/w:0" not in parameters or "cliprange" not in data:
        raise CheckpointError(f"checkpoint: {path} must be a PPO2 of stable-baselines, got another algorithm.")
    return data, parameters


def _check_size(archive: zipfile.ZipFile, path: Path) -> None:
    size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_BYTES:
        raise CheckpointError(f"checkpoint: {path} must hold at most {MAX_BYTES:,} bytes, got {size:,}.")


def architecture_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `FeedForwardPolicy` or `LstmPolicy` that names and shapes of parameters tell.

    The order of names tells what is before the LSTM. An activation function cannot be told.
    """
    order = list(parameters)
    recurrent = "model/lstm1/wh:0" in parameters
    core = order.index("model/lstm1/wx:0") if recurrent else len(order)
    sizes: dict[tuple[str, bool], list[int]] = {}
    for position, name in enumerate(order):
        layer = _LAYER.fullmatch(name)
        if layer:
            sizes.setdefault((layer.group(1), position > core), []).append(parameters[name].shape[1])
    plain: dict[str, Any] = {"feature_extraction": "cnn" if "model/c1/w:0" in parameters else "mlp"}
    if recurrent:
        plain |= {"n_lstm": len(parameters["model/lstm1/wh:0"]), "layer_norm": "model/lstm1/gx:0" in parameters}
    if plain["feature_extraction"] == "cnn":
        return plain
    if recurrent and ("pi_fc", False) in sizes:  # the older form, in which layers before the LSTM have this name
        return {**plain, "layers": sizes["pi_fc", False]}
    shared, after = sizes.get(("shared_fc", False), []), sizes.get(("shared_fc", True), [])
    separate = {name: sizes.get((f"{name}_fc", recurrent), []) for name in ("pi", "vf")}
    return {**plain, "net_arch": [*shared, *([LSTM] if recurrent else []), *after, separate]}


def check_networks(
    policy: ActorCriticPolicy, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, Any]
) -> None:
    """Check that a file's parameters are those of the networks that are described beside them, before they are built.

    Raises:
        ValueError: They are of other networks.
    """
    told = architecture_of(parameters)
    kind = LstmPolicy if "n_lstm" in told else FeedForwardPolicy
    theirs = kind(**told)
    for name in ("lstm_units", "layer_norm", *(("extraction", "layers") if policy.extraction == "mlp" else ())):
        ours, other = getattr(policy, name), getattr(theirs, name)
        if ours != other:
            raise ValueError(f"{name}: must be {other}, as the parameters are, got {ours}.")
    outputs, wanted = parameters["model/pi/w:0"].shape[-1], head_for(action_space).size
    if outputs != wanted:
        raise ValueError(f"model/pi/w:0: must have {wanted} outputs for {action_space}, got {outputs}.")
    layout = image_layout(observation_space)
    if policy.extraction == "cnn" and layout is not None:
        inputs, wanted = len(parameters["model/fc1/w:0"]), flat_features(observation_space.shape or (), layout)
        if inputs != wanted:
            raise ValueError(f"model/fc1/w:0: must have {wanted} inputs for {observation_space.shape}, got {inputs}.")
    if policy.extraction == "mlp":
        inputs, wanted = len(_first_layer(parameters)), flat_size(observation_space)
        if inputs != wanted:
            raise ValueError(f"observation_space: must have {inputs} numbers, as the parameters have, got {wanted}.")


def _first_layer(parameters: Mapping[str, Any]) -> Any:
    return next(array for name, array in parameters.items() if name.endswith(("fc0/w:0", "lstm1/wx:0", "pi/w:0")))


def _plain_setting(path: Path, data: dict[str, Any], name: str, given: dict[str, Any]) -> Any:
    """Return a setting; of a pickled one, FUNCTION where it may be a function, else the default, with a warning."""
    default = _SETTINGS[name]
    value = data.get(name, default)
    if not isinstance(value, dict):
        return default if isinstance(value, (list, bool)) else value
    if name in SCHEDULES:
        return FUNCTION
    if name not in given:
        warnings.warn(
            f"{name}: is pickled in {path} ({value.get(':type:')}), and pickles are not opened; PPO2's default, "
            f"{default}, is taken. If it was another one, pass it: PPO2.load(path, {name}=...).",
            stacklevel=6,
        )
    return default


def _act_fun(policy_kwargs: dict[str, Any]) -> str | None:
    """Return the activation function's name, or None if there is none among a policy's arguments."""
    text = policy_kwargs.get("act_fun")
    if text is None:
        return None
    name = re.search(r"function (\w+)", str(text))
    if name is None:
        return CUSTOM_FUNCTION
    known = f"tf.{name.group(1)}"
    return known if activation_name(known) == known else activation_name(name.group(1))


def _plain_kwargs(policy_kwargs: dict[str, Any], act_fun: str | None) -> dict[str, Any]:
    plain = {k: v for k, v in policy_kwargs.items() if not k.startswith(":") and not isinstance(v, str)}
    return {**plain, "act_fun": act_fun} if act_fun not in (None, CUSTOM_FUNCTION) else plain


def _class_name(described: Any) -> str | None:
    """Return the name of a pickled class, which the texts of its methods begin with."""
    if isinstance(described, dict):
        for text in map(str, described.values()):
            name = re.search(r"<function (?:.*\.)?(\w+)\.__init__ at ", text)
            if name:
                return name.group(1)
    return None


# Spaces


def _kind(described: Any) -> str:
    text = str(described.get(":type:", "")) if isinstance(described, dict) else ""
    return text.rpartition(".")[2].rstrip("'>")


def _observation_space(parameters: Arrays) -> Space[Any]:
    if "model/c1/w:0" in parameters:
        raise ValueError(
            "observation_space: cannot be told from this file; pass it: PPO2.load(path, observation_space=...)."
        )
    return spaces.Box(-np.inf, np.inf, (len(_first_layer(parameters)),), np.float32)


def _action_space(described: Any, parameters: Arrays) -> Space[Any]:
    outputs = parameters["model/pi/w:0"].shape[1]
    if "model/pi/logstd:0" not in parameters and _kind(described) in ("", "Discrete"):
        return spaces.Discrete(outputs)
    raise ValueError("action_space: cannot be told from this file; pass it: PPO2.load(path, action_space=...).")


def _space(described: Any) -> Space[Any] | None:
    """Build a space from the text beside its pickle, or return None if that is not complete."""
    kind = _kind(described)
    if kind == "Discrete" and isinstance(described.get("n"), int):
        return spaces.Discrete(described["n"], start=described.get("start", 0))
    if kind == "MultiBinary" and isinstance(described.get("n"), int):
        return spaces.MultiBinary(described["n"])
    if kind == "MultiDiscrete":
        counts = _numbers(described.get("nvec"))
        return spaces.MultiDiscrete(counts.astype(np.int64)) if counts is not None and len(counts) else None
    if kind != "Box":
        return None
    sizes = described.get("shape", described.get("_shape"))  # newer versions of gym name it so
    if not isinstance(sizes, list):
        return None
    shape, dtype = tuple(sizes), np.dtype(str(described.get("dtype", "float32")))
    low, high = (_bound(described.get(name), shape) for name in ("low", "high"))
    if low is None or high is None:
        if dtype != np.uint8 or math.prod(shape) > MAX_IMAGE_SIZE:
            return None
        low, high = np.zeros(shape), np.full(shape, 255)  # the usual bounds of images, whose text is abridged
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _numbers(text: Any) -> NDArray[np.float64] | None:
    return None if text is None or "..." in str(text) else np.array([float(n) for n in _NUMBER.findall(str(text))])


def _bound(text: Any, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    numbers = _numbers(text)
    return numbers.reshape(shape) if numbers is not None and numbers.size == np.prod(shape) else None
