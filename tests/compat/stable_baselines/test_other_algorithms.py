from __future__ import annotations

import pytest

import minerva.compat.stable_baselines as face


@pytest.mark.parametrize("name", ["A2C", "ACER", "ACKTR", "DDPG", "DQN", "GAIL", "HER", "PPO1", "SAC", "TD3", "TRPO"])
def test_another_algorithm_can_be_imported_and_says_what_to_use(name: str) -> None:
    algorithm = getattr(face, name)
    with pytest.raises(NotImplementedError, match=f"{name}: is not available; .* has PPO2"):
        algorithm("MlpPolicy", "CartPole-v1", verbose=1)
    with pytest.raises(NotImplementedError, match=name):
        algorithm.load("model")


def test_modules_are_attributes_of_the_package() -> None:
    assert face.bench.Monitor.EXT == "monitor.csv"
    assert face.results_plotter.X_TIMESTEPS == "timesteps"
