"""How a PPO2 model is written and read: weights by name, and whole models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import torch
from gymnasium import Space
from numpy.typing import NDArray

from minerva import checkpointing
from minerva.checkpointing import CheckpointError
from minerva.compat.stable_baselines.common.cmd_util import as_vec_env
from minerva.compat.stable_baselines.common.policies import (
    POLICIES,
    ActorCriticPolicy,
    FeedForwardPolicy,
    LstmPolicy,
    make_policy,
    plain_kwargs,
)
from minerva.compat.stable_baselines.common.save_util import (
    check_networks,
    is_stable_baselines_file,
    read_stable_baselines_file,
)
from minerva.compat.stable_baselines.ppo2.parameters import (
    Parameter,
    UnusedHead,
    Weight,
    named_weights,
    to_arrays,
    write_weights,
)
from minerva.compat.stable_baselines.ppo2.settings import (
    NOT_SAVED,
    SETTINGS,
    loaded_settings,
    plain_number,
    plain_settings,
)
from minerva.compat.stable_baselines.ppo2.trainer import PPO2Trainer
from minerva.environments.spaces import space_from_plain, space_to_plain
from minerva.trainers.ppo.agent import Agent
from minerva.utils.structure import StructureError, anything, check, dict_of, expect, optional

KIND = "ppo2"
FILE_OBJECT = "file object"
"""What a file object is called in errors."""
_IGNORED = ("n_cpu_tf_sess", "_init_setup_model")
"""Arguments of `PPO2` that a file does not hold."""


def _tensor(value: Any, name: str) -> None:
    expect(isinstance(value, torch.Tensor), name, "must be a tensor", value)


_FORM = {
    "format": 0,
    "versions": anything,
    "algorithm": "",
    "policy": "",
    "policy_kwargs": dict_of(anything),
    "architecture": dict_of(anything),
    "settings": dict_of(anything),
    "seed": optional(0),
    "num_timesteps": 0,
    "observation_space": anything,  # checked where it is built
    "action_space": anything,
    "mask_dim": 0,
    "parameters": dict_of(_tensor),
    "optimizer": optional(dict_of(anything)),
}


class Files:
    """The half of `PPO2` that writes and reads files."""

    agent: Agent
    policy: type[ActorCriticPolicy]
    policy_kwargs: dict[str, Any]
    observation_space: Space[Any]
    action_space: Space[Any]
    seed: int | None
    num_timesteps: int
    trainer: PPO2Trainer | None
    _policy: ActorCriticPolicy
    _unused_head: UnusedHead
    _mask_dim: int
    _optimizer_state: dict[str, Any] | None

    def get_parameters(self) -> dict[str, NDArray[Any]]:
        """Return copies of the networks' weights by stable-baselines' names, in its shapes and order."""
        return to_arrays(self._weights())

    def get_parameter_list(self) -> list[Parameter]:
        """Return names and shapes of the networks' weights, in the order of `get_parameters`."""
        return [Parameter(name, array.shape) for name, array in self.get_parameters().items()]

    def load_parameters(self, load_path_or_dict: Any, exact_match: bool = True) -> None:
        """Replace the networks' weights; if an error is raised, none is changed.

        Args:
            load_path_or_dict: A dict as `get_parameters` returns it, a list of its values, or a file that `save` wrote,
                as a path or a file object.
            exact_match: Whether all weights must be given. If not, those that are not given stay.

        Raises:
            KeyError: A name is not one of the model's.
            RuntimeError: A weight is missing, and `exact_match` is set.
            ValueError: An array has another shape than its weight, or holds no finite numbers.
        """
        given, weights = load_path_or_dict, self._weights()
        if isinstance(given, list):
            if len(given) != len(weights):
                raise ValueError(f"parameters: a list must have {len(weights)} arrays, got {len(given)}.")
            given = {weight.name: array for weight, array in zip(weights, given, strict=True)}
        elif not isinstance(given, Mapping):
            ours = ("policy", "observation_space", "action_space", *SETTINGS)  # the file's are not needed
            given = self._read(given, {name: getattr(self, name) for name in ours})["parameters"]
        write_weights(weights, given, exact_match)
        if self.trainer is not None:
            self.trainer.actor.invalidate()  # it may act with a copy

    def _weights(self) -> list[Weight]:
        return named_weights(self.agent, self._policy, self._unused_head)

    def save(self, save_path: str | Path | IO[bytes], cloudpickle: bool = False) -> None:
        """Write networks, optimizer, settings and counters to one file; a name without extension gets ``.zip``.

        It holds tensors and plain values, no code. Of functions among the settings it holds those of
        `stable_baselines.common.schedules`; others must be passed again to `load`, and a warning says so.

        Args:
            save_path: The file, as a path or an object that is open for writing bytes.
            cloudpickle: Accepted and ignored.
        """
        checkpoint = self._checkpoint()
        if not isinstance(save_path, (str, os.PathLike)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, FILE_OBJECT)
                checkpointing.write(path, checkpoint)
                save_path.write(path.read_bytes())
            return
        path = Path(save_path)
        if not path.suffix:
            path = path.with_name(path.name + ".zip")
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpointing.write(path, checkpoint)

    def _checkpoint(self) -> dict[str, Any]:
        return {
            "algorithm": KIND,
            "policy": self.policy.__name__,
            "policy_kwargs": plain_kwargs(self.policy_kwargs),
            "architecture": self._policy.plain_architecture(),
            "settings": plain_settings(self),
            "seed": plain_number(self.seed),
            "num_timesteps": int(self.num_timesteps),
            "observation_space": space_to_plain(self.observation_space),
            "action_space": space_to_plain(self.action_space),
            "mask_dim": self._mask_dim,
            "parameters": {name: torch.from_numpy(array) for name, array in self.get_parameters().items()},
            "optimizer": self._optimizer_state if self.trainer is None else self.trainer.optimizer_state(),
        }

    @classmethod
    def load(
        cls,
        load_path: str | Path | IO[bytes],
        env: Any = None,
        custom_objects: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a model that `save` wrote, here or in stable-baselines.

        Nothing that is pickled in a file of stable-baselines is run. If its spaces cannot be told from its texts, pass
        them as `observation_space` and `action_space`, or pass `env`.

        Args:
            load_path: The file, as a path with or without ``.zip``, or as an object that is open for reading bytes.
            env: Environment to continue learning in; not needed to act.
            custom_objects: Arguments of `PPO2` that replace saved ones, such as a function, which a file cannot hold.
            **kwargs: The same as keyword arguments.

        Raises:
            CheckpointError: The file cannot be read, or was not saved by PPO2.
            ValueError: A name is not an argument, or the policy's arguments differ from the saved ones.
        """
        given = {**(custom_objects or {}), **kwargs}
        if env is not None:
            env = as_vec_env(env)
        described = {name: given.pop(name, getattr(env, name, None)) for name in ("observation_space", "action_space")}
        saved = cls._read(load_path, {**given, **described})
        policy, policy_kwargs = given.pop("policy", None), given.pop("policy_kwargs", None)
        seed = given.pop("seed", saved["seed"])
        for name in given:
            if name not in (*SETTINGS, *NOT_SAVED, *_IGNORED):
                raise ValueError(f"{name}: is not a setting of PPO2. They are {', '.join((*SETTINGS, *NOT_SAVED))}.")
        if policy_kwargs is not None and saved["policy"] and plain_kwargs(policy_kwargs) != saved["policy_kwargs"]:
            raise ValueError(f"policy_kwargs: must be the saved ones, {saved['policy_kwargs']}; got {policy_kwargs}.")
        if policy is None and saved["policy"] in POLICIES:
            policy = saved["policy"]
        if policy is None:  # a custom one, of which the file has a description
            act_fun = {name: value for name, value in (policy_kwargs or {}).items() if name == "act_fun"}
            policy_kwargs = {**saved["architecture"], **act_fun}
            policy = LstmPolicy if "n_lstm" in policy_kwargs else FeedForwardPolicy
        settings = {**loaded_settings(saved["settings"]), **given, "_init_setup_model": False}
        policy_kwargs = saved["policy_kwargs"] if policy_kwargs is None else policy_kwargs
        observation_space, action_space = (
            space_from_plain(saved[f"{name}_space"]) for name in ("observation", "action")
        )
        make: Any = cls
        model = make(policy, None, policy_kwargs=policy_kwargs, seed=seed, **settings)
        model._spawn_seed(seed)
        networks = make_policy(policy, policy_kwargs, observation_space, action_space)
        try:
            check_networks(networks, observation_space, action_space, saved["parameters"])
            model._build(observation_space, action_space, saved["mask_dim"])
            model.load_parameters(saved["parameters"])
        except (IndexError, KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint: {load_path} has other parameters than {type(networks).__name__} with {policy_kwargs} "
                f"({error.args[0]})"
            ) from error
        model._optimizer_state = saved["optimizer"]
        model.num_timesteps = saved["num_timesteps"]
        if env is not None:
            model.set_env(env)
        loaded: Self = model
        return loaded

    @classmethod
    def _read(cls, load_path: str | Path | IO[bytes], given: dict[str, Any] | None = None) -> dict[str, Any]:
        if not isinstance(load_path, (str, os.PathLike)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, FILE_OBJECT)
                path.write_bytes(load_path.read())
                return cls._read(path, given)
        path = Path(load_path)
        if not path.exists():
            path = path.with_name(path.name + ".zip")
        if path.is_file() and is_stable_baselines_file(path):
            return read_stable_baselines_file(path, given or {})
        saved = checkpointing.read(path)
        if saved["algorithm"] != KIND:
            raise CheckpointError(f"checkpoint: {path} was saved by {saved['algorithm']}, not PPO2; use minerva.load.")
        if "parameters" not in saved:
            raise CheckpointError(
                f"checkpoint: {path} was saved by an older Minerva; train again, or use the Minerva that wrote it."
            )
        try:
            check(saved, _FORM, "checkpoint")
        except StructureError as error:
            raise checkpointing.unusable(path, error) from error
        return saved
