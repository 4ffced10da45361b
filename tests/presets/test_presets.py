from pathlib import Path

import pytest

from minerva import api, presets

WANTED = {
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5", "Pendulum-v1",
    "dm_control/cheetah/run", "dm_control/walker/walk", "dm_control/walker/run", "dm_control/cartpole/swingup",
    "dm_control/humanoid/walk", "dm_control/humanoid/run",
}  # fmt: skip


@pytest.mark.parametrize("algo", presets.algorithms_with_presets())
def test_every_preset_builds_its_config_and_names_its_steps(algo: str) -> None:
    for name, fields in presets.load_presets(algo).items():
        settings = api.preset_settings(algo, name)
        assert settings.total_steps == fields["total_steps"] >= 30_000, name
        config = api.config_class(algo).from_fields(None, settings.fields)
        for field, value in settings.fields.items():
            assert getattr(config, field) == value, (name, field)


MORE = {"dm_control/finger/spin", "dm_control/hopper/hop", "dm_control/reacher/easy", "dm_control/walker/stand"}


DISCRETE = {
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "minerva/CartPoleNoVelocity-v1",
    "minerva/PendulumNoVelocity-v1", "ALE/Pong-v5", "ALE/Breakout-v5",
}  # fmt: skip


@pytest.mark.parametrize(
    ("algo", "wanted"),
    [
        ("ppo", WANTED | DISCRETE),
        ("mpo", WANTED | MORE),
        ("vmpo", WANTED | MORE | {"CartPole-v1", "Acrobot-v1"}),
    ],
)
def test_the_promised_presets_exist(algo: str, wanted: set[str]) -> None:
    assert set(presets.load_presets(algo)) >= wanted


@pytest.mark.parametrize("algo", presets.algorithms_with_presets())
def test_every_preset_is_of_an_environment_that_exists(algo: str) -> None:
    from minerva.environments import known_ids

    assert set(presets.load_presets(algo)) <= set(known_ids())


def test_what_all_presets_of_a_file_share_is_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ppo.toml").write_text("[common]\na = 1\nb = [2]\n[X]\nb = 3\n[Y]\nc = 4\n")
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)
    assert presets.load_presets("ppo") == {"X": {"a": 1, "b": 3}, "Y": {"a": 1, "b": (2,), "c": 4}}


def test_arrays_are_tuples_as_in_a_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "ppo.toml").write_text('["X-v0"]\ntotal_steps = 5\npolicy_layer_sizes = [3, 4]\n')
    monkeypatch.setattr(presets, "_FOLDER", folder)
    assert presets.find_preset("ppo", "X-v0") == {"total_steps": 5, "policy_layer_sizes": (3, 4)}


def test_errors_about_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(ValueError, match=r"preset: ppo has no preset 'Hoper-v5'. Did you mean Hopper-v5"):
        presets.find_preset("ppo", "Hoper-v5")
    with pytest.raises(ValueError, match=r"It has HalfCheetah-v5, .* Use .none. for the defaults"):
        presets.find_preset("ppo", "zzzzzzzz")
    with pytest.raises(ValueError, match=r"algo: must be one of mpo, ppo, vmpo, got 'sac'"):
        presets.load_presets("sac")
