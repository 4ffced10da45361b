"""PPO2 with the interface of stable-baselines, on Minerva's PPO."""

from __future__ import annotations

import warnings
from collections import deque
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium import Space

from minerva.callbacks.checks import positive_int
from minerva.compat.stable_baselines.common.callbacks import as_callback
from minerva.compat.stable_baselines.common.cmd_util import as_vec_env
from minerva.compat.stable_baselines.common.policies import ActorCriticPolicy, make_policy, policy_class
from minerva.compat.stable_baselines.common.vec_env.base_vec_env import VecEnv
from minerva.compat.stable_baselines.common.vec_env.vec_normalize import VecNormalize, unwrap_vec_normalize
from minerva.compat.stable_baselines.ppo2.files import Files
from minerva.compat.stable_baselines.ppo2.parameters import unused_head
from minerva.compat.stable_baselines.ppo2.pretraining import Pretraining
from minerva.compat.stable_baselines.ppo2.reporting import EPISODES, EpisodeInfo, Reporter, new_run_folder
from minerva.compat.stable_baselines.ppo2.runner import Runner, StepVariables, swap_and_flatten
from minerva.compat.stable_baselines.ppo2.settings import config_of, old_names
from minerva.compat.stable_baselines.ppo2.trainer import PPO2Trainer
from minerva.environments.spaces import flat_size, row_dtype, space_to_plain
from minerva.trainers.ppo.agent import Agent
from minerva.utils.devices import resolve_device
from minerva.utils.schedules import Schedule
from minerva.utils.seeding import initialization_seed, torch_generator

__all__ = ["PPO2", "Runner", "swap_and_flatten"]

_DEVICE = "auto"


class PPO2(Pretraining, Files):
    """Proximal policy optimization with PPO2's names, defaults and behavior.

    Files are written only on request (`save`, `tensorboard_log`, callbacks), and nothing is printed without
    `verbose`. Time limits differ from PPO2: returns bootstrap from the value of the last observation, where PPO2
    treated a time limit as a termination.

    Args:
        policy: A policy class, or its name: "MlpPolicy", "CnnPolicy", "MlpLstmPolicy", "CnnLstmPolicy",
            "MlpLnLstmPolicy", "CnnLnLstmPolicy".
        env: An id, an environment of Gymnasium or gym, a function that makes one, or a vector environment.
        gamma: Discount factor.
        n_steps: Steps per environment and update.
        ent_coef: Weight of the entropy bonus.
        learning_rate: A number, or a function of the remaining fraction of training, from 1 towards 0.
        vf_coef: Weight of the value loss.
        max_grad_norm: Largest norm of the gradients, to which they are scaled down; None for no limit.
        lam: λ of generalized advantage estimation.
        nminibatches: Minibatches per epoch.
        noptepochs: Epochs per update.
        cliprange: Clip range of the probability ratio; a number, or a function as for `learning_rate`.
        cliprange_vf: Clip range of the values; None to use `cliprange`, a negative number for no clipping.
        verbose: 1 to print a table of metrics after updates.
        tensorboard_log: Folder of the event files, or None.
        _init_setup_model: Accepted and ignored if `env` is given.
        policy_kwargs: Arguments of the policy: net_arch, act_fun, n_lstm, layers, feature_extraction.
        full_tensorboard_log: Also write histograms of weights and inputs, and images.
        seed: Seed of all random generators; None for a random one.
        n_cpu_tf_sess: Accepted and ignored.

    Attributes:
        num_timesteps: Environment steps taken.
        ep_info_buf: Return ("r") and length ("l") of the last 100 episodes.
    """

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: Any,
        gamma: float = 0.99,
        n_steps: int = 128,
        ent_coef: float = 0.01,
        learning_rate: Schedule = 2.5e-4,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        lam: float = 0.95,
        nminibatches: int = 4,
        noptepochs: int = 4,
        cliprange: Schedule = 0.2,
        cliprange_vf: Schedule | None = None,
        verbose: int = 0,
        tensorboard_log: str | Path | None = None,
        _init_setup_model: bool = True,
        policy_kwargs: dict[str, Any] | None = None,
        full_tensorboard_log: bool = False,
        seed: int | None = None,
        n_cpu_tf_sess: int | None = None,
    ) -> None:
        self.gamma = gamma
        self.n_steps = n_steps
        self.ent_coef = ent_coef
        self.learning_rate = learning_rate
        self.vf_coef = vf_coef
        self.max_grad_norm = max_grad_norm
        self.lam = lam
        self.nminibatches = nminibatches
        self.noptepochs = noptepochs
        self.cliprange = cliprange
        self.cliprange_vf = cliprange_vf
        self.verbose = verbose
        self.tensorboard_log = tensorboard_log
        self.full_tensorboard_log = full_tensorboard_log
        self.policy_kwargs = policy_kwargs or {}
        self.seed = seed
        self.n_cpu_tf_sess = n_cpu_tf_sess
        self.num_timesteps = 0
        self.ep_info_buf: deque[EpisodeInfo] = deque(maxlen=EPISODES)
        self.env: VecEnv | None = None
        self.trainer: PPO2Trainer | None = None
        self.n_envs = 0
        self._runner: Runner | None = None
        self._reporter: Reporter | None = None  # while `learn` is running
        self._event_folders: dict[tuple[str, str], Path] = {}  # the newest, by `tensorboard_log` and name
        self._device = resolve_device(_DEVICE)
        self._optimizer_state: dict[str, Any] | None = None
        self.policy = policy_class(policy)
        if env is not None:
            venv = as_vec_env(env)
            self._spawn_seed(seed)
            self._build(venv.observation_space, venv.action_space, getattr(venv, "mask_dim", 0))
            self.set_env(venv)
        elif _init_setup_model:
            raise ValueError("env: must be given, got None; only PPO2.load returns a model without an environment.")

    # Networks and environments

    def _spawn_seed(self, seed: int | None) -> None:
        # Without a seed it comes from NumPy's global generator, as a script expects that has called set_global_seeds.
        self._seed = int(np.random.randint(2**31)) if seed is None else int(seed)  # noqa: NPY002

    def _build(self, observation_space: Space[Any], action_space: Space[Any], mask_dim: int) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._mask_dim = mask_dim
        self._policy = make_policy(self.policy, self.policy_kwargs, observation_space, action_space)
        obs_dim = flat_size(observation_space) + mask_dim
        with initialization_seed(self._seed):
            agent = self._policy.build(observation_space, action_space, obs_dim, mask_dim)
        self.agent: Agent = agent.to(self._device)
        self._unused_head = unused_head(self.agent)
        self._noise = torch_generator(self._seed, "predict", self._device)

    def setup_model(self) -> None:
        """Do nothing: the networks are built by the constructor."""

    def get_env(self) -> VecEnv | None:
        """Return the vector environment, or None."""
        return self.env

    def get_vec_normalize_env(self) -> VecNormalize | None:
        """Return the `VecNormalize` around the environments, or None."""
        return unwrap_vec_normalize(self.env)

    def set_env(self, env: Any) -> None:
        """Replace the environments to learn in.

        Raises:
            ValueError: Their spaces differ from the model's, or the settings do not fit their number.
        """
        venv = as_vec_env(env)
        for name in ("observation_space", "action_space"):
            ours, theirs = getattr(self, name), getattr(venv, name)
            if space_to_plain(ours) != space_to_plain(theirs):
                raise ValueError(f"env: its {name.replace('_', ' ')} must be the model's, {ours}; got {theirs}.")
        config_of(self, self._policy, venv.num_envs)
        self._drop_trainer()
        self._runner = None
        self.env = venv
        self.n_envs = venv.num_envs
        if self.seed is not None:
            venv.seed(self.seed)

    @property
    def n_batch(self) -> int:
        """Samples per update."""
        return self.n_envs * self.n_steps

    @property
    def mask_dim(self) -> int:
        """Length of the action mask, which is at the end of a row; 0 without one."""
        return self._mask_dim

    def set_random_seed(self, seed: int | None) -> None:
        """Seed all random generators and the environments again, which start new episodes; None changes nothing."""
        if seed is None:
            return
        self.seed = int(seed)
        self._spawn_seed(seed)
        self._noise = torch_generator(self._seed, "predict", self._device)
        self._drop_trainer()
        self._runner = None
        self.action_space.seed(self.seed)
        if self.env is not None:
            self.env.seed(self.seed)

    def _drop_trainer(self) -> None:
        if self.trainer is not None:
            self._optimizer_state = self.trainer.optimizer_state()
            self.trainer = None

    def get_trainer(self) -> PPO2Trainer:
        """Return what acts and learns with the current settings; build it if they changed."""
        config = config_of(self, self._policy, self.n_envs)
        if self.trainer is None or self.trainer.config != config:
            self._drop_trainer()
            space = self.observation_space
            obs_dim = flat_size(space) + self._mask_dim
            byte_rows = row_dtype(space) == np.uint8 and self._mask_dim == 0
            self.trainer = PPO2Trainer(self.agent, config, self._seed, obs_dim, byte_rows)
            if self._optimizer_state is not None:
                self.trainer.load_optimizer_state(self._optimizer_state)
        return self.trainer

    @property
    def runner(self) -> Runner:
        """What collects rollouts; it resets the environments when it is first asked for after `set_env`."""
        if self.env is None:
            raise ValueError("env: there is none to learn in; pass one: PPO2.load(path, env=...), or set_env(env).")
        if self._runner is None:
            self._runner = Runner(env=self.env, model=self, n_steps=self.n_steps)
        return self._runner

    def episodes_done(self, episodes: list[EpisodeInfo]) -> None:
        """Record episodes that have just ended."""
        self.ep_info_buf.extend(episodes)
        if self._reporter is not None:
            self._reporter.episodes_done(episodes, self.num_timesteps)

    # Learning

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str = "PPO2",
        reset_num_timesteps: bool = True,
    ) -> Self:
        """Learn for `total_timesteps` environment steps, rounded down to whole rollouts.

        Args:
            total_timesteps: Steps of all environments together, in this call. Schedules run over them.
            callback: A `BaseCallback`, a function (locals, globals) that is called at every step, an object with
                methods such as `on_step`, or a list of these. Training stops if one returns False at a step, without
                an update on the unfinished rollout.
            log_interval: Updates between printed tables, with `verbose`.
            tb_log_name: Prefix of the name of the event file's folder.
            reset_num_timesteps: Whether to count steps from 0 and use a new folder for the event file, or to continue.
        """
        log_interval = positive_int("log_interval", log_interval)
        total_timesteps = int(total_timesteps)
        runner, trainer = self.runner, self.get_trainer()
        if reset_num_timesteps:
            self.num_timesteps = 0
        n_updates = total_timesteps // self.n_batch
        if n_updates == 0:
            warnings.warn(
                f"total_timesteps = {total_timesteps} is less than n_envs * n_steps = {self.n_batch}: no update "
                "was made, and nothing was learned",
                RuntimeWarning,
                stacklevel=2,
            )
        callbacks = as_callback(callback)
        callbacks.init_callback(self)
        variables = runner.variables = StepVariables(
            self=self,
            total_timesteps=total_timesteps,
            callback=callbacks,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            n_updates=n_updates,
            ep_info_buf=self.ep_info_buf,
        )
        folder = self._event_folder(tb_log_name, reset_num_timesteps) if n_updates else None
        self._reporter = reporter = Reporter(
            self.verbose, log_interval, folder, self.full_tensorboard_log, self.ep_info_buf
        )
        try:
            with old_names(), trainer.learning(total_timesteps):
                callbacks.on_training_start(variables, globals())
                for update in range(1, n_updates + 1):
                    variables["update"] = update
                    callbacks.on_rollout_start()
                    runner.run(callbacks)
                    callbacks.on_rollout_end()
                    if not runner.continue_training:
                        break
                    remaining = 1 - (update - 1) / n_updates
                    result = trainer.update(remaining)
                    reporter.update_done(
                        result,
                        self.agent,
                        trainer.config,
                        remaining,
                        update,
                        self.num_timesteps,
                        self.observation_space,
                    )
                callbacks.on_training_end()
        except BaseException:
            self._runner = None  # the next call starts new episodes
            raise
        finally:
            reporter.close()
            self._reporter = None
        return self

    def _event_folder(self, name: str, new: bool) -> Path | None:
        """Return the folder of the event file: a new one, unless the model continues a run that it began itself."""
        if self.tensorboard_log is None:
            return None
        key = str(self.tensorboard_log), name
        folder = self._event_folders.get(key)
        if new or folder is None:
            folder = self._event_folders[key] = new_run_folder(self.tensorboard_log, name)
        return folder
