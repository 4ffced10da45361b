from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from minerva.compat.stable_baselines import DummyVecEnv
from minerva.compat.stable_baselines.common.base_class import ActorCriticRLModel, BaseRLModel
from minerva.compat.stable_baselines.gail import ExpertDataset
from tests.compat.stable_baselines.samples import BATCH, small_model
from tests.environments.tiny_envs import Picking


def demonstrations(obs: Any, actions: Any, **settings: Any) -> ExpertDataset:
    starts = np.arange(len(obs)) % 50 == 0
    data = {"obs": obs, "actions": actions, "rewards": np.ones(len(obs)), "episode_starts": starts,
            "episode_returns": np.ones(starts.sum())}  # fmt: skip
    return ExpertDataset(traj_data=data, verbose=0, **settings)


def test_a_discrete_expert_is_imitated(capsys: pytest.CaptureFixture[str]) -> None:
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    actions = (obs[:, 2:3] > 0).astype(np.int64)
    model = small_model(verbose=1).learn(BATCH)
    critic = model.get_parameters()["model/vf/w:0"]
    capsys.readouterr()
    epochs: Any = np.int64(20)
    assert model.pretrain(demonstrations(obs, actions), n_epochs=epochs, learning_rate=3e-2) is model
    printed = capsys.readouterr().out
    assert printed.count("Training loss: ") == 10 and "Epoch 20\n" in printed
    chosen, _ = model.predict(obs, deterministic=True)
    assert (chosen == actions[:, 0]).mean() > 0.9
    np.testing.assert_array_equal(model.get_parameters()["model/vf/w:0"], critic)
    before = model.get_parameters()["model/pi/w:0"]
    model.learning_rate = 1e-9
    model.learn(BATCH)  # continues from the cloned weights
    np.testing.assert_allclose(model.get_parameters()["model/pi/w:0"], before, atol=1e-6)
    assert isinstance(model, ActorCriticRLModel) and isinstance(model, BaseRLModel)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3, start=2)], ids=str)
def test_the_first_step_is_adams(space: Any) -> None:
    """One minibatch: the loss in torch, written down here, and Adam's first step, whose size is the learning rate."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(100, 4)).astype(np.float32)
    actions = rng.normal(size=(100, 2)) * 3 if isinstance(space, spaces.Box) else rng.integers(2, 5, (100, 1))
    env = DummyVecEnv([lambda: Picking(space, spaces.Box(-9, 300, (4,)))] * 2)
    model = small_model(env=env, policy_kwargs={"layers": [6]})
    before = model.get_parameters()
    dataset = demonstrations(obs, actions, batch_size=100, train_fraction=0.99)
    rows = dataset.train_loader.indices.copy()
    model.pretrain(dataset, n_epochs=1, learning_rate=1e-2, adam_epsilon=1e-12)
    names = ["pi_fc0/w", "pi_fc0/b", "pi/w", "pi/b"]
    w, b, w2, b2 = (torch.tensor(before[f"model/{name}:0"], requires_grad=True) for name in names)
    out = torch.tanh(torch.tensor(obs[rows]) @ w + b) @ w2 + b2
    if isinstance(space, spaces.Box):
        loss = ((out - torch.tensor(actions[rows])) ** 2).mean()
    else:
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(actions[rows, 0] - 2))
    loss.backward()  # type: ignore[no-untyped-call]
    after = model.get_parameters()
    for name, weight in zip(names, (w, b, w2, b2), strict=True):
        wanted = weight.detach() - 1e-2 * torch.sign(weight.grad)  # type: ignore[arg-type]
        np.testing.assert_allclose(after[f"model/{name}:0"], wanted.numpy(), atol=1e-5, err_msg=name)


def test_what_cannot_be_cloned_is_refused() -> None:
    dataset = demonstrations(np.zeros((50, 4), np.float32), np.zeros((50, 1), np.int64))
    with pytest.raises(ValueError, match="policy: must not be recurrent for pretrain"):
        small_model("MlpLstmPolicy", policy_kwargs={"n_lstm": 4}).pretrain(dataset)
    env = DummyVecEnv([lambda: Picking(spaces.MultiBinary(2), spaces.Box(-9, 300, (4,)))] * 2)
    with pytest.raises(ValueError, match="action space: must be a Box or Discrete for pretrain"):
        small_model(env=env).pretrain(dataset)
    with pytest.raises(ValueError, match="n_epochs: must be a positive integer"):
        small_model().pretrain(dataset, n_epochs=0)
