"""The comparisons, and the contenders of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.peers.contest import Comparison, Contender
from benchmarks.peers.problems import PROBLEMS

HERE = "benchmarks.peers"


def minerva(problem: str, suffix: str, settings: str, **fields: Any) -> Contender:
    name = "Minerva" + suffix
    return Contender(name, f"{HERE}.contenders:minerva", settings, {"problem": problem, **fields}, ours=True)


def peer(name: str, function: str, settings: str, *packages: str, **fields: Any) -> Contender:
    return Contender(name, f"{HERE}.{function}", settings, fields, packages)


def in_both_ways(*peers: Contender) -> list[Contender]:
    """Add a second row for peers on PyTorch: one thread instead of one per core, which is faster for small networks."""
    one = [
        replace(peer, name=f"{peer.name}, one thread", settings=f"{peer.settings}; OMP_NUM_THREADS=1", threads=1)
        for peer in peers
    ]
    return [*peers, *one]


def stable_baselines3(problem: str, normalize: bool) -> Contender:
    name = "stable-baselines3" + " with VecNormalize" * normalize
    settings = f"PPO on a DummyVecEnv, {'VecNormalize' if normalize else 'nothing is normalized'}, values not clipped"
    package = "stable_baselines3"
    return peer(name, "contenders:stable_baselines3", settings, package, problem=problem, normalize=normalize)


def cleanrl_style(problem: str) -> Contender:
    settings = "own script with the structure of CleanRL's, eager; SyncVectorEnv, each environment wrapped by itself"
    return peer("CleanRL-style", "cleanrl_style:ppo", settings, problem=problem)


def leanrl_style(problem: str) -> tuple[Contender, Contender]:
    published = (
        "own script with the structure of LeanRL's: SyncVectorEnv, each environment wrapped by itself; rollout and "
        "minibatches as TensorDicts; policy and gradient step compiled, the backward pass outside the graph; "
        "advantages by NumPy in place of a compiled loop that takes minutes to unroll"
    )
    trimmed = (
        "leaner than what LeanRL publishes, and so the stronger opponent: no TensorDicts, nothing computed for a log, "
        "gradient step compiled with its backward pass inside the graph, acting compiled or eager, whichever a trial "
        "at the start finds faster"
    )
    function = "leanrl_style:ppo"
    return (
        peer("LeanRL-style", function, published, "tensordict", problem=problem),
        peer("LeanRL-style, trimmed", function, trimmed, problem=problem, trimmed=True),
    )


def ppo_1() -> Comparison:
    name = "ppo-1"
    tianshou = "DummyVectorEnv, VectorEnvNormObs, returns scaled in place of rewards"
    torchrl = (
        "GymEnv, VecNorm of observations, rewards not normalized; Collector, GAE, ClipPPOLoss, and a replay buffer "
        "without replacement"
    )
    peers = in_both_ways(
        stable_baselines3(name, True),
        stable_baselines3(name, False),
        cleanrl_style(name),
        *leanrl_style(name),
        peer("Tianshou", "tianshou_ppo:ppo", tianshou, "tianshou", problem=name),
        peer("TorchRL", "torchrl_ppo:ppo", torchrl, "torchrl", problem=name),
    )
    ours = (
        minerva(name, "", "compile=True; Gymnasium", compiled=True),
        minerva(name, ", not compiled", "compile=False; Gymnasium", compiled=False),
    )
    return ppo_comparison(name, 12_288, *ours, *peers)


def ppo_8() -> Comparison:
    name = "ppo-8"
    pooled = "own script with the structure of CleanRL's, eager; EnvPool, all environments wrapped together"
    peers = in_both_ways(
        stable_baselines3(name, True),
        stable_baselines3(name, False),
        cleanrl_style(name),
        peer("CleanRL-style on EnvPool", "cleanrl_style:ppo", pooled, "envpool", problem=name, pool=True),
        *leanrl_style(name),
    )
    ours = (
        minerva(name, " on EnvPool", 'compile=True, backend="envpool"', compiled=True, backend="envpool"),
        minerva(name, " on Gymnasium", 'compile=True, backend="gymnasium"', compiled=True),
        minerva(name, " on Gymnasium, not compiled", 'compile=False, backend="gymnasium"', compiled=False),
    )
    return ppo_comparison(name, 20_480, *ours, *peers)


def cartpole_8() -> Comparison:
    name = "cartpole-8"
    ours = (
        minerva(name, " on EnvPool", 'compile=True, backend="envpool"', compiled=True, backend="envpool"),
        minerva(name, " on Gymnasium", 'compile=True, backend="gymnasium"', compiled=True),
    )
    return ppo_comparison(name, 40_960, *ours, *in_both_ways(stable_baselines3(name, False), cleanrl_style(name)))


def recurrent_cartpole_8() -> Comparison:
    name = "recurrent-cartpole-8"
    ours = "lstm_units=64: the layers, then an LSTM; policy and critic each their own"
    theirs = "RecurrentPPO, MlpLstmPolicy: an LSTM of 64 units, then the layers; policy and critic each their own"
    contrib = peer("sb3-contrib", "contenders:sb3_contrib", theirs, "sb3_contrib", problem=name, lstm_units=64)
    return ppo_comparison(name, 20_480, minerva(name, "", ours, lstm_units=64), *in_both_ways(contrib))


def pool_64() -> Comparison:
    name = "pool-64"
    alone = "only the steps of EnvPool, same number of threads, actions drawn before; Minerva at 1.0 would be as fast"
    return ppo_comparison(
        name,
        81_920,
        minerva(name, "", 'whole training: compile=True, backend="envpool"', compiled=True, backend="envpool"),
        peer("EnvPool alone", "contenders:envpool_alone", alone, "envpool", problem=name),
    )


def ppo_comparison(name: str, steps: int, *contenders: Contender) -> Comparison:
    problem = PROBLEMS[name]
    normalized = "observations and rewards normalized" if problem.normalize else "nothing normalized"
    return Comparison(name, f"PPO, {problem}, {normalized} unless a contender says otherwise", contenders, steps)


def mpo_update(size: str) -> Comparison:
    def ours(suffix: str, settings: str, **fields: Any) -> Contender:
        return Contender("Minerva" + suffix, f"{HERE}.mpo_peers:minerva", settings, {"size": size, **fields}, ours=True)

    def jax(shared: bool, cores: int | None) -> Contender:
        where = ", one core" * (cores == 1)
        settings = f"the same computation as Minerva's, {one_pass if shared else two_passes}{where}"
        name = "jax.jit" + ", shared pass" * shared + where
        return peer(name, "mpo_jax:measure", settings, "jax", size=size, shared=shared, cores=cores)

    one_pass = "one pass of the target critic, at the next states, for TD target and E-step"
    two_passes = "TD target and E-step with separate actions, evaluated in one call of the target critic"
    tonic = "written as Tonic's: a forward pass for each need, torch.distributions, torch.optim, eager"
    contenders = (
        ours(", plain eager", f"{two_passes}; all rows at once", compiled=False, in_pieces=False),
        ours(", eager", two_passes, compiled=False),
        ours(", compiled", two_passes, compiled=True),
        ours(", compiled, shared pass", one_pass, compiled=True, shared_critic_pass=True),
        *in_both_ways(peer("plain PyTorch", "mpo_peers:plain", tonic, size=size)),
        *(jax(shared, cores) for shared in (False, True) for cores in (None, 1)),
    )
    settings = f"MPO, HalfCheetah-v5's sizes, batch 256, 20 action samples, {size} networks; the median update"
    return Comparison(f"mpo-update-{size}", settings, contenders, 200, "updates/s")


COMPARISONS = (
    ppo_1(), ppo_8(), cartpole_8(), recurrent_cartpole_8(), pool_64(), mpo_update("small"), mpo_update("large"),
)  # fmt: skip


def chosen(names: list[str] | None) -> list[Comparison]:
    """Return the comparisons with these names; a prefix up to a hyphen selects all that start with it ("mpo-update").

    Raises:
        ValueError: A name matches no comparison.
    """
    if not names:
        return list(COMPARISONS)
    found = []
    for name in names:
        of_name = [c for c in COMPARISONS if c.name == name or c.name.startswith(f"{name}-")]
        if not of_name:
            known = ", ".join(comparison.name for comparison in COMPARISONS)
            raise ValueError(f"--only: must be among {known}; got {name}.")
        found += [comparison for comparison in of_name if comparison not in found]
    return found
