"""The MPO update as one function compiled by `jax.jit`: the same computation as Minerva's, on the same vectors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.mpo_peers import ACT_DIM, OBS_DIM, updates_per_second
from benchmarks.updates import BATCH, SAMPLES, SIZES
from minerva.networks.duals import EPSILON, MINIMUM
from minerva.trainers.mpo.config import MPOConfig


class State(NamedTuple):
    """Everything that an update changes, as vectors in the order of torch's parameters."""

    policy: Any
    policy_target: Any
    q: Any
    q_target: Any
    duals: Any
    policy_moments: Any
    q_moments: Any
    duals_moments: Any
    updates: Any


def measure(updates: int, size: str, shared: bool, cores: int | None = None) -> float:
    """Measure updates per second, including drawing the noise; on the given number of cores, or on all."""
    if cores is not None:  # XLA has no such setting; it counts the cores that it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import jax

    sizes = SIZES[size]
    policy, q = sizes["policy_layer_sizes"], sizes["critic_layer_sizes"]
    update = make_update(policy, q, ACT_DIM, MPOConfig(shared_critic_pass=shared))
    rng = np.random.default_rng(0)
    rows = [rng.random((BATCH, *shape), np.float32) for shape in ((OBS_DIM,), (ACT_DIM,), (), (), (OBS_DIM,))]
    batch = jax.device_put(tuple(rows))
    noise_shape = (BATCH if shared else 2 * BATCH, SAMPLES, ACT_DIM)

    def step(state: State, key: Any, batch: Any) -> tuple[State, Any]:
        key, now = jax.random.split(key)
        return update(state, batch, jax.random.normal(now, noise_shape)), key

    compiled = jax.jit(step, donate_argnums=0)
    held = [jax.device_put(first_state(rng, policy, q)), jax.random.key(0)]

    def call() -> None:
        held[:] = compiled(*held, batch)
        jax.block_until_ready(held[0])

    return updates_per_second(call, updates)


def shapes_of(inputs: int, sizes: tuple[int, ...], heads: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a network's parameters: torso with layer normalization, then linear heads."""
    for k, units in enumerate(sizes):
        yield from ((units, inputs), (units,))
        if k == 0:
            yield from ((units,), (units,))
        inputs = units
    for outputs in heads:
        yield from ((outputs, inputs), (outputs,))


def first_state(rng: np.random.Generator, policy_sizes: tuple[int, ...], q_sizes: tuple[int, ...]) -> State:
    """Draw small weights; the target networks start equal to the networks."""

    def vector(inputs: int, sizes: tuple[int, ...], heads: tuple[int, ...]) -> Any:
        parts = [rng.normal(0, 0.05, shape) for shape in shapes_of(inputs, sizes, heads)]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    policy = vector(OBS_DIM, policy_sizes, (ACT_DIM, ACT_DIM))
    q = vector(OBS_DIM + ACT_DIM, q_sizes, (1,))
    c = MPOConfig()
    duals = np.array(
        [c.temperature_init] + ACT_DIM * [c.init_log_alpha_mean] + ACT_DIM * [c.init_log_alpha_stddev]
        + [c.temperature_init], np.float32,
    )  # fmt: skip
    moments = [np.zeros((2, len(part)), np.float32) for part in (policy, q, duals)]
    return State._make([policy, policy.copy(), q, q.copy(), duals, *moments, np.zeros(1, np.float32)])


def make_update(
    policy_sizes: tuple[int, ...], q_sizes: tuple[int, ...], act_dim: int, c: MPOConfig
) -> Callable[[State, Any, Any], State]:
    """Make the update, a function of state, batch and noise.

    The noise is ``[B, S, A]`` with `shared_critic_pass`; otherwise ``[2 B, S, A]``, the noise of the E-step first.
    """
    import jax
    import jax.numpy as jnp

    def forward(vector: Any, x: Any, sizes: tuple[int, ...], heads: tuple[int, ...]) -> list[Any]:
        parts, start = [], 0
        for shape in shapes_of(x.shape[-1], sizes, heads):
            parts.append(vector[start : start + math.prod(shape)].reshape(shape))
            start += math.prod(shape)
        weights, bias, gain, shift, *rest = parts
        x = x @ weights.T + bias
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        x = jnp.tanh(x * gain + shift)
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        for weights, bias in pairs[: -len(heads)]:
            x = jax.nn.elu(x @ weights.T + bias)
        return [x @ weights.T + bias for weights, bias in pairs[-len(heads) :]]

    def policy(vector: Any, obs: Any) -> tuple[Any, Any]:
        mean, log_std = forward(vector, obs, policy_sizes, (act_dim, act_dim))
        return mean, jnp.clip(log_std, -20.0, 2.0)

    def q_value(vector: Any, obs: Any, actions: Any) -> Any:
        return forward(vector, jnp.concatenate([obs, jnp.clip(actions, -1, 1)], -1), q_sizes, (1,))[0][..., 0]

    def multipliers(vector: Any) -> tuple[Any, Any, Any]:
        positive = jax.nn.softplus(vector) + EPSILON
        return positive[0], positive[1 : act_dim + 1], positive[act_dim + 1 : 2 * act_dim + 1]

    def adam(vector: Any, moments: Any, gradient: Any, count: Any, rate: float) -> tuple[Any, Any]:
        gradient = gradient * jnp.minimum(1.0, c.max_grad_norm / (jnp.linalg.norm(gradient) + 1e-6))
        average = 0.9 * moments[0] + 0.1 * gradient
        square = 0.999 * moments[1] + 0.001 * gradient * gradient
        first, second = 1 - 0.9 ** (count + 1), 1 - 0.999 ** (count + 1)
        direction = (average / first) / (jnp.sqrt(square / second) + 1e-5)
        return vector - rate * direction, jnp.stack([average, square])

    def log_prob(mean: Any, log_std: Any, actions: Any) -> Any:
        scaled = (actions - mean) * jnp.exp(-log_std)
        return (-0.5 * scaled * scaled - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def divergences(mean: Any, log_std: Any, old_mean: Any, old_log_std: Any) -> tuple[Any, Any]:
        of_means = 0.5 * jnp.square((mean - old_mean) * jnp.exp(-old_log_std))
        of_stds = log_std - old_log_std + 0.5 * jnp.exp(2 * (old_log_std - log_std)) - 0.5
        return of_means.mean(0), of_stds.mean(0)

    def update(state: State, batch: Any, noise: Any) -> State:
        obs, actions, rewards, discounts, next_obs = batch
        count, rows = state.updates, len(obs)
        due = count % c.target_networks_update_period == 0
        policy_target = jnp.where(due, state.policy, state.policy_target)
        q_target = jnp.where(due, state.q, state.q_target)
        visited = next_obs if c.shared_critic_pass else jnp.concatenate([obs, next_obs])
        states = next_obs if c.shared_critic_pass else obs
        old_mean, old_log_std = policy(policy_target, visited)
        sampled = old_mean[:, None] + jnp.exp(old_log_std)[:, None] * noise
        repeated = jnp.broadcast_to(visited[:, None], (*sampled.shape[:2], visited.shape[-1]))
        values = q_value(q_target, repeated, sampled)
        targets = rewards + discounts * values[-rows:].mean(-1)
        old_mean, old_log_std, sampled, values = (x[:rows] for x in (old_mean, old_log_std, sampled, values))

        q_gradient = jax.grad(lambda vector: jnp.square(q_value(vector, obs, actions) - targets).mean())(state.q)
        q, q_moments = adam(state.q, state.q_moments, q_gradient, count, c.q_lr)

        kl_mean, kl_std = divergences(*policy(state.policy, states), old_mean, old_log_std)
        weights = jax.nn.softmax(values / multipliers(state.duals)[0], -1)

        def dual_loss(vector: Any) -> Any:
            eta, alpha_mean, alpha_std = multipliers(vector)
            spread = jax.nn.logsumexp(values / eta, -1) - math.log(values.shape[-1])
            bounds = alpha_mean * (c.mstep_kl_epsilon - kl_mean) + alpha_std * (c.epsilon_stddev - kl_std)
            return (eta * (c.kl_epsilon + spread)).mean() + bounds.sum()

        dual_gradient = jax.grad(dual_loss)(state.duals)
        duals, duals_moments = adam(state.duals, state.duals_moments, dual_gradient, count, c.lambda_lr)
        duals = jnp.maximum(duals, MINIMUM)
        _, alpha_mean, alpha_std = multipliers(duals)

        def policy_loss(vector: Any) -> Any:
            mean, log_std = policy(vector, states)
            moved = log_prob(mean[:, None], old_log_std[:, None], sampled)
            widened = log_prob(old_mean[:, None], log_std[:, None], sampled)
            kl_mean, kl_std = divergences(mean, log_std, old_mean, old_log_std)
            return -(weights * (moved + widened)).sum(-1).mean() + (alpha_mean * kl_mean + alpha_std * kl_std).sum()

        gradient = jax.grad(policy_loss)(state.policy)
        new_policy, policy_moments = adam(state.policy, state.policy_moments, gradient, count, c.policy_lr)
        return State(
            new_policy, policy_target, q, q_target, duals, policy_moments, q_moments, duals_moments, count + 1
        )  # fmt: skip

    return update
