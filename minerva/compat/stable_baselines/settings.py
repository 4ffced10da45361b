"""PPO2's settings, under the names of `PPOConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minerva.compat.stable_baselines.policies import Policy
from minerva.trainers.ppo.config import PPOConfig
from minerva.utils.schedules import plain_schedule

SETTINGS = (
    "gamma", "n_steps", "ent_coef", "learning_rate", "vf_coef", "max_grad_norm", "lam", "nminibatches", "noptepochs",
    "cliprange", "cliprange_vf", "verbose", "tensorboard_log", "full_tensorboard_log",
)  # fmt: skip
"""What a file holds of a model besides its networks."""
SCHEDULES = ("learning_rate", "cliprange", "cliprange_vf")
_OLD_NAMES = {
    "policy_lr": "learning_rate",
    "clip_ratio": "cliprange",
    "clip_ratio_vf": "cliprange_vf",
    "rollout_steps": "n_steps",
    "gae_lambda": "lam",
    "update_epochs": "noptepochs",
    "num_envs": "n_envs",
}


def config_of(model: Any, policy: Policy, n_envs: int) -> PPOConfig:
    """Turn a model's settings into PPO's.

    Raises:
        ValueError: One breaks a rule.
    """
    for name in ("n_steps", "nminibatches"):
        value = getattr(model, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: must be a whole number from 1 on, got {value!r}.")
    n_batch = n_envs * model.n_steps
    if n_batch % model.nminibatches:
        raise ValueError(
            f"nminibatches: n_envs * n_steps = {n_envs} * {model.n_steps} = {n_batch} must be divisible by "
            f"nminibatches = {model.nminibatches}; change one of the three."
        )
    if policy.recurrent and n_envs % model.nminibatches:
        raise ValueError(
            f"nminibatches: a policy with a memory learns from whole environments, so n_envs = {n_envs} must be "
            f"divisible by nminibatches = {model.nminibatches}; change one of the two."
        )
    off = isinstance(model.cliprange_vf, (int, float)) and model.cliprange_vf < 0
    with old_names():
        return PPOConfig(
            num_envs=n_envs,
            rollout_steps=model.n_steps,
            gamma=model.gamma,
            gae_lambda=model.lam,
            ent_coef=model.ent_coef,
            policy_lr=model.learning_rate,
            anneal_lr=False,
            vf_coef=model.vf_coef,
            max_grad_norm=model.max_grad_norm,
            update_epochs=model.noptepochs,
            minibatch_size=n_batch // model.nminibatches,
            clip_ratio=model.cliprange,
            clip_vloss=not off,
            clip_ratio_vf=None if off else model.cliprange_vf,
            norm_adv=True,
            unbiased_std=False,
            target_kl=None,
            normalize_obs=False,
            normalize_reward=False,
            encoder=policy.extraction,
            shared_encoder=policy.shares,
            lstm_units=policy.lstm_units,
            lstm_layer_norm=policy.layer_norm,
            # The model itself is what is saved, evaluated and reported on.
            eval_episodes=0,
            checkpoint_minutes=0,
            console=False,
        )


@contextmanager
def old_names() -> Iterator[None]:
    """Let what is refused inside be refused under PPO2's names."""
    try:
        yield
    except ValueError as error:
        name, colon, rest = str(error).partition(":")
        if name not in _OLD_NAMES:
            raise
        raise ValueError(f"{_OLD_NAMES[name]}{colon}{rest}") from error


def plain_settings(model: Any) -> dict[str, Any]:
    """Give a model's settings as plain values; functions by a word."""
    plain: dict[str, Any] = {name: getattr(model, name) for name in SETTINGS}
    for name in SCHEDULES:
        if plain[name] is not None:
            plain[name] = plain_schedule(plain[name])
    if plain["tensorboard_log"] is not None:
        plain["tensorboard_log"] = str(plain["tensorboard_log"])
    return plain
