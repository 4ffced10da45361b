"""The names of stable-baselines' other algorithms; using one raises an error that names what Minerva has for it."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

_PPO2 = "PPO2 learns the same tasks, with actions of the same kinds"
_MPO = "for off-policy learning of continuous actions, use minerva.MPOTrainer"


class _Missing:
    remedy: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error too."""
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise NotImplementedError(
            f"{cls.__name__}: is not available; of stable-baselines' algorithms Minerva has PPO2, and {cls.remedy}."
        )


class A2C(_Missing):
    """Not available; use PPO2."""

    remedy = _PPO2


class ACER(_Missing):
    """Not available; use PPO2."""

    remedy = _PPO2


class ACKTR(_Missing):
    """Not available; use PPO2."""

    remedy = _PPO2


class PPO1(_Missing):
    """Not available; use PPO2."""

    remedy = _PPO2


class TRPO(_Missing):
    """Not available; use PPO2."""

    remedy = _PPO2


class DQN(_Missing):
    """Not available; use PPO2."""

    remedy = "it learns tasks with discrete actions too"


class DDPG(_Missing):
    """Not available; use Minerva's MPO."""

    remedy = _MPO


class SAC(_Missing):
    """Not available; use Minerva's MPO."""

    remedy = _MPO


class TD3(_Missing):
    """Not available; use Minerva's MPO."""

    remedy = _MPO


class HER(_Missing):
    """Not available."""

    remedy = "it has no replay of goals"


class GAIL(_Missing):
    """Not available; `pretrain` learns from demonstrations."""

    remedy = "PPO2.pretrain learns from the demonstrations of an ExpertDataset"
