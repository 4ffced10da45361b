"""What every trainer has: environments, an agent, evaluation, and a state that is saved and loaded whole."""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from minerva import checkpointing, environments
from minerva.acceleration.applied import Acceleration, check_compiler, choose_acceleration
from minerva.callbacks import CallbackLike
from minerva.environments.ids import EnvFactory, EnvLike
from minerva.environments.spaces import space_to_plain
from minerva.evaluation import Evaluation, Evaluator
from minerva.networks.encoders import MakeEncoder
from minerva.networks.heads import head_for
from minerva.storage.replay import ReplayBuffer
from minerva.trainers import resuming
from minerva.trainers.actor import ActingPolicy, Actor, BaseAgent, Shapes
from minerva.trainers.config import DEFAULT_TOTAL_STEPS, RunConfig
from minerva.trainers.health import Health, Rule
from minerva.trainers.parallel_run import make_run
from minerva.trainers.result import TrainingResult
from minerva.trainers.run import Run, RunState
from minerva.trainers.run_folder import default_folder, last_version
from minerva.utils.cores import check_threads, keep_freed_memory, usable_cores
from minerva.utils.devices import resolve_device
from minerva.utils.hardware import is_out_of_memory
from minerva.utils.modes import mode
from minerva.utils.precision import exact_cudnn
from minerva.utils.ranges import LARGEST_INT, Range, whole_number
from minerva.utils.ranks import join, own_device
from minerva.utils.seeding import initialization_seed, torch_generator_state
from minerva.utils.structure import anything, check, expect, optional, text

ROWS_PER_THREAD = 256
"""Rows of a gradient step that keep a thread of torch busy: with fewer, threads wait for each other too often."""


class Trainer(ABC):
    """Base class of all trainers: the part that is the same for every algorithm.

    `OnPolicyTrainer` and `OffPolicyTrainer` add a collector and a loop, an algorithm its agent and its update.

    Args:
        env_id: A Gymnasium id, ``dm_control/<domain>/<task>``, a callable that returns a `gymnasium.Env`, or one that
            `gymnasium.make` returned: it is copied from its spec.
        seed: Every generator of the run is spawned from it, each environment's too.
        device: "auto", "cpu", "cuda", …
        config: The algorithm's config; by default its defaults.
        **fields: Fields of the config, on top of `config`.

    Attributes:
        agent: The networks.
        actor: How they act while experience is collected.
        run_state: How far the run has come.
        last_step: What the newest step of the environments returned.
        ranks: The processes that train this run together; nearly always this one alone.
        shapes: What shapes the agent's networks, besides the config.
        acceleration: How updates run; chosen when the run's length is known, and kept to its end.
    """

    algorithm: ClassVar[str]
    config_class: ClassVar[type[RunConfig]]
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    """Settings that shape a saved policy: it cannot be loaded with others."""
    resumed_fields: ClassVar[tuple[str, ...]] = ("num_envs",)
    """Settings that shape the rest of a saved run: it cannot resume with others."""
    worth_compiling: ClassVar[Mapping[str, int]]
    """From how many gradient steps of a run on compiling them saves time, by type of device."""
    drops_non_finite: ClassVar[bool] = False
    """Whether a step that is not finite is left out of what is learned from; otherwise the run ends there."""
    config: RunConfig
    agent: BaseAgent
    actor: Actor
    replay: ReplayBuffer | None = None
    """Saved beside the checkpoint, because it is too large to be written whole every time."""

    def __init__(
        self,
        env_id: EnvLike,
        seed: int = 42,
        device: str = "auto",
        config: RunConfig | None = None,
        **fields: Any,
    ) -> None:
        source = environments.source_of(env_id)
        config = self.config_class.from_fields(config, fields)
        self.config = config = dataclasses.replace(config, env_kwargs={**source.kwargs, **config.env_kwargs})
        self.env_name = environments.display_name(source.env)
        self.seed = whole_number("seed", seed, Range(0, LARGEST_INT, "be a whole number from 0 on"))
        self.device = resolve_device(own_device(device))
        self.ranks = join(self.device)
        if self.ranks.count > 1:
            config.check_ranks(self.ranks.count)
        self.run_state = RunState()
        self.last_step: environments.Step | None = None
        self.acceleration: Acceleration | None = None
        self._accelerated: Acceleration | None = None  # how updates run now
        self.notes: list[str] = []  # said at the start of the next run
        if source.note is not None:
            self.notes.append(source.note)
        self._run: Run | None = None  # while `train` is running
        self._factory = environments.resolve(source.env, config.env_kwargs)
        self.env = self._make_environment(source.env)
        shared = f" One of {self.ranks.description} with {config.num_envs} environments." * (self.ranks.count > 1)
        self.notes.append(f"{self.env_name}: {self.env.description}; {self.device.type}.{shared}")
        self.evaluator = self.make_evaluator()
        with self.close_envs_on_error():
            self.action_dim = self._check_spaces()
        self.health = Health(self.health_rules())

    @property
    def env_steps(self) -> int:
        """Environment steps taken, restarting ones included."""
        return self.run_state.env_steps

    @property
    def updates(self) -> int:
        """Updates made."""
        return self.run_state.updates

    @property
    def best_return(self) -> float:
        """Highest mean return of an evaluation so far."""
        return self.run_state.best_return

    @property
    def total_steps(self) -> int | None:
        """Environment steps of the newest call of `train`, or of the run that was loaded."""
        return self.run_state.total_steps

    @property
    def out_dir(self) -> Path | None:
        """The run's folder, once there is one."""
        return self.run_state.out_dir

    @contextmanager
    def close_envs_on_error(self) -> Iterator[None]:
        """Close the environments if a mistake is found after they were made.

        Raises:
            ValueError: There is not enough memory for what the settings ask for.
        """
        try:
            yield
        except (ValueError, MemoryError, RuntimeError) as error:
            self.close()
            if is_out_of_memory(error):
                raise ValueError(f"memory: there is not enough for {self._sizes()}; choose smaller ones.") from error
            raise

    def _sizes(self) -> str:
        names = (
            "num_envs",
            "rollout_steps",
            "policy_layer_sizes",
            "critic_layer_sizes",
            "value_layer_sizes",
            "lstm_units",
        )
        sizes = {name: getattr(self.config, name, None) for name in names}
        return ", ".join(f"{name} = {value}" for name, value in sizes.items() if value is not None)

    def _make_environment(self, env: str | EnvFactory) -> environments.BatchedEnvironment:
        config, workers = self.config, self.config.rollout_workers
        own = config.num_envs // (workers or self.ranks.count)
        arguments: dict[str, Any] = {
            "env": env, "num_envs": own, "seed": self.seed, "vectorization": config.vectorization,
            "num_workers": config.num_workers, "env_kwargs": config.env_kwargs,
            "allow_non_finite": self.drops_non_finite, "backend": config.backend, "pool_threads": config.pool_threads,
            "total": config.num_envs,
        }  # fmt: skip
        if workers is None:
            return environments.make(**arguments, first=self.ranks.rank * own)
        from minerva.trainers.rollout_workers import start_workers

        return start_workers(workers, arguments, config.address, self._tell_of_worker)

    def _tell_of_worker(self, text: str, inexact: bool) -> None:
        (self.warn if inexact else self.say)(text)

    def make_evaluator(self) -> Evaluator:
        """Build what runs evaluations, with the seed as it is now."""
        config = self.config
        return Evaluator(self._factory, config.eval_episodes, self.seed, config.eval_max_steps, self.drops_non_finite)

    def _make_agent(self, make_encoder: MakeEncoder | None = None) -> BaseAgent:
        env = self.env
        spaces = (env.raw_observation_space, env.action_space)
        self.shapes = Shapes(*spaces, env.observation_dim, env.mask_dim, make_encoder)
        with initialization_seed(self.seed), self.close_envs_on_error():
            return self.build_agent(self.config, self.shapes, self.device)

    def _check_spaces(self) -> int:
        """Return A.

        Raises:
            ValueError: The action space, or the observation space, is not supported.
        """
        try:
            return head_for(self.env.action_space).action_dim
        except ValueError as error:
            raise ValueError(f"env: {self.env_name} has an unsupported {error}") from error

    # What an algorithm provides

    def health_rules(self) -> Sequence[Rule]:
        """Return what can go wrong with the algorithm."""
        return ()

    @classmethod
    @abstractmethod
    def build_agent(cls, config: Any, shapes: Shapes, device: torch.device) -> BaseAgent:
        """Build the agent that a config describes."""

    @abstractmethod
    def useful_threads(self) -> int:
        """Return with how many threads of torch gradient steps are fastest on a CPU of many cores."""

    @abstractmethod
    def begin(self) -> None:
        """Start the first episodes."""

    @abstractmethod
    def run_loop(self, run: Run) -> None:
        """Train until the run ends."""

    def final_step(self, total_steps: int) -> int:
        """Return the environment step at which a run of so many steps ends."""
        return self.config.final_step(total_steps)

    @property
    @abstractmethod
    def unit(self) -> str:
        """What a run is made of, whole."""

    @abstractmethod
    def between_updates(self) -> bool:
        """Return whether no experience has been collected since the newest update."""

    @abstractmethod
    def gradient_steps(self, total_steps: int) -> float:
        """Return the gradient steps of a run of so many environment steps."""

    @abstractmethod
    def learning_state(self) -> dict[str, Any]:
        """Return everything that a run consists of besides the agent, the action noise and the health."""

    @abstractmethod
    def load_learning_state(self, state: dict[str, Any]) -> str | None:
        """Load what `learning_state` returned; return a sentence where that is not exact."""

    def device_change_note(self, device: str) -> str:
        """Return what a run loses that was on another type of device before."""
        return (
            f"the run was on {device} and resumes on {self.device.type}, where its noise starts again: it is not bit "
            "for bit what it would have been"
        )

    def restart_with_empty_replay(self) -> str:
        """Continue from a checkpoint without its replay buffer; return a sentence about it."""
        raise NotImplementedError

    @abstractmethod
    def set_acceleration(self, acceleration: Acceleration) -> None:
        """Run updates this way from now on."""

    def accelerate(self, run: Run) -> None:
        """Choose how updates run, once for the whole run, and tell the user."""
        wanted = self.config.compile
        if self.ranks.count > 1:
            self.acceleration = Acceleration()
            if wanted is not False:
                run.say("Updates are neither compiled nor captured, because each gradient is summed over processes.")
        if self.acceleration is None:
            policy, steps = self.agent.policy, self.gradient_steps(run.total_steps)
            worth = {} if policy.takes_bytes else self.worth_compiling  # convolutions gain little from the compiler
            self.acceleration = choose_acceleration(wanted, self.device, steps, worth, policy.static)
        self.acceleration, note = check_compiler(self.acceleration)
        if note is not None:
            run.say(note)
        if self.acceleration != self._accelerated:  # otherwise what was compiled would be lost
            self.set_acceleration(self.acceleration)
            self._accelerated = self.acceleration

    def check_health(self, metrics: Mapping[str, float]) -> None:
        """Warn the user where metrics say that learning is broken."""
        for warning in self.health.check(metrics):
            self.warn(warning)

    def warn(self, text: str) -> None:
        """Tell the user what must not be missed, and note it in the run's ``notes.log`` if a run is open."""
        if self._run is not None:
            self._run.warn(text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def say(self, text: str) -> None:
        """Tell the user how the run proceeds, and note it in ``notes.log``; if no run is open, when the next starts."""
        if self._run is not None:
            self._run.say(text)
        else:
            self.notes.append(text)

    # Training

    def train(
        self, total_steps: int | None = None, out_dir: str | Path | None = None, callbacks: CallbackLike = None
    ) -> TrainingResult:
        """Train until `total_steps` environment steps have been taken, counted from the run's start.

        Args:
            total_steps: Of all environments together; by default those of the run that was loaded, else a million.
            out_dir: The run's folder; by default a new one under ``runs/``, or the one that was loaded from.
            callbacks: A `Callback`, a function of the trainer that is called at every step, or a list of these.

        Raises:
            ValueError: So few steps would teach nothing; the folder holds another run, is in use by another process,
                or cannot be written to.
            FolderLostError: It was deleted or taken over in the middle of the run.
        """
        if total_steps is None:
            total_steps = self.total_steps or DEFAULT_TOTAL_STEPS
        total_steps = whole_number("total_steps", total_steps, Range(1, LARGEST_INT, "be a whole number from 1 on"))
        given = Path(out_dir) if out_dir is not None else self.out_dir or self.default_folder()
        folder = given.absolute()  # an environment may change the current folder
        self.config.check_length(total_steps)
        if self.out_dir is not None and self.out_dir.resolve() == folder.resolve():
            folder = self.out_dir
        keep_freed_memory()
        self.actor.invalidate()  # the agent may have been given other weights
        threads = torch.get_num_threads()
        useful = max(1, min(self.useful_threads(), threads, usable_cores()))
        check_threads("torch_threads", wanted := self.config.torch_threads or useful)
        run = make_run(self, self.run_state, total_steps, folder, callbacks, given)
        torch.set_num_threads(wanted)
        self._run = run
        try:
            with exact_cudnn(self.device), run:
                self.run_loop(run)
        finally:
            self._run = None
            torch.set_num_threads(threads)
        return run.result()

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number of a callback's own at the current environment step.

        Raises:
            RuntimeError: No run is open.
            ValueError: The name cannot be used, or the value is not one number.
        """
        if self._run is None:
            raise RuntimeError("trainer.log: works within a call of `train`, from a callback; no run is open.")
        self._run.log_value(name, value)

    def default_folder(self) -> Path:
        """Return the name of a new folder under ``runs/``."""
        return default_folder(self.algorithm, self.env_name, self.seed)

    @overload
    def evaluate(self) -> Evaluation: ...

    @overload
    def evaluate(self, should_stop: Callable[[], bool]) -> Evaluation | None: ...

    def evaluate(self, should_stop: Callable[[], bool] | None = None) -> Evaluation | None:
        """Run deterministic episodes in environments of their own; None where `should_stop` stopped it early."""
        timed = nullcontext() if self._run is None else self._run.clock.evaluating()
        with timed, mode(self.agent.modules(), training=False), exact_cudnn(self.device):
            return self.evaluator.run(ActingPolicy(self.agent), should_stop or (lambda: False))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
        self.evaluator.close()

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return all that learns and collects: networks, optimizers, normalizers, generators, rollout, environments."""
        return {
            "device": self.device.type,
            "acceleration": None if self.acceleration is None else tuple(self.acceleration),
            "agent": self.agent.state_dict(),
            "acting_device": self.actor.device.type,
            "action_noise": self.actor.generator.get_state(),
            "health": self.health.state_dict(),
            **self.learning_state(),
        }

    def own_state(self) -> dict[str, Any]:
        """Return what differs between the processes of a run: what each of them collects, and its generators."""
        raise NotImplementedError

    def _whole_state(self) -> dict[str, Any]:
        """Return the state, and with several processes each other's own, in the order of ranks, on rank 0."""
        state = self.state_dict()
        if self.ranks.count == 1:
            return state
        if self._run is not None:
            self._run.ask_for_states()
        return {**state, "ranks": self.ranks.collect(self.own_state())[1:]}

    def check_state(self, state: Any) -> None:
        """Check that a loaded state has the form of this trainer's; nothing is changed.

        Raises:
            StructureError: It has not.
        """
        form = self.state_dict()
        check(state, dict.fromkeys(form, anything), "state")
        same_device = state["device"] == self.device.type and state["acting_device"] == self.actor.device.type
        check(state, {**form, **self.state_checks(same_device)}, "state")

    def state_checks(self, same_device: bool) -> dict[str, Any]:
        """Return checks for those entries of the state whose form is not that of the trainer's own, by name.

        Args:
            same_device: Whether the networks were on devices of the same type.
        """
        return {
            "device": text,
            "acting_device": text,
            "acceleration": optional(self._check_acceleration if same_device else tuple(Acceleration())),
            "agent": self.agent.check_state,
            "action_noise": torch_generator_state(self.actor.generator, same_device),
            "health": self.health.check_state,
        }

    def _check_acceleration(self, value: Any, name: str) -> None:
        check(value, tuple(Acceleration()), name)
        expect(not value[1] or self.device.type == "cuda", name, "must not capture updates without a GPU", True)

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Load what `state_dict` returned; return a sentence where that is not exact."""
        self.agent.load_state_dict(state["agent"])
        self.actor.invalidate()
        self.health.load_state_dict(state["health"])
        note = self.load_learning_state(state)
        if state["acting_device"] == self.actor.device.type:
            self.actor.generator.set_state(state["action_noise"])
        if state["device"] != self.device.type:
            return note or self.device_change_note(state["device"])
        self.acceleration = None if state["acceleration"] is None else Acceleration(*state["acceleration"])
        return note

    def save(self, path: str | Path, replay: bool = True) -> None:
        """Write a checkpoint from which training resumes exactly.

        Args:
            path: The file. A replay buffer is written into a folder beside it, ``<name>.replay``: only what is new.
            replay: Whether the replay buffer is saved too. Without it a resumed run has to collect again.
        """
        path = Path(path)
        folder = checkpointing.replay_folder(path)
        if self._run is not None:
            self._run.before_save()  # not if the run's folder is gone
        if self.ranks.rank > 0:  # rank 0 writes
            self._whole_state()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        index = self.replay.save(folder) if replay and self.replay is not None else None
        checkpointing.write(
            path,
            {
                "replay": index,
                "algorithm": self.algorithm,
                "env_id": self.env_name,
                "seed": self.seed,
                "config": self.config.to_plain(),
                "observation_space": space_to_plain(self.env.raw_observation_space),
                "action_space": space_to_plain(self.env.action_space),
                "mask_dim": self.env.mask_dim,
                "run": self.run_state.to_plain(),
                "state": self._whole_state(),
            },
        )
        if index is not None and self.replay is not None:
            self.replay.clean(folder, index)  # not before: until here, the files belonged to the old checkpoint
        if self.out_dir is not None and path.absolute() == self.out_dir / f"{self.algorithm}_last.pt":
            self.run_state.last_checkpoint = last_version(self.out_dir, self.algorithm)

    def load(self, path: str | Path) -> None:
        """Resume from a checkpoint, or from the newest one in a run's folder.

        Raises:
            CheckpointError: It cannot be read, is not one of a run, or belongs to another algorithm, environment or
                shape. Nothing is changed then.
        """
        resuming.resume(self, Path(path))

    def init_from(self, path: str | Path) -> None:
        """Start a new run with the policy of another one: networks and normalizers.

        Raises:
            CheckpointError: As for `load`.
        """
        resuming.start_from(self, Path(path))

    def check_policy(self, state: Mapping[str, Any]) -> None:
        """Check what `load_policy` loads of another run's state; raise a `StructureError` if it cannot be loaded."""
        self.agent.check_state(state["agent"], "state.agent")

    def load_policy(self, state: Mapping[str, Any]) -> None:
        """Load networks and normalizers from another run's state."""
        self.agent.load_state_dict(state["agent"])
        self.actor.invalidate()
