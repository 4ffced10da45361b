"""Policies of stable-baselines in float64 NumPy, from its parameters by name; no code of Minerva."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, Array]


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Array:
        scale = 1 / np.sqrt(np.prod(shape[:-1])) if len(shape) in (2, 4) and shape[0] > 1 else 0.3
        return rng.normal(scale=scale, size=shape).astype(np.float32)

    return {name: draw(shape) for name, shape in shapes.items()}


def run(
    weights: Weights, obs: Array, state: Array | None, mask: Array, act_fun: str = "tanh"
) -> tuple[Array, Array, Array | None]:
    """Return action probabilities of Discrete actions, values, and the recurrent state."""

    def act(x: Array) -> Array:
        return np.maximum(x, 0) if act_fun == "relu" else np.tanh(x)

    w = {name[len("model/") : -len(":0")]: array.astype(np.float64) for name, array in weights.items()}

    def linear(x: Array, name: str) -> Array:
        return x @ w[f"{name}/w"] + w[f"{name}/b"]

    def layers(x: Array, names: list[str]) -> Array:
        for name in names:
            x = act(linear(x, name))
        return x

    def those(prefix: str) -> list[str]:
        return sorted(name[:-2] for name in w if name.startswith(prefix) and name.endswith("/w"))

    if "c1/w" in w:
        x = obs / 255.0
        for i, stride in ((1, 4), (2, 2), (3, 1)):
            x = np.maximum(convolution(x, w[f"c{i}/w"], stride) + w[f"c{i}/b"].reshape(-1), 0)
        features = np.maximum(linear(x.reshape(len(x), -1), "fc1"), 0)
    else:
        features = obs.reshape(len(obs), -1).astype(np.float64)
    if "lstm1/wx" not in w:
        features = layers(features, those("shared_fc"))
        latent, critic = layers(features, those("pi_fc")), layers(features, those("vf_fc"))
    else:
        order = list(w)
        core = order.index("lstm1/wx")
        before = [name for name in those("pi_fc") + those("shared_fc") if order.index(f"{name}/w") < core]
        latent, state = lstm(w, layers(features, before), state, mask)
        latent = layers(latent, [name for name in those("shared_fc") if name not in before])
        critic = layers(latent, those("vf_fc"))
        latent = layers(latent, [name for name in those("pi_fc") if name not in before])
    logits = linear(latent, "pi")
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True), linear(critic, "vf")[:, 0], state


def convolution(x: Array, kernel: Array, stride: int) -> Array:
    """Slide ``[h, w, in, out]`` over ``[N, H, W, in]`` without padding."""
    height, width = kernel.shape[:2]
    rows = [
        [np.tensordot(x[:, i : i + height, j : j + width], kernel, 3) for j in range(0, x.shape[2] - width + 1, stride)]
        for i in range(0, x.shape[1] - height + 1, stride)
    ]
    return np.stack([np.stack(row, 1) for row in rows], 1)


def lstm(w: Weights, x: Array, state: Array | None, mask: Array) -> tuple[Array, Array]:
    """Take one step; the state is the cell state and the output, side by side."""

    def normalized(z: Array, which: str) -> Array:
        if f"lstm1/g{which}" not in w:
            return z
        z = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
        return z * w[f"lstm1/g{which}"] + w[f"lstm1/b{which}"]

    units = len(w["lstm1/wh"])
    state = np.zeros((len(x), 2 * units)) if state is None else state
    cell, hidden = np.split(state * (1 - mask[:, None]), 2, axis=1)
    gates = normalized(x @ w["lstm1/wx"], "x") + normalized(hidden @ w["lstm1/wh"], "h") + w["lstm1/b"]
    into, forget, out, candidate = np.split(gates, 4, axis=1)

    def sigmoid(z: Array) -> Array:
        return 1 / (1 + np.exp(-z))

    cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(candidate)
    hidden = sigmoid(out) * np.tanh(normalized(cell, "c"))
    return hidden, np.concatenate([cell, hidden], axis=1)
