import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import minerva
from minerva import api, checkpointing, presets
from minerva.cli import main
from minerva.cli.options import key_values, setting_groups
from minerva.presets.files import read_preset_file
from minerva.trainers.ppo.config import PPOConfig
from tests.annotate.programs import need

SHORT = ["--preset", "none", "--rollout-steps", "64", "--minibatch-size", "32", "--eval-episodes", "2", "--no-console"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "ppo", "--env", "Pendulum-v1", "--total-steps", "256", "--out-dir", str(folder), *SHORT]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


# Help


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "--help")
    for word in (
        "SYNOPSIS",
        "minerva train ALGO --env ID",
        "evaluate",
        "plot",
        "presets",
        "envs",
        "annotate",
        "EXIT STATUS",
    ):
        assert word in text
    assert answer(capsys) == text
    assert answer(capsys, "--version") == f"minerva {minerva.__version__}\n"
    assert "minerva train --resume RUN" in answer(capsys, "train", "--help")


def test_help_of_train_shows_every_field_under_its_heading_with_its_docstring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # one column of boxes
    text = " ".join(answer(capsys, "train", "ppo", "--help").replace("│", " ").split())
    for field in dataclasses.fields(PPOConfig):
        assert f"--{field.name.replace('_', '-')} " in text.replace(",", " "), field.name
    for option in ("env", "preset", "total-steps", "seed", "device", "out-dir", "init-from"):
        assert f"--{option} " in text, option
    networks, _, rest = text.partition("collecting options")
    assert "networks options" in networks and "--policy-layer-sizes" in networks
    assert "--gamma FLOAT" in rest and "Discount. (default: 0.99)" in rest
    assert "(default: 1000000)" in text


def test_groups_cover_the_config_once_and_are_documented() -> None:
    groups = setting_groups(PPOConfig)
    names = [setting.name for members in groups.values() for setting in members]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(PPOConfig))
    assert all(setting.help for members in groups.values() for setting in members)
    assert [setting.name for setting in groups["optimizer"]] == [
        "policy_lr",
        "anneal_lr",
        "optimizer_type",
        "sgd_momentum",
        "compile",
    ]
    assert list(groups)[:4] == ["networks", "collecting", "updating", "optimizer"]


def test_help_shows_the_presets_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ppo.toml").write_text('["Pendulum-v1"]\ntotal_steps = 777\ngamma = 0.123\n')
    monkeypatch.setattr(presets, "_FOLDER", tmp_path)
    for words in (["--env", "Pendulum-v1"], ["--env=Pendulum-v1"], ["--env", "X", "--preset", "Pendulum-v1"]):
        text = answer(capsys, "train", "ppo", *words, "--help")
        assert "0.123" in text and "777" in text
    text = answer(capsys, "train", "ppo", "--env", "Pendulum-v1", "--preset", "none", "--help")
    assert "0.123" not in text and "777" not in text


@pytest.mark.parametrize("words", [["--help"], ["train", "ppo", "--env", "HalfCheetah-v5", "--help"]])
def test_help_is_quick_and_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from minerva.cli import main; main(sys.argv[1:]);"
        "print({'torch', 'gymnasium', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):
        # CPU time, not wall-clock time: other programs on the machine do not count.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert ended.stderr.strip() == "set()"
    assert min(seconds) < 0.5


# train


def test_train_prints_its_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = answer(
        capsys, "train", "ppo", "--env", "Pendulum-v1", "--total-steps", "128", "--seed", "5",
        "--env-kwargs", "g=2.5", "--target-kl", "None", "--policy-layer-sizes", "8", "4", *SHORT,
    )  # fmt: skip
    (folder,) = (tmp_path / "runs" / "ppo" / "Pendulum-v1").iterdir()
    assert folder.name.endswith("-seed5")
    lines = text.splitlines()
    assert "Before     return" in lines[-5] and "(2 episodes)" in lines[-5]
    assert "After      return" in lines[-4]
    assert re.fullmatch(r"Speed      [\d,]+ steps/s over the whole run of 0:\d\d, \d+% of it evaluation", lines[-3])
    assert lines[-2] == f"Run        {folder.relative_to(tmp_path)}"
    assert lines[-1] == f"Checkpoint {folder.relative_to(tmp_path) / 'ppo_last.pt'}"
    checkpoint = checkpointing.read(folder / "ppo_last.pt")
    assert checkpoint["seed"] == 5 and checkpoint["run"]["total_steps"] == 128
    config = checkpoint["config"]
    assert config["env_kwargs"] == {"g": 2.5}
    assert config["target_kl"] is None
    assert config["policy_layer_sizes"] == [8, 4]


def test_env_kwargs_are_read_as_python_values() -> None:
    assert key_values(["a=1", "b=true", "c=x y", "d=None", "e=[1, 2]", "f=a=b", "g=False"]) == {
        "a": 1, "b": True, "c": "x y", "d": None, "e": [1, 2], "f": "a=b", "g": False,
    }  # fmt: skip


def test_an_environment_without_a_preset_prints_a_note(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--total-steps", "128", "--out-dir", str(tmp_path / "a"), "--num-envs", "2", *SHORT[2:-1]]
    text = answer(capsys, "train", "ppo", "--env", "MountainCarContinuous-v0", "--eval-max-steps", "50", *words)
    said = "MountainCarContinuous-v0 has no preset for ppo: using the general preset for continuous actions"
    assert said in " ".join(text.split())
    assert said in (tmp_path / "a" / "notes.log").read_text()
    assert "Changed here: eval_max_steps, num_envs, rollout_steps, minibatch_size." in " ".join(text.split())


def test_a_preset_file_and_fitted_rollouts_work_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text("total_steps = 256\ngamma = 0.5\nrollout_steps = 64\nnum_envs = 2\n")
    words = ["--preset", str(tmp_path / "mine.toml"), "--num-envs=4", "--eval-episodes", "0"]
    text = " ".join(
        answer(capsys, "train", "ppo", "--env", "Pendulum-v1", "--out-dir", str(tmp_path / "a"), *words).split()
    )
    assert f"Using the settings of {tmp_path / 'mine.toml'}. Changed here: num_envs." in text
    assert "To fit num_envs = 4: rollout_steps = 32 in place of 64 (rollouts of 128 samples)." in text
    config = checkpointing.read(tmp_path / "a" / "ppo_last.pt")["config"]
    assert (config["gamma"], config["num_envs"], config["rollout_steps"]) == (0.5, 4, 32)
    assert checkpointing.read(tmp_path / "a" / "ppo_last.pt")["run"]["env_steps"] == 256


def test_total_steps_below_one_rollout_are_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "ppo", "--env", "Pendulum-v1", "--total-steps", "63", "--out-dir", str(tmp_path / "a"), *SHORT]
    assert main(words) == 2
    said = "total_steps: must be at least rollout_steps * num_envs = 64, one rollout, got 63: nothing would be learned."
    assert said in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_run_that_ends_earlier_than_asked_says_so_at_its_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "train",
        "ppo",
        "--env",
        "Pendulum-v1",
        "--total-steps",
        "100",
        "--out-dir",
        str(tmp_path / "a"),
        *SHORT[:-1],
    ]
    said = "The run ends at step 64, not 100: it consists of whole rollouts of 64 steps."
    text = answer(capsys, *words)
    assert text.index(said) < text.index("0 / 64 steps")


def test_init_from_starts_a_new_run_with_an_old_policy(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = (run / "ppo_last.pt").read_bytes()
    words = ["--total-steps", "64", "--policy-lr", "1e-30", "--out-dir", str(tmp_path / "new"), *SHORT]
    answer(capsys, "train", "ppo", "--env", "Pendulum-v1", "--init-from", str(run), *words)
    old, new = (checkpointing.read(folder / "ppo_last.pt") for folder in (run, tmp_path / "new"))
    weights = [checkpoint["state"]["agent"]["policy.policy_encoder.0.weight"] for checkpoint in (old, new)]
    assert weights[0].equal(weights[1])
    assert new["run"]["env_steps"] == 64
    assert (run / "ppo_last.pt").read_bytes() == before


def test_resume_continues_exactly(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    base = ["train", "ppo", "--env", "Pendulum-v1", "--no-anneal-lr", *SHORT]
    answer(capsys, *base, "--total-steps", "128", "--out-dir", str(folder), "--eval-interval", "64")
    log, state = (folder / "metrics.csv").read_bytes(), checkpointing.read(folder / "ppo_last.pt")["run"]
    text = answer(capsys, "train", "--resume", str(folder))
    assert text.endswith("The run has already taken all its steps; give a larger --total-steps to continue.\n")
    assert (folder / "metrics.csv").read_bytes() == log
    assert checkpointing.read(folder / "ppo_last.pt")["run"]["env_steps"] == state["env_steps"] == 128
    text = answer(capsys, "train", "ppo", "--resume", str(folder), "--total-steps", "256", "--device", "cpu")
    assert "Before" not in text and f"Run        {folder}" in text
    answer(capsys, *base, "--total-steps", "256", "--out-dir", str(tmp_path / "whole"), "--eval-interval", "64")
    resumed, whole = (checkpointing.read(f / "ppo_last.pt")["state"]["agent"] for f in (folder, tmp_path / "whole"))
    assert all((resumed[name] == whole[name]).all() for name in whole)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_prints_how_to_resume(tmp_path: Path, number: signal.Signals, status: int) -> None:
    folder = tmp_path / "my run"
    code = "import sys; from minerva.cli import main; sys.exit(main())"
    words = ["--total-steps", "200000", "--out-dir", str(folder), *SHORT[:-1]]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "ppo", "--env", "Pendulum-v1", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        metrics = folder / "metrics.csv"
        while not (metrics.exists() and "charts/SPS" in metrics.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert err == ""
    assert out.splitlines()[-1] == f"Resume with: minerva train --resume '{folder}'"
    checkpoint = checkpointing.read(folder / "ppo_last.pt")
    assert checkpoint["run"]["env_steps"] > 0


# The other commands


def test_evaluate_prints_the_table(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    text = answer(capsys, "evaluate", str(run), "--episodes", "4")
    for word in (
        "Pendulum-v1",
        "ppo_last.pt at step 256",
        "4 episodes",
        "mean",
        "95% interval",
        "std",
        "median",
        "IQM",
    ):
        assert word in text
    assert answer(capsys, "evaluate", str(run), "--episodes", "4") == text
    assert answer(capsys, "evaluate", str(run), "--episodes", "4", "--seed", "9") != text
    sampled = answer(capsys, "evaluate", str(run / "ppo_last.pt"), "--episodes", "4", "--stochastic")
    assert "sampled actions" in sampled and sampled.splitlines()[5:] != text.splitlines()[5:]
    assert "ppo_best.pt" in answer(capsys, "evaluate", str(run), "--episodes", "1", "--best")
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_evaluate_plays_other_episodes_than_those_that_chose_the_checkpoint(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minerva.report.runs import read_run

    text = answer(capsys, "evaluate", str(run), "--episodes", "2")
    assert f"{read_run(run).metrics['eval/return_mean'].values[-1]:,.2f}" not in text
    assert answer(capsys, "evaluate", str(run), "--episodes", "2") == text  # the same ones every time
    assert answer(capsys, "evaluate", str(run), "--episodes", "2", "--seed", "5") != text


def test_plot_writes_a_figure_and_prints_where(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = answer(capsys, "plot", str(run))
    assert out == f"{run / 'learning_curve.png'}\n"
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    svg = tmp_path / "a" / "b.svg"
    assert answer(capsys, "plot", str(run), str(run), "--out", str(svg), "--metric", "losses/entropy") == f"{svg}\n"
    assert "<svg" in svg.read_text()


def test_plot_searches_folders_and_takes_labels(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = tmp_path / "found.svg"
    assert answer(capsys, "plot", str(run.parent), "--label", "mine", "--out", str(svg)) == f"{svg}\n"
    assert "mine" in svg.read_text()
    assert main(["plot", str(run), "--label", "one", "two"]) == 2
    assert "label: must be one per folder, 1, got 2." in capsys.readouterr().err
    assert main(["plot", str(run), "--group-by", "gama", "--out", str(svg)]) == 2
    assert "group_by: 'gama' is not a setting of these runs." in capsys.readouterr().err


@pytest.mark.parametrize("algo", presets.algorithms_with_presets())
def test_presets_lists_steps_and_status_in_a_hundred_columns(capsys: pytest.CaptureFixture[str], algo: str) -> None:
    text = answer(capsys, "presets", algo)
    assert all(line in answer(capsys, "presets").splitlines() for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 100
    for preset in [*presets.load_presets(algo).values(), *presets.load_defaults(algo).values()]:
        (line,) = (line for line in text.splitlines() if line.split()[:1] == [preset.name])
        assert line.endswith(f"  {preset.status}")
        assert preset.total_steps is None or f" {preset.total_steps:,}  " in line


def test_a_preset_is_printed_in_the_form_of_a_preset_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for algo, name in (("ppo", "minerva/CartPoleNoVelocity-v1"), ("vmpo", "default.continuous")):
        file.write_text(answer(capsys, "presets", algo, name))
        read, shipped = read_preset_file(file, api.config_class(algo)), presets.find_preset(algo, name)
        assert (read.fields, read.total_steps) == (shipped.fields, shipped.total_steps)
    assert main(["presets", "ppo", "Hoper-v5"]) == 2
    assert "Did you mean Hopper-v5" in capsys.readouterr().err


def test_envs_lists_ids_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    ids = answer(capsys, "envs", "CHEETAH").split()
    assert "HalfCheetah-v5" in ids and "dm_control/cheetah/run" in ids
    assert all("cheetah" in name.lower() for name in ids)
    assert len(answer(capsys, "envs").split()) > len(ids)


# annotate


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("# LaTeX: x + y\na = 1\n# LaTeX: x - y\nb = 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text('@pytest.mark.formula("pkg", "x + y")\ndef test_a(): ...\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_annotate_writes_pages_and_a_file(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("node", "nodejs")
    text = answer(capsys, "annotate", "pkg", "--out", "docs", "--single-file", "a/maths.html", "--tests", "tests")
    lines = text.splitlines()
    assert lines[0] == "Pages      docs" and "assets/annotate.css" in lines[1] and "assets/annotate.js" in lines[2]
    assert lines[3:] == ["Page       a/maths.html", "1 module, 2 formulas: 2 parsed, 1 covered by a test"]
    assert (package / "docs" / "source" / "pkg.md").is_file() and (package / "docs" / "index.md").is_file()
    assert "<title>pkg: math-annotated source</title>" in (package / "a" / "maths.html").read_text()
    answer(capsys, "annotate", "pkg", "--single-file", "b.html", "--tests", "tests", "--source-url", "https://x.org/y/")
    assert 'href="https://x.org/y/tests/test_a.py#L2"' in (package / "b.html").read_text()


def test_annotate_checks(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("node", "nodejs")
    assert answer(capsys, "annotate", "pkg", "--check") == "1 module, 2 formulas: 2 parsed\n"
    assert main(["annotate", "pkg", "--check", "--tests", "tests"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "1 module, 2 formulas: 2 parsed, 1 covered by a test\n"
    assert captured.err == "pkg/__init__.py:3: no test covers x - y\n"
    (package / "pkg" / "__init__.py").write_text("# LaTeX: \\frac{x\na = 1\n")
    for words in (["--check"], ["--single-file", "a.html"]):
        assert main(["annotate", "pkg", *words]) == 1
        captured = capsys.readouterr()
        assert captured.out.endswith("1 module, 1 formula: 0 parsed\n")
        assert captured.err.startswith("pkg/__init__.py:1: formula does not parse: ")
    assert (package / "a.html").exists()
    assert not (package / "docs").exists()


def test_annotate_without_node(
    package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(package))
    text = answer(capsys, "annotate", "pkg", "--single-file", "a.html")
    assert text.endswith("1 module, 2 formulas: not parsed (needs Node)\n") and (package / "a.html").exists()
    assert main(["annotate", "pkg", "--check"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "minerva: --check: needs Node to run KaTeX, but Node was not found; install nodejs.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pkg"], "annotate: give --out DIR, --single-file FILE or --check."),
        (["nowhere", "--out", "docs"], "path: nowhere does not exist"),
        (["pkg", "--out", "tests/test_a.py"], "out: must be a folder, got the file tests/test_a.py"),
        (["pkg", "--out", "docs", "--single-file", "tests"], "single-file: must be a file, got the folder tests"),
        (["pkg", "--out", "docs", "--tests", "nowhere"], "tests: nowhere does not exist"),
        (["tests", "--out", "docs"], "path: no formula in tests"),
        (["broken.py", "--out", "docs"], "broken.py:2: not valid Python"),
    ],
)
def test_annotate_reports_mistakes_in_one_line(
    package: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (package / "broken.py").write_text("# LaTeX: x\ndef f(:\n")
    assert main(["annotate", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"minerva: {message}")
    assert not (package / "docs").exists()


def test_a_checkpoint_that_asks_for_huge_networks_is_refused_before_they_are_built(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = checkpointing.read(run / "ppo_last.pt")
    tree["config"]["policy_layer_sizes"] = [16_000, 16_000]
    torch.save(tree, tmp_path / "ppo_last.pt")
    begin = time.perf_counter()
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "networks of its weights, got larger" in capsys.readouterr().err
    assert time.perf_counter() - begin < 10  # to build them takes a minute
