from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.peers import cleanrl_style
from benchmarks.peers.cleanrl_style import gymnasium_envs
from benchmarks.peers.comparisons import chosen
from benchmarks.peers.leanrl_style import FIGURES, Published, Training, Trimmed
from benchmarks.peers.problems import Problem

# Episodes of a few steps each, and a policy that learns fast enough to be clipped.
SMALL = Problem("InvertedPendulum-v5", 2, 32, 16, 3, normalize=True, layers=(8, 8), learning_rate=0.02)


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    # The trimmed training sets this for its process, which here is that of other tests too.
    with torch._dynamo.config.patch(trace_autograd_ops=False), torch.compiler.set_stance("force_eager"):
        yield


def published() -> Published:
    """Make the published training without what is made of TensorDicts."""
    training = Published.__new__(Published)
    Training.__init__(training, SMALL, gymnasium_envs(SMALL, flatten=True))
    return training


def minibatch() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> Tensor:
        return torch.randn(16, *size, generator=generator)

    actions = draw(1)
    # About those of a standard normal, where an untrained policy starts: some ratios are clipped, and others are not.
    log_probs = -0.5 * actions[:, 0] ** 2 - 0.92 + 0.2 * draw()
    return [draw(4), actions, log_probs, draw(), draw(), draw()]


@pytest.mark.parametrize("name", ["LeanRL-style", "LeanRL-style, trimmed"])
@pytest.mark.parametrize("comparison", ["ppo-1", "ppo-8"])
def test_both_take_part_in_both_ways(comparison: str, name: str) -> None:
    (found,) = chosen([comparison])
    rows = {contender.name: contender for contender in found.contenders}
    trimmed = name.endswith("trimmed")
    for row, threads in ((rows[name], None), (rows[f"{name}, one thread"], 1)):
        assert (row.threads, row.packages) == (threads, () if trimmed else ("tensordict",))
        assert row.fields == {"problem": comparison, **({"trimmed": True} if trimmed else {})}
    assert ("leaner than what LeanRL publishes" in rows[name].settings) == trimmed


@pytest.mark.parametrize("make", [published, lambda: Trimmed(SMALL, gymnasium_envs(SMALL))])
def test_gradient_steps_are_those_of_cleanrl_style(make: Any) -> None:
    ours, theirs = make(), cleanrl_style.Training(SMALL, gymnasium_envs(SMALL))
    theirs.agent.load_state_dict(ours.agent.state_dict())
    theirs.optimizer.param_groups[0]["lr"] = 0.01
    ours.rate.fill_(0.01)
    shares = []
    for _ in range(5):
        shares.append(theirs.gradient_step(*minibatch()))
        ours.gradient_step(*minibatch())
    assert 0 < shares[-1] < 1
    for mine, other in zip(ours.agent.parameters(), theirs.agent.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_figures_of_a_published_gradient_step() -> None:
    training = published()
    obs, actions, *others = minibatch()
    with torch.no_grad():
        _, log_probs, entropies, _ = training.agent.evaluate(obs, actions)
    log_ratio = torch.linspace(-0.3, 0.45, 16)
    figures = training.gradient_step(obs, actions, log_probs - log_ratio, *others[1:])
    found = dict(zip(FIGURES, figures, strict=True))
    assert found["kl"].item() == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item(), abs=1e-6)
    assert found["first_order_kl"].item() == pytest.approx(-0.075, abs=1e-6)
    # Ratios beyond 0.8 and 1.2, whose logarithms are -0.223 and 0.182: two steps of 0.05 below and six above.
    assert found["clipped_share"].item() == 0.5
    assert found["entropy"].item() == pytest.approx(entropies.mean().item())
    assert found["gradient_norm"] > 0 and not any(figure.requires_grad for figure in figures)


def test_advantages_are_those_of_cleanrl_style() -> None:
    generator, size = np.random.default_rng(1), (SMALL.rollout_steps, SMALL.num_envs)
    values = generator.normal(size=(size[0] + 1, size[1])).astype(np.float32)
    endings = generator.random(values.shape) < 0.2
    rewards = generator.normal(size=size)
    theirs = cleanrl_style.Training(SMALL, gymnasium_envs(SMALL))
    theirs.rewards, theirs.values = torch.tensor(rewards, dtype=torch.float32), torch.from_numpy(values[:-1])
    theirs.endings, theirs.ended = (torch.tensor(part, dtype=torch.float32) for part in (endings[:-1], endings[-1]))
    with torch.no_grad():
        values[-1] = theirs.agent.value(theirs.obs)
    expected, _ = theirs.advantages()
    np.testing.assert_allclose(published().advantages(values, rewards, endings), expected, rtol=1e-4, atol=1e-5)


def test_both_learn_the_same() -> None:
    def trained(kind: type[Published] | type[Trimmed], envs: Any) -> Any:
        envs.reset(seed=1)
        torch.manual_seed(1)
        training = kind(SMALL, envs)
        torch.manual_seed(2)  # trials before the first step have drawn too
        training.train(2)
        return training

    whole, trimmed = trained(Published, gymnasium_envs(SMALL, flatten=True)), trained(Trimmed, gymnasium_envs(SMALL))
    assert len(whole.episode_returns) > 5 and min(whole.episode_returns) >= 1
    untouched = Trimmed(SMALL, gymnasium_envs(SMALL)).agent.log_std
    assert (trimmed.agent.log_std - untouched).abs().max() > 0.01
    torch.testing.assert_close(whole.obs, trimmed.obs, rtol=1e-3, atol=1e-3)
    for mine, other in zip(whole.agent.parameters(), trimmed.agent.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
