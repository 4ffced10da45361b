from collections.abc import Callable
from pathlib import Path

import pytest

from minerva import api, presets

WANTED = {
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5", "Pendulum-v1",
    "dm_control/cheetah/run", "dm_control/walker/walk", "dm_control/walker/run", "dm_control/cartpole/swingup",
    "dm_control/humanoid/walk", "dm_control/humanoid/run",
}  # fmt: skip
MORE = {"dm_control/finger/spin", "dm_control/hopper/hop", "dm_control/reacher/easy", "dm_control/walker/stand"}
DISCRETE = {
    "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "minerva/CartPoleNoVelocity-v1",
    "minerva/PendulumNoVelocity-v1", "ALE/Pong-v5", "ALE/Breakout-v5",
}  # fmt: skip
RUNS = """
["{id}".promise]
steps = 990_000
seeds = [1, 2]
returns = [10.0, 20.0]
mean = 15.0
interval = [8.4, 21.6]
tuned_on = "3-4"
commits = ["abc"]
hardware = ["one core"]
"""

Write = Callable[[str], None]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Write the file of PPO's presets, the only one."""
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)

    def write_ppo(text: str) -> None:
        (tmp_path / "ppo.toml").write_text(text)

    return write_ppo


# The presets that Minerva has


@pytest.mark.parametrize("algo", presets.algorithms_with_presets())
def test_every_preset_builds_its_config_and_names_its_steps(algo: str) -> None:
    for name, preset in presets.load_presets(algo).items():
        settings = api.preset_settings(algo, name)
        assert settings.total_steps == preset.total_steps is not None and settings.total_steps >= 30_000, name
        config = api.config_class(algo).from_fields(None, settings.fields)
        for field, value in settings.fields.items():
            assert getattr(config, field) == value, (name, field)
        assert settings.fitted(api.config_class(algo), {}).fields == preset.fields, name


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


def test_every_algorithm_has_general_presets_for_the_actions_that_it_takes() -> None:
    kinds = {algo: set(presets.load_defaults(algo)) for algo in presets.algorithms_with_presets()}
    both = {"continuous", "discrete"}
    assert kinds == {"mpo": {"continuous"}, "ppo": both, "vmpo": both}


@pytest.mark.parametrize("algo", presets.algorithms_with_presets())
def test_what_a_table_says_besides_fields_is_the_name_of_no_field(algo: str) -> None:
    with pytest.raises(ValueError, match="not a setting"):
        api.config_class(algo).from_fields(None, {"total_steps": 1})
    assert not set(presets.ABOUT) & set(api.config_class(algo)().to_plain())


# The form of a file


def test_what_all_presets_of_a_file_share_is_written_once(write: Write) -> None:
    write('about = "Of all."\n[common]\na = 1\nb = [2]\n[X]\nb = 3\n[Y]\nc = 4\n[default.discrete]\nd = 5\n')
    assert {name: preset.fields for name, preset in presets.load_presets("ppo").items()} == {
        "X": {"a": 1, "b": 3},
        "Y": {"a": 1, "b": (2,), "c": 4},
    }
    assert presets.load_defaults("ppo")["discrete"].fields == {"a": 1, "b": (2,), "d": 5}
    assert presets.common_fields("ppo") == {"a": 1, "b": (2,)}
    assert presets.about("ppo") == "Of all."


def test_arrays_are_tuples_as_in_a_config(write: Write) -> None:
    write('["X-v0"]\ntotal_steps = 5\npolicy_layer_sizes = [3, 4]\n')
    preset = presets.find_preset("ppo", "X-v0")
    assert (preset.fields, preset.total_steps) == ({"policy_layer_sizes": (3, 4)}, 5)


def test_a_preset_takes_over_the_settings_of_another_but_not_its_results(write: Write) -> None:
    write(f'[X]\ntotal_steps = 5\ngamma = 0.5\n{RUNS.format(id="X")}[Y]\nbase = "X"\n[Z]\nbase = "Y"\ngamma = 0.7\n')
    x, y, z = presets.load_presets("ppo").values()
    assert (y.fields, y.total_steps, y.base, y.promise) == (x.fields, 5, "X", None)
    assert (z.fields, z.total_steps, z.base) == ({"gamma": 0.7}, 5, None)  # settings of its own
    assert [x.status, y.status, z.status] == ["2 seeds: 15 [8, 22]", "not tried: settings of X", "not tried"]


def test_a_preset_says_what_is_known_of_it(write: Write) -> None:
    write(
        f"[A]\ntotal_steps = 1_000_000\n{RUNS.format(id='A')}[B]\ntotal_steps = 2_000_000\n{RUNS.format(id='B')}"
        '[C]\n[C.tuned]\nseeds = "1-4"\n[D]\n[default.discrete.tuned]\nseeds = "1-4"\ntasks = ["P", "Q", "R"]\n'
    )
    known = [*presets.load_presets("ppo").values(), *presets.load_defaults("ppo").values()]
    assert [(preset.status, preset.described()) for preset in known] == [
        ("2 seeds: 15 [8, 22]", " (2 seeds: 15 [8, 22] after 990,000 steps)"),
        ("2 seeds: 15 [8, 22] at 990,000 steps", " (2 seeds: 15 [8, 22] after 990,000 steps)"),
        ("tuned, not reported", ", which was tuned and has no reported results"),
        ("not tried", ", which was never tried"),
        ("tuned on 3 tasks, not reported", ", which was tuned on P, Q and R and has no reported results"),
    ]


def test_errors_about_unknown_names_suggest_close_ones() -> None:
    with pytest.raises(ValueError, match=r"preset: ppo has no preset 'Hoper-v5'. Did you mean Hopper-v5"):
        presets.find_preset("ppo", "Hoper-v5")
    with pytest.raises(ValueError, match=r"It has HalfCheetah-v5, .* Use .none. for the defaults"):
        presets.find_preset("ppo", "zzzzzzzz")
    with pytest.raises(ValueError, match=r"algo: must be one of mpo, ppo, vmpo, got 'sac'"):
        presets.load_presets("sac")
