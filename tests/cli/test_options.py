from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

import pytest

from minerva import cli
from minerva.cli.options import parse, setting_groups, train_options
from minerva.trainers.config import RunConfig
from minerva.utils.schedules import PositiveSchedule


@dataclass(frozen=True, kw_only=True)
class Scheduled(RunConfig):
    # Rates

    rate: PositiveSchedule = 3e-4
    """How fast it learns."""
    bound: PositiveSchedule | None = "const_0.2"
    """How far it may go."""


def read(*words: str, defaults: RunConfig | None = None) -> tuple[Any, Any]:
    groups = setting_groups(Scheduled)
    options = parse(train_options(groups, defaults or Scheduled(), 100), "minerva train x", list(words))
    return options.rates.rate, options.rates.bound


@pytest.mark.parametrize(
    ("words", "rate", "bound"),
    [
        ((), 3e-4, "const_0.2"),
        (("--rate", "1e-3"), 1e-3, "const_0.2"),
        (("--rate", "3"), 3.0, "const_0.2"),
        (("--rate", "lin_2.5e-4"), "lin_2.5e-4", "const_0.2"),
        (("--rate=cos_3e-4", "--bound", "lin_0.1"), "cos_3e-4", "lin_0.1"),
        (("--bound", "None"), 3e-4, None),
        (("--bound", "0.1"), 3e-4, 0.1),
    ],
)
def test_a_schedule_is_written_as_a_number_or_a_text(words: tuple[str, ...], rate: Any, bound: Any) -> None:
    read_rate, read_bound = read(*words)
    assert (read_rate, read_bound) == (rate, bound)
    assert (type(read_rate), type(read_bound)) == (type(rate), type(bound))
    assert Scheduled(rate=read_rate, bound=read_bound) == Scheduled(rate=rate, bound=bound)


def test_a_preset_may_contain_a_schedule() -> None:
    fields = tomllib.loads('rate = "lin_1e-3"\nbound = 0.3\n')
    defaults = Scheduled.from_fields(None, fields)
    assert read(defaults=defaults) == ("lin_1e-3", 0.3)
    assert read("--bound", "cos_1", defaults=defaults) == ("lin_1e-3", "cos_1")


def test_help_shows_the_docstring_and_the_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help", defaults=Scheduled(rate="cos_5e-4"))
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--rate FLOAT|{lin,cos,exp,const}_FLOAT How fast it learns. (default: cos_5e-4)" in text
    assert "--bound FLOAT|{lin,cos,exp,const}_FLOAT|None How far it may go. (default: const_0.2)" in text


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"rate: must be a number, a string such as 'lin_2\.5e-4'"):
        Scheduled(rate=read("--rate", "slow")[0])
    assert cli.main(["train", "ppo", "--env", "Pendulum-v1", "--policy-lr", "slow"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minerva: ") and "'slow'" in line
