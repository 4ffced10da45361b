from pathlib import Path

import pytest

from minerva import api
from minerva.presets.files import LARGEST_FILE, read_preset_file
from minerva.trainers.ppo.config import PPOConfig


@pytest.mark.parametrize("head", ["", '["Hopper-v5"]\n', "[anything]\n"])
def test_a_file_holds_fields_at_its_top_level_or_in_one_table(tmp_path: Path, head: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"{head}total_steps = 200_000\npolicy_lr = 'lin_1e-3'\npolicy_layer_sizes = [3, 4]\n")
    preset = read_preset_file(file, PPOConfig)
    assert preset.fields == {"policy_lr": "lin_1e-3", "policy_layer_sizes": (3, 4)}
    assert (preset.total_steps, preset.promise) == (200_000, None)


def test_arguments_of_the_environment_are_a_field_although_they_are_a_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("gamma = 0.5\n[env_kwargs]\ng = 2.5\n")
    assert read_preset_file(file, PPOConfig).fields == {"gamma": 0.5, "env_kwargs": {"g": 2.5}}


def test_a_file_is_used_by_its_name_or_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("total_steps = 3\ngamma = 0.5\n")
    for given in (file, str(file)):
        settings = api.preset_settings("ppo", "HalfCheetah-v5", given)
        assert (settings.fields, settings.total_steps) == ({"gamma": 0.5}, 3)
        assert settings.notes == (f"Using the settings of {file}.",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gamma = ", "is not TOML ("),
        ("[dm_control/x]\ngamma = 1", "an id with a slash needs quotes."),
        (b"gamma = 0.5 # \xff", "must be text in UTF-8."),
        ("", "must hold at least one setting, got none."),
        ("total_steps = 5", "must hold at least one setting, got none."),
        ("[X]\ngamma = 0.5\n[Y]\ngamma = 0.5", "must hold fields, or one table of them; got several (X, Y)."),
        ("lam = 0.5\n[X]\ngamma = 0.5", "got a table and fields beside it (lam, X)."),
        ("gama = 0.5", "gama: not a setting of PPOConfig. Did you mean gamma?"),
        ("[X]\n[X.promise]\nsteps = 3", "promise: not a setting of PPOConfig."),
        ("gamma = 1.5", "gamma: must lie in [0, 1], got 1.5."),
        ("gamma = 2020-01-01", "gamma: must be a number"),
        ("gamma = 0.5\ntotal_steps = 0", "total_steps: must be at least 1, got 0."),
        ("gamma = 0.5\ntotal_steps = 'x'", "total_steps: must be a whole number, got 'x'."),
        ("x = " + "[" * 5000, ": "),
        ("#" * (LARGEST_FILE + 1), "must be at most 1,048,576 bytes, got 1,048,577."),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(tmp_path: Path, text: str | bytes, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as caught:
        read_preset_file(file, PPOConfig)
    message = str(caught.value)
    assert message.startswith(f"preset: {file}: ") and said in message
    assert "\n" not in message and len(message) < 3000


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"preset: .*nowhere\.toml: there is no such file\.$"):
        api.preset_settings("ppo", "HalfCheetah-v5", str(tmp_path / "nowhere.toml"))
    with pytest.raises(ValueError, match=r"preset: must be a name, a file or None, got int\."):
        api.preset_settings("ppo", "HalfCheetah-v5", 5)  # type: ignore[arg-type]
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ValueError, match=r"folder\.toml: is a folder\.$"):
        api.preset_settings("ppo", "HalfCheetah-v5", tmp_path / "folder.toml")


def test_a_file_says_with_which_seeds_it_was_chosen_and_none_is_a_word(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[X]\ntuned_on = "1-3,7"\ntarget_kl = "none"\nenv_kwargs = {g = 2.5}\n')
    preset = read_preset_file(file, PPOConfig)
    assert preset.fields == {"target_kl": None, "env_kwargs": {"g": 2.5}} and preset.tuned is not None
    assert preset.tuned.seeds == "1-3,7"
    settings = api.preset_settings("ppo", "X", file)
    assert settings.tuning_note(4) is None and "chosen on seeds 1-3,7, and 7" in str(settings.tuning_note(7))
    for wrong in ('"x"', "3", '"1-"'):
        file.write_text(f"tuned_on = {wrong}\ngamma = 0.5\n")
        with pytest.raises(ValueError, match="tuned_on: must be seeds such as"):
            read_preset_file(file, PPOConfig)
