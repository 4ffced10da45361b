from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from minerva.environments.base import EnvironmentFailureError
from minerva.presets.action_kind import action_kind


class Counted(gymnasium.Env[Any, Any]):
    """Counts how often it is made and closed."""

    observation_space = spaces.Box(-1, 1, (2,))
    made = closed = 0

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        Counted.made += 1

    def close(self) -> None:
        Counted.closed += 1


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Box(-1, 1, (2,)), "continuous"),
        (spaces.Discrete(3), "discrete"),
        (spaces.MultiDiscrete([2, 3]), "discrete"),
        (spaces.MultiBinary(4), "discrete"),
    ],
)
def test_an_environment_of_ones_own_is_made_once_and_closed(space: spaces.Space[Any], kind: str) -> None:
    Counted.made = Counted.closed = 0
    assert action_kind(lambda **kwargs: Counted(**kwargs), {"action_space": space}) == kind
    assert (Counted.made, Counted.closed) == (1, 1)


def test_ids_and_their_arguments_tell() -> None:
    assert action_kind("MountainCarContinuous-v0") == "continuous"
    assert action_kind("CartPole-v1") == "discrete"


@pytest.mark.parametrize("name", ["Swimmer-v5", "HumanoidStandup-v5", "dm_control/pendulum/swingup"])
def test_robots_are_not_made_to_see_that_their_actions_are_continuous(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minerva.environments.ids.resolve", None)
    assert action_kind(name) == "continuous"


def test_errors_are_those_of_the_run() -> None:
    with pytest.raises(ValueError, match=r"env: no environment is called 'CartPoel-v1'. Did you mean CartPole"):
        action_kind("CartPoel-v1")
    with pytest.raises(EnvironmentFailureError, match="could not be made by its factory: ZeroDivisionError"):
        action_kind(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
