"""What the page for users of stable-baselines3 and CleanRL says of their settings and Minerva's."""

import dataclasses
import inspect
import re
from typing import Any

import pytest
import torch

from minerva.objectives.critic import value_loss
from minerva.trainers.ppo.config import PPOConfig
from tests.docs.test_pages import text_of

sb3 = pytest.importorskip("stable_baselines3")

CLEANRL: dict[str, Any] = {
    "env_id": "HalfCheetah-v4", "total_timesteps": 1_000_000, "seed": 1, "cuda": True, "track": False,
    "wandb_project_name": "cleanRL", "save_model": False, "learning_rate": 3e-4, "num_envs": 1, "num_steps": 2048,
    "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 32, "update_epochs": 10, "norm_adv": True,
    "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
}  # fmt: skip
"""Arguments of CleanRL's ppo_continuous_action.py and their defaults, at its commit 016ca33."""
OF_OTHERS = {"minibatch_size", "wandb", "wandb_project"}  # computed from others, or not settings of the algorithm


def rows(heading: str) -> list[tuple[list[str], list[str]]]:
    """Return the names in the first two columns of the first table below a heading."""
    table = re.search(r"(?:^\|.*\|\n)+", text_of("how-to/migrate.md").partition(heading)[2], re.MULTILINE)
    assert table is not None
    cells = [re.split(r" \| ", row.strip("| ")) for row in table[0].splitlines()[2:]]
    return [(re.findall(r"`([\w-]+)`", row[0]), re.findall(r"`([\w-]+)`", row[1])) for row in cells]


def defaults(function: Any) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def fields() -> dict[str, Any]:
    return {field.name: getattr(PPOConfig(), field.name) for field in dataclasses.fields(PPOConfig)}


def test_every_name_of_stable_baselines3_is_a_parameter_of_its_ppo_and_each_of_ours_a_field() -> None:
    named = rows("## From stable-baselines3")
    theirs, ours = ({name for row in named for name in row[k]} for k in (0, 1))
    assert len(theirs) > 15 and theirs <= defaults(sb3.PPO.__init__).keys()
    assert ours <= fields().keys()
    seldom = {"policy", "env", "seed", "device", "rollout_buffer_class", "rollout_buffer_kwargs", "stats_window_size"}
    left = defaults(sb3.PPO.__init__).keys() - theirs - seldom - {"self", "_init_setup_model"}
    assert left == {"use_sde", "sde_sample_freq"}  # the page says that there is none


def test_every_name_of_cleanrl_is_an_argument_of_its_script_and_each_of_ours_a_field_or_option() -> None:
    named = rows("## From CleanRL")
    assert {name for theirs, _ in named for name in theirs} == CLEANRL.keys()
    ours = {name for _, names in named for name in names}
    assert {name for name in ours if not name.startswith("--")} <= fields().keys()
    assert {name for name in ours if name.startswith("--")} == {"--env", "--total-steps", "--seed", "--device"}


def test_defaults_are_those_of_cleanrl_but_for_the_kl_limit() -> None:
    pairs = [(theirs[0], ours[0]) for theirs, ours in rows("## From CleanRL") if ours and ours[0] in fields()]
    differ = {theirs for theirs, ours in pairs if ours not in OF_OTHERS and CLEANRL[theirs] != fields()[ours]}
    assert len(pairs) > 14 and differ == {"target_kl"}
    minibatch = CLEANRL["num_envs"] * CLEANRL["num_steps"] // CLEANRL["num_minibatches"]
    assert minibatch == PPOConfig().minibatch_size
    assert PPOConfig().normalize_obs and PPOConfig().normalize_reward and PPOConfig().obs_clip == 10
    assert PPOConfig().policy_layer_sizes == PPOConfig().critic_layer_sizes == (64, 64)


def test_the_example_turns_off_what_stable_baselines3_does_not_do_and_no_more() -> None:
    text = text_of("how-to/migrate.md").partition("# What SB3's defaults are:\n")[2].partition("\n)")[0]
    changed = {name: eval(value) for name, value in re.findall(r"^    (\w+)=(\S+),$", text, re.MULTILINE)}
    ours = dataclasses.asdict(PPOConfig(**changed))
    assert all(fields()[name] != value for name, value in changed.items())
    theirs = defaults(sb3.PPO.__init__)
    for their_names, our_names in rows("## From stable-baselines3"):
        if len(their_names) == len(our_names) == 1 and their_names[0] not in ("vf_coef", "tensorboard_log", "verbose"):
            assert ours[our_names[0]] == theirs[their_names[0]], their_names
    assert not ours["clip_vloss"] and theirs["clip_range_vf"] is None
    assert ours["vf_coef"] == 2 * theirs["vf_coef"]


def test_the_value_loss_of_stable_baselines3_is_twice_that_of_minerva() -> None:
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(64)
    buffer = model.rollout_buffer
    values, returns = (torch.as_tensor(part.flatten()) for part in (buffer.values, buffer.returns))
    logged = model.logger.name_to_value["train/value_loss"]
    assert logged == pytest.approx(2 * value_loss(values, returns).mean().item(), rel=1e-4)
