"""What the pages say is tried: code runs, commands parse, metrics are those that are logged."""

import csv
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minerva
from minerva import api, cli
from minerva.annotate import read_source
from minerva.cli.options import ResumeOptions, bench_options, parse, setting_groups, train_options, value_of
from minerva.trainers.ppo.config import PPOConfig
from tests.annotate.programs import need

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
SHORT: dict[str, Any] = {"eval_episodes": 2, "console": False, "compile": False}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# Python


@dataclasses.dataclass
class Block:
    page: str
    line: int
    note: str
    code: str


def blocks() -> Iterator[Block]:
    pattern = re.compile(r"(?:<!-- (?P<note>(?:not )?run.*?) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
    for page in PAGES:
        text = text_of(page)
        for match in pattern.finditer(text):
            yield Block(page, text[: match.start()].count("\n") + 1, match["note"] or "", match["code"])


RUNNABLE = [block for block in blocks() if re.match(r"run(?! as )", block.note)]


def test_every_block_of_python_is_run_or_says_why_not() -> None:
    for block in blocks():
        assert block.note.startswith(("run", "not run: ")), f"{block.page}, line {block.line}"
    assert len(RUNNABLE) >= 8


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tutorial's first run, as short as can be."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    minerva.train("ppo", "Pendulum-v1", total_steps=1_024, out_dir=folder, **SHORT)
    return folder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: f"{block.page}:{block.line}")
def test_block_runs(block: Block, first_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block.code
    if match := re.fullmatch(r"run with (.+) = (.+)", block.note):
        assert match[1] in code
        code = code.replace(match[1], repr(str(first_run)) if match[2] == "FIRST_RUN" else match[2])
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{block.page}:{block.line}", "exec"), {"__name__": "__main__"})


# Files: blocks that are saved under a name, and the commands that need them


def save_files(page: str, folder: Path) -> None:
    for name, code in re.findall(r"<!-- run as (.+?) -->\n```\w+\n(.*?)```", text_of(page), re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that finds this package and, as the pages say, what lies in the folder."""
    environment = {**os.environ, "PYTHONPATH": f".{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


def test_an_environment_with_an_id_of_its_own_is_trained_on(tmp_path: Path) -> None:
    page = "how-to/own-environment.md"
    shutil.copy(ROOT / "examples" / "own_environment.py", tmp_path)
    save_files(page, tmp_path)
    (command,) = re.findall(r"^PYTHONPATH=\. minerva (.+)$", text_of(page), re.MULTILINE)
    short = ("--total-steps", "1024", "--rollout-steps", "128", "--eval-episodes", "1", "--out-dir", "run")
    run = run_in(tmp_path, "-m", "minerva.cli", *shlex.split(command), *short)
    assert run.returncode == 0, run.stderr
    said = "my_tasks:ReachTarget-v0 has no preset for ppo: using the general preset for continuous actions"
    assert said in run.stdout
    assert minerva.load(tmp_path / "run").env_steps == 1024


def test_formulas_of_a_package_of_ones_own_are_claimed(tmp_path: Path) -> None:
    need("node", "nodejs")
    page = "how-to/annotate.md"
    save_files(page, tmp_path)
    (tmp_path / "mine" / "__init__.py").touch()
    (command,) = re.findall(r"^minerva (annotate mine .+)$", text_of(page), re.MULTILINE)
    (settings,) = re.findall(r"```toml\n(.*?)```", text_of(page), re.DOTALL)
    strict = ("-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "tests")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    assert "'formula' not found in `markers`" in run_in(tmp_path, *strict).stdout
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    tested, checked = run_in(tmp_path, *strict), run_in(tmp_path, "-m", "minerva.cli", *shlex.split(command))
    assert tested.returncode == 0 and "1 passed" in tested.stdout, tested.stdout
    assert checked.returncode == 0 and "1 covered by a test" in checked.stdout, checked.stdout + checked.stderr
    module = tmp_path / "mine" / "losses.py"
    module.write_text(module.read_text().replace(r"\tfrac12", ""), encoding="utf-8")
    assert run_in(tmp_path, "-m", "minerva.cli", *shlex.split(command)).returncode == 1


# Commands


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", text_of(page), re.DOTALL):
            yield from ((page, line) for line in block.splitlines() if line.strip())
        yield from ((page, line) for line in re.findall(r"^    (python -m .+)$", text_of(page), re.MULTILINE))


def parse_as_minerva(words: list[str]) -> None:
    """Read a command as the program would, to the point where it would begin."""
    command, *rest = words
    if command not in ("train", "bench"):
        parse(cli._COMMANDS[command][0], f"minerva {command}", rest)
    elif "--resume" in rest:
        parse(ResumeOptions, "minerva train", rest)
    else:
        algo, *options = rest
        config = api.config_class(algo)
        env, preset = value_of("--env", options) or "", value_of("--preset", options)
        settings = api.preset_settings(algo, env, "none" if ":" in env else preset)  # its module is not imported here
        make_options = train_options if command == "train" else bench_options
        kind = make_options(setting_groups(config), config.from_fields(None, settings.fields), settings.total_steps)
        assert parse(kind, f"minerva {command} {algo}", options).env


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_command_is_one(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.removeprefix("PYTHONPATH=. "), comments=True)
    if words[0] == "torchrun":
        launcher, words = words[: words.index("minerva")], words[words.index("minerva") :]
        assert launcher[1] == "--nproc-per-node" and launcher[2].isdigit() and launcher[-1] == "-m"
    if words[0] == "minerva":
        try:
            parse_as_minerva(words[1:])
        except SystemExit as end:  # --help
            assert end.code == 0 and "--help" in words
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"[\w-]+", words[-1])) <= set(extras)
        assert (ROOT / words[words.index("-c") + 1]).exists()
    elif words[0] == "python" and words[1].startswith("examples/"):
        options = [word.removeprefix("--").replace("-", "_") for word in words[2:] if word.startswith("--")]
        fields = re.findall(r"^    (\w+): ", (ROOT / words[1]).read_text(), re.MULTILINE)
        assert options and set(options) <= set(fields)
    elif words[:3] == ["python", "-m", "pytest"]:
        assert (ROOT / words[3]).exists()
    else:
        assert line in ("python3 -m venv .venv", ". .venv/bin/activate", "tensorboard --logdir runs")


# Metrics


def metrics_on_the_page(algo: str) -> set[str]:
    section = text_of(f"algorithms/{algo}.md").partition("## What it logs, and how to read it")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


FIELDS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_steps": 256},
    "mpo": {
        "update_after": 480,
        "batch_size": 16,
        "log_interval": 100,
        "policy_layer_sizes": (8,),
        "critic_layer_sizes": (8,),
    },
    "vmpo": {"rollout_steps": 256},
}


@pytest.mark.parametrize("algo", FIELDS)
def test_metrics_are_those_that_a_run_logs(algo: str, tmp_path: Path) -> None:
    result = minerva.train(algo, "Pendulum-v1", 512, out_dir=tmp_path / "run", preset="none", **FIELDS[algo], **SHORT)
    with (result.out_dir / "metrics.csv").open() as file:
        logged = {re.sub(r"_\d+$", "_<j>", row["name"]) for row in csv.DictReader(file)}
    assert metrics_on_the_page(algo) == logged


# Names


def test_every_paper_that_a_formula_cites_is_in_the_bibliography() -> None:
    text = text_of("bibliography.md")
    cited = {formula.paper for module in read_source(ROOT / "minerva").modules for formula in module.formulas}
    for paper in cited - {None}:
        assert f"### {paper} {{ #{str(paper).lower()} }}" in text


def test_settings_named_for_those_who_come_from_stable_baselines_exist() -> None:
    rows = re.findall(
        r"^\|[^|]*\| (`[^|]+`) \|", text_of("how-to/stable-baselines.md").partition("| PPO2 |")[2], re.MULTILINE
    )
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 12 and named <= {field.name for field in dataclasses.fields(PPOConfig)}
