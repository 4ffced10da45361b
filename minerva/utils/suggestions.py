"""Suggest the name that was probably meant, for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_POLICY_LR = ("policy_lr", "q_lr", "value_lr")
_LAYERS = ("policy_layer_sizes", "critic_layer_sizes", "value_layer_sizes")

_MEANT: dict[tuple[str, ...], tuple[str, ...]] = {
    # Learning
    ("lr", "learning_rate", "step_size"): _POLICY_LR,
    ("actor_lr", "pi_lr", "lr_actor"): ("policy_lr",),
    ("critic_lr", "vf_lr", "qf_lr", "lr_critic", "q_lr", "value_lr"): ("q_lr", "value_lr", "policy_lr"),
    ("n_epochs", "num_epochs", "epochs", "noptepochs", "ppo_epochs", "k_epochs"): (
        "update_epochs",
        "updates_per_step",
        "m_steps",
    ),
    ("batch_size", "mini_batch_size", "minibatch_size"): ("batch_size", "minibatch_size", "minibatches"),
    ("num_minibatches", "nminibatches", "n_minibatches"): ("minibatches", "minibatch_size"),
    ("clip_range", "cliprange", "clip_coef", "clip_eps", "clip_epsilon", "clip", "eps_clip"): ("clip_ratio",),
    ("clip_range_vf", "cliprange_vf", "clip_range_value"): ("clip_ratio_vf",),
    ("normalize_advantage", "norm_advantage", "adv_norm"): ("norm_adv", "normalize_advantages"),
    ("entropy_coef", "entropy_coeff", "ent_coeff", "entropy_bonus", "ent_weight"): ("ent_coef",),
    ("value_coef", "value_loss_coef", "vf_coeff"): ("vf_coef",),
    ("grad_clip", "clip_grad", "clip_grad_norm", "gradient_clip", "max_gradient_norm"): ("max_grad_norm",),
    ("kl_target", "desired_kl", "max_kl"): ("target_kl", "mstep_kl_epsilon", "epsilon_mu"),
    ("discount", "discount_factor"): ("gamma",),
    ("lam", "lambda", "lambd", "gae", "trace_decay"): ("gae_lambda", "retrace_lambda"),
    ("optimizer", "optim", "optimizer_class"): ("optimizer_type",),
    ("momentum",): ("sgd_momentum",),
    # Collecting
    ("n_steps", "num_steps", "nsteps", "horizon", "steps_per_epoch"): ("rollout_steps", "n_step"),
    ("n_envs", "nenvs", "num_environments", "n_environments", "num_env"): ("num_envs",),
    ("buffer_size", "replay_buffer_size", "memory_size", "buffer_capacity"): ("replay_size",),
    ("learning_starts", "start_steps", "warmup_steps", "random_steps"): ("update_after",),
    ("train_freq", "update_every", "train_frequency"): ("update_interval",),
    ("gradient_steps", "utd", "utd_ratio", "replay_ratio"): ("updates_per_step",),
    ("tau", "polyak"): ("target_tau",),
    ("target_update_interval", "target_network_frequency"): ("target_networks_update_period",),
    ("num_samples", "n_samples", "sample_actions"): ("action_samples",),
    ("norm_obs", "normalize_observations", "observation_normalization"): ("normalize_obs",),
    ("norm_reward", "normalize_rewards", "norm_rewards", "reward_normalization"): ("normalize_reward",),
    # Networks
    ("net_arch", "policy_kwargs", "hidden_sizes", "hidden_size", "hidden_layers", "hidden_dim", "layers"): _LAYERS,
    ("features_extractor_class", "features_extractor", "feature_extractor", "network"): ("make_encoder", "encoder"),
    ("lstm_hidden_size", "lstm_size", "lstm", "n_lstm", "recurrent", "rnn_units", "use_lstm"): ("lstm_units",),
    # The run
    ("timesteps", "total_timesteps", "n_timesteps", "num_timesteps", "env_steps", "num_env_steps"): ("total_steps",),
    ("steps", "max_steps"): ("total_steps",),
    ("env_id", "environment", "gym_id", "env_name", "task"): ("env_id", "env"),
    ("random_seed", "random_state", "rng_seed"): ("seed",),
    ("cuda", "gpu", "use_gpu"): ("device",),
    ("n_eval_episodes", "num_eval_episodes", "evaluation_episodes"): ("eval_episodes",),
    ("eval_freq", "eval_every", "evaluation_interval", "eval_frequency"): ("eval_interval",),
    ("save_freq", "save_interval", "checkpoint_freq", "save_every"): ("checkpoint_interval",),
    ("log_dir", "logdir", "save_dir", "output_dir", "outdir", "save_path", "out", "folder"): ("out_dir",),
    ("verbose", "progress_bar", "quiet"): ("console",),
    ("tensorboard_log", "tb_log"): ("tensorboard",),
    ("track", "use_wandb"): ("wandb",),
    ("callback",): ("callbacks",),
    ("n_cpu", "n_jobs", "num_cpus", "n_workers", "workers"): ("num_workers",),
    ("num_threads", "n_threads", "threads"): ("torch_threads",),
    ("policy",): _LAYERS,
    # The package
    ("ppo",): ("PPOTrainer", "train"),
    ("mpo",): ("MPOTrainer", "train"),
    ("vmpo",): ("VMPOTrainer", "train"),
}
"""What names that other libraries use mean here, in the order of preference; not every algorithm has each."""


def suggest(word: str, known: Sequence[str]) -> list[str]:
    """Return up to three known names that were probably meant: by what the word means elsewhere, or by its letters."""
    for names, meant in _MEANT.items():
        if word.lower() in names and (found := [name for name in meant if name in known]):
            return found
    return difflib.get_close_matches(word, known, n=3)
