"""The table of names in the documentation is right."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import minerva.compat
from minerva.compat.aliases import real_name

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "stable-baselines.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `((?:stable_baselines|gym)[\w.]*)` \| ([^|]+) \|", PAGE, re.MULTILINE)
TABLE = {module: re.findall(r"`(\w+)`", names) for module, names in ROWS}
MISSING = re.findall(r"`([A-Z]\w+)`", PAGE.partition("| names | use |")[2].partition("`PPO2` has")[0])
ATTRIBUTES = re.findall(r"`(\w+)`", PAGE.partition("`PPO2` has")[2].partition("and its settings")[0])


def import_older(name: str) -> object:
    return importlib.import_module(real_name(name) or name)


@pytest.mark.parametrize("module", TABLE)
def test_every_name_of_the_table_exists(module: str) -> None:
    assert TABLE[module]
    missing = [name for name in TABLE[module] if not hasattr(import_older(module), name)]
    assert not missing


def test_every_name_of_a_package_is_in_the_table() -> None:
    exported = {
        found.name.removeprefix("minerva.compat."): set(importlib.import_module(found.name).__all__)
        for found in pkgutil.walk_packages(minerva.compat.__path__, "minerva.compat.")
        if found.ispkg and hasattr(importlib.import_module(found.name), "__all__")
    }
    assert len(exported) >= 8
    everywhere = {name for names in TABLE.values() for name in names}
    assert exported.pop("stable_baselines") <= {*everywhere, *MISSING}
    missing = {module: names - {*TABLE.get(module, ()), *MISSING} for module, names in exported.items()}
    assert not {module: names for module, names in missing.items() if names}


@pytest.mark.parametrize("name", [name for name in MISSING if name != "PPO2"])
def test_other_algorithms_raise_an_error(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"{name}: is not available"):
        getattr(import_older("stable_baselines"), name)("MlpPolicy", "CartPole-v1")


def test_ppo2_has_the_attributes_of_the_page() -> None:
    from minerva.compat.stable_baselines import PPO2

    model = PPO2("MlpPolicy", "CartPole-v1", n_steps=4)
    assert len(ATTRIBUTES) >= 15
    assert [name for name in ATTRIBUTES if not hasattr(model, name)] == []
