"""Spaces: flatten observations to rows, convert actions, and describe spaces with plain values for checkpoints."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from minerva.environments.checks import WrongValueError, described

Writer = Callable[[Any, NDArray[Any]], None]


def flat_size(space: Space[Any]) -> int:
    """Return the length of a flattened observation of this space.

    Raises:
        ValueError: The space has no fixed length (Graph, Sequence) or no numbers (Text).
    """
    if not _is_supported(space):
        raise ValueError(
            f"observation space: must flatten to a vector of numbers of fixed length, got {space}; wrap the "
            "environment so that it returns a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
        )
    return int(spaces.flatdim(space))


def row_dtype(space: Space[Any]) -> np.dtype[Any]:
    """Return the dtype of a flattened observation: uint8 for images (a uint8 Box of two or three axes), or float32."""
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
    return np.dtype(np.uint8 if image else np.float32)


def category_counts(space: Space[Any]) -> tuple[int, ...]:
    """Return the number of categories of each entry of a discrete action (empty for any other space)."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.flat)
    return ()


def action_converter(space: Space[Any]) -> Callable[[NDArray[np.float32]], NDArray[Any]]:
    """Return a function that converts stored actions ``[n, A]`` to actions of n environments.

    It always copies: an environment may write into its action, and the caller keeps a history of actions.
    """
    shape, dtype = tuple(space.shape or ()), space.dtype
    start = space.start if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) else 0
    if np.any(start):
        return lambda actions: actions.astype(dtype).reshape(len(actions), *shape) + np.asarray(start, dtype)
    return lambda actions: actions.astype(dtype).reshape(len(actions), *shape)


def _is_supported(space: Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return all(_is_supported(child) for child in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return all(_is_supported(child) for child in space.spaces)
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def flat_writer(space: Space[Any], name: str = "observation") -> Writer:
    """Return a function that checks an observation of `space` and writes it into a row.

    The result equals `gymnasium.spaces.flatten`, without intermediate arrays, because it runs at every step. The
    function raises a `WrongValueError` for an observation of another shape or type; bounds of a Box are not checked.

    Args:
        space: The space.
        name: What the observation is called in an error.

    Raises:
        ValueError: The space is not supported (see `flat_size`).
    """
    flat_size(space)
    if isinstance(space, spaces.Box):
        return _byte_writer(space, name) if row_dtype(space) == np.uint8 else _number_writer(space, name)
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _parts_writer(space, name)
    if isinstance(space, spaces.MultiBinary):
        return _binary_writer(space, name)
    assert isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    return _category_writer(space, name)


def _number_writer(space: Space[Any], name: str) -> Writer:
    shape, dtype, flat = tuple(space.shape or ()), space.dtype, len(space.shape or ()) == 1

    def write(observation: Any, row: NDArray[Any]) -> None:
        values = observation if observation.__class__ is np.ndarray else _as_array(observation, space, name)
        # NumPy has one object per type: to compare it takes less time than to look at its kind.
        if values.shape != shape or (values.dtype is not dtype and values.dtype.kind not in "fiub"):
            raise _wrong(observation, space, name)
        row[:] = values if flat else values.reshape(-1)

    return write


def _byte_writer(space: Space[Any], name: str) -> Writer:
    shape = tuple(space.shape or ())

    def write(observation: Any, row: NDArray[Any]) -> None:
        values = _as_array(observation, space, name)
        if values.shape != shape or (values.dtype != np.uint8 and not _are_bytes(values)):
            raise _wrong(observation, space, name)
        row[:] = values.reshape(-1)

    return write


def _are_bytes(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iub" and values.min() >= 0 and values.max() <= 255


def _category_writer(space: spaces.Discrete | spaces.MultiDiscrete, name: str) -> Writer:
    shape, counts = tuple(space.shape or ()), np.array(category_counts(space))
    start, places = np.ravel(space.start), np.cumsum(counts) - counts

    def write(observation: Any, row: NDArray[Any]) -> None:
        values = _as_array(observation, space, name)
        if values.shape != shape or values.dtype.kind not in "iub":
            raise _wrong(observation, space, name)
        categories = values.reshape(-1).astype(np.int64) - start
        if ((categories < 0) | (categories >= counts)).any():
            raise _wrong(observation, space, name)
        row[:] = 0
        row[places + categories] = 1

    return write


def _binary_writer(space: Space[Any], name: str) -> Writer:
    shape = tuple(space.shape or ())

    def write(observation: Any, row: NDArray[Any]) -> None:
        values = _as_array(observation, space, name)
        if values.shape != shape or values.dtype.kind not in "fiub" or not ((values == 0) | (values == 1)).all():
            raise _wrong(observation, space, name)
        row[:] = values.reshape(-1)

    return write


def _parts_writer(space: Space[Any], name: str) -> Writer:
    assert isinstance(space, (spaces.Dict, spaces.Tuple))
    children: list[tuple[Any, Space[Any]]] = (
        list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
    )
    kinds: Any = Mapping if isinstance(space, spaces.Dict) else (tuple, list)
    keys = [key for key, _ in children]
    parts: list[tuple[Any, slice, Writer]] = []
    start = 0
    for key, child in children:
        stop = start + flat_size(child)
        parts.append((key, slice(start, stop), flat_writer(child, f"{name}[{key!r}]")))
        start = stop

    def write(observation: Any, row: NDArray[Any]) -> None:
        if not isinstance(observation, kinds) or len(observation) != len(parts):
            raise _wrong_parts(observation, kinds, keys, name)
        for key, where, write_part in parts:
            try:
                part = observation[key]
            except KeyError as error:
                raise _wrong_parts(observation, kinds, keys, name) from error
            write_part(part, row[where])

    return write


def _as_array(observation: Any, space: Space[Any], name: str) -> NDArray[Any]:
    try:
        return np.asarray(observation)
    except Exception as error:  # nested lists of different lengths, a tensor that needs a gradient
        raise _wrong(observation, space, name) from error


def _wrong(observation: Any, space: Space[Any], name: str) -> WrongValueError:
    wanted = f"shape {tuple(space.shape or ())} and type {space.dtype}"
    if not isinstance(space, spaces.Box):
        wanted += f", in {space}"
    return WrongValueError(f"the {name} must be of {wanted}, got {described(observation)}")


def _wrong_parts(observation: Any, kinds: Any, keys: list[Any], name: str) -> WrongValueError:
    kind = "dict" if kinds is Mapping else "tuple"
    return WrongValueError(f"the {name} must be a {kind} with {keys}, got {described(observation)}")


def rows_of(space: Space[Any], obs: Any, name: str = "observation") -> tuple[NDArray[np.float32], bool]:
    """Flatten one observation of an environment, or a batch of them, to rows ``[B, O]``.

    Returns:
        Rows ``[B, O]``, and whether `obs` was a single observation.

    Raises:
        ValueError: `obs` is not an observation of the space.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space.spaces)))
        kinds = Mapping if isinstance(space, spaces.Dict) else (tuple, list)
        if not isinstance(obs, kinds) or (set(obs) != set(keys) if isinstance(obs, Mapping) else len(obs) != len(keys)):
            raise ValueError(f"{name}: must be a {type(space).__name__.lower()} with {keys}, got {_describe(obs)}.")
        parts = [rows_of(space[key], obs[key], f"{name}[{key!r}]") for key in keys]
        if len({(len(rows), single) for rows, single in parts}) != 1:
            raise ValueError(
                f"{name}: its parts must be batches of the same size, got sizes {[len(rows) for rows, _ in parts]}."
            )
        return np.concatenate([rows for rows, _ in parts], axis=1), parts[0][1]
    values, shape = _as_numbers(obs, name), tuple(space.shape or ())
    single = values.shape == shape
    if not single and (values.ndim != len(shape) + 1 or values.shape[1:] != shape):
        expected = ", ".join(str(size) for size in shape)
        raise ValueError(
            f"{name}: must have the shape ({expected}), or (B{', ' * bool(shape)}{expected}) for a batch; "
            f"got {_describe(obs)}."
        )
    values = values[None] if single else values
    if isinstance(space, spaces.Box):
        if space.dtype.kind != "f":
            _check_whole(values, space.dtype, name)
        with np.errstate(over="ignore"):  # the check below finds what is too large for float32
            rows = values.reshape(len(values), -1).astype(np.float32)
        # A sum of squares is finite only if all its terms are. If it only overflows, the search finds nothing.
        if values.dtype.kind == "f" and not math.isfinite(np.vdot(rows, rows)):
            wrong = np.flatnonzero(~np.isfinite(rows))
            if wrong.size:
                where = int(wrong[0]) % rows.shape[1]
                raise ValueError(
                    f"{name}: must hold finite numbers, got {rows.flat[wrong[0]]} at position {where}; replace it, "
                    "or do not act on this observation."
                )
        return rows, single
    _check_members(space, values, name)
    rows = np.zeros((len(values), flat_size(space)), dtype=np.float32)
    write = flat_writer(space)
    for value, row in zip(values, rows, strict=True):
        write(value, row)
    return rows, single


def _as_numbers(value: Any, name: str) -> NDArray[Any]:
    try:
        values = np.asarray(value)
    except Exception as error:  # whatever the conversion of a foreign object leads to
        raise ValueError(f"{name}: must be an array of numbers, got {_describe(value)} that is none.") from error
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{name}: must hold numbers, got {_describe(value)} of {values.dtype}; convert it to numbers.")
    return values


def mask_rows(mask: Any) -> NDArray[np.float32]:
    """Convert an action mask, or a batch of them, to rows ``[B, K]`` of zeros and ones.

    Raises:
        ValueError: It holds anything else.
    """
    values = np.atleast_2d(_as_numbers(mask, "action_mask"))
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if wrong.size:
        raise ValueError(f"action_mask: must hold 0 or 1 for each category, got {values.flat[wrong[0]]}.")
    return values.astype(np.float32)


def _check_whole(values: NDArray[Any], dtype: np.dtype[Any], name: str) -> None:
    """Check that values are such as an array of whole numbers can hold."""
    if values.dtype == dtype:
        return
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(values.astype(dtype) != values)
    if wrong.size:
        raise ValueError(
            f"{name}: must hold whole numbers of {dtype}, as the environment gives them, got {values.flat[wrong[0]]}."
        )


def _check_members(space: Space[Any], values: NDArray[Any], name: str) -> None:
    """Check that all of a batch are members of a space of whole numbers."""
    if isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        low, high = np.int64(0), np.int64(1)
    wrong = np.flatnonzero(~((values >= low) & (values <= high) & (values == np.floor(values))))
    if wrong.size:
        raise ValueError(f"{name}: must be of {space}, got {values.flat[wrong[0]]}.")


def _describe(obs: Any) -> str:
    if isinstance(obs, Mapping):
        return f"a dict with {sorted(f'{key!s:.40}' for key in obs)[:20]}"
    if isinstance(obs, np.ndarray):
        return f"an array of shape {obs.shape}"
    kind = type(obs).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def space_to_plain(space: Space[Any]) -> dict[str, Any]:
    """Describe a space with plain values, so that a checkpoint can hold it without pickled code."""
    if isinstance(space, spaces.Box):
        return {
            "kind": "Box",
            "low": space.low.reshape(-1).tolist(),
            "high": space.high.reshape(-1).tolist(),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_plain(child) for key, child in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_plain(child) for child in space.spaces]}
    raise ValueError(
        f"space: must be a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got {space}; "
        "wrap the environment so that it uses one of these."
    )


def space_from_plain(plain: Any, name: str = "space") -> Space[Any]:
    """Build a space from the plain values of `space_to_plain`.

    Raises:
        ValueError: They do not describe a space as `space_to_plain` would.
    """
    from minerva.utils.structure import check, describe  # it imports torch, which worker processes do without

    try:
        space = _build(plain)
        again = space_to_plain(space)
    except _UnknownKindError:
        raise
    except Exception as error:  # whatever a value of a wrong type leads to
        raise ValueError(f"{name}: must describe a space, got {describe(plain)} that does not") from error
    check(plain, again, name)
    if plain != again:
        raise ValueError(f"{name}: must describe a space, got {describe(plain)} that does not")
    return space


class _UnknownKindError(ValueError):
    """A space of a kind that this version does not know."""


def _build(plain: dict[str, Any]) -> Space[Any]:
    kind = plain["kind"]
    if kind == "Box":
        shape, dtype = tuple(plain["shape"]), np.dtype(plain["dtype"])
        low, high = (np.array(plain[bound], dtype=dtype).reshape(shape) for bound in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(plain["n"], start=plain["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(plain["nvec"]), start=np.array(plain["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(plain["n"])
    if kind == "Dict":
        # OrderedDict, because Gymnasium sorts the keys of a plain dict, and so the parts of a flattened observation.
        return spaces.Dict(OrderedDict((key, _build(child)) for key, child in plain["spaces"].items()))
    if kind == "Tuple":
        return spaces.Tuple([_build(child) for child in plain["spaces"]])
    raise _UnknownKindError(f"space: unknown kind {kind!r}; a newer Minerva wrote this checkpoint, so update Minerva.")
