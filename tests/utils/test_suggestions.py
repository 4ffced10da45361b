from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import minerva
from minerva import api, cli
from minerva.utils import suggestions
from minerva.utils.suggestions import suggest


@pytest.mark.parametrize(
    ("algo", "word", "meant"),
    [
        ("ppo", "lr", "policy_lr"),
        ("ppo", "learning_rate", "policy_lr"),
        ("mpo", "lr", "policy_lr or q_lr"),
        ("vmpo", "learning_rate", "policy_lr or value_lr"),
        ("ppo", "n_steps", "rollout_steps"),
        ("mpo", "n_steps", "n_step"),
        ("ppo", "batch_size", "minibatch_size"),
        ("vmpo", "batch_size", "minibatches"),
        ("ppo", "n_epochs", "update_epochs"),
        ("vmpo", "n_epochs", "m_steps"),
        ("ppo", "clip_range", "clip_ratio"),
        ("ppo", "n_envs", "num_envs"),
        ("vmpo", "total_timesteps", "total_steps"),
        ("ppo", "timesteps", "total_steps"),
        ("mpo", "buffer_size", "replay_size"),
        ("mpo", "tau", "target_tau"),
        ("vmpo", "net_arch", "policy_layer_sizes or value_layer_sizes"),
        ("ppo", "verbose", "console"),
        ("ppo", "gama", "gamma"),
    ],
)
def test_the_setting_that_was_meant(algo: str, word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    trainer: Any = api.trainer_class(algo)
    for start in (
        lambda **fields: minerva.train(algo, "Pendulum-v1", **fields),
        lambda **f: trainer("Pendulum-v1", **f),
    ):
        with pytest.raises(ValueError, match=rf"^{word}: not a setting of \w+Config\. Did you mean {meant}\?$"):
            start(**{word: 1})
    assert cli.main(["train", algo, "--env", "Pendulum-v1", f"--{word.replace('_', '-')}", "1"]) == 2
    flags = " or ".join(f"--{name.replace('_', '-')}" for name in meant.split(" or "))
    assert f"Did you mean {flags}? See `minerva train {algo} --help`." in capsys.readouterr().err


def test_an_argument_of_train_is_no_setting_and_says_where_it_goes() -> None:
    with pytest.raises(ValueError, match=r"total_steps: .* an argument of train: trainer\.train\(total_steps=…\)"):
        minerva.PPOTrainer("Pendulum-v1", total_steps=1)


def test_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'PPO'\. Did you mean PPOTrainer or train\?"):
        minerva.PPO  # noqa: B018


def test_every_name_that_is_suggested_exists() -> None:
    fields = {field.name for algo in api.ALGORITHMS for field in dataclasses.fields(api.config_class(algo))}
    arguments = {"seed", "device", "make_encoder", "total_steps", "out_dir", "callbacks", "env_id", "env"}
    assert {name for meant in suggestions._MEANT.values() for name in meant} <= fields | arguments | set(
        minerva.__all__
    )


def test_a_word_is_in_the_table_once_and_never_stands_for_nothing() -> None:
    words = [word for names in suggestions._MEANT for word in names]
    assert len(words) == len(set(words))
    assert suggest("lr", ["gamma"]) == [] and suggest("gam", ["gamma"]) == ["gamma"]
