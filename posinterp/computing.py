"""What an edited tensor's values become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadValues
from .formulas import computed_anew
from .method import DISTANCES
from .planning import Edit
from .resampling import apply_weights
from .store.tensors import TensorInfo, decode, encode, read_bytes, storage

if TYPE_CHECKING:
    from .resampling import Matrix

SLICE = 128  # channels that are resampled at a time: memory stays near the table's own size


def apply(edit: Edit, info: TensorInfo, *, allow_nonfinite: bool = False) -> NDArray[Any]:
    """One edited tensor. Its extra rows keep every bit; its grid is resampled in float64 and rounded once.

    `allow_nonfinite`: of a grid with NaN or Inf every place that they have a weight in becomes NaN, and no other.

    Raises BadValues for such a grid, or extra row, without.
    """
    raw = read_bytes(info)
    values = decode(raw, info.dtype, info.shape, name=info.name, integers=edit.method.name == DISTANCES)
    if not allow_nonfinite and not np.isfinite(values).all():
        raise BadValues(
            f"{info.name} holds values that are not finite (NaN or Inf); resampling would spread them",
            hint="repair the checkpoint first, or keep them with --allow-nonfinite",
        )
    parts = edit.split(storage(raw, info.dtype, info.shape))
    if edit.method.computes:
        sides = edit.after["h"], edit.after["w"]
        grid = edit.split(values).grid
        anew = computed_anew(grid, sides, edit.method.name, name=info.name, dtype=info.dtype)
        return np.ascontiguousarray(edit.join(parts._replace(grid=encode(anew, info.dtype))))
    new = np.empty((*(edit.after[axis] for axis in edit.layout.grid_axes), parts.grid.shape[-1]), parts.grid.dtype)
    weights = edit.weights
    for start in range(0, new.shape[-1], SLICE):
        some = np.ascontiguousarray(parts.grid[..., start : start + SLICE])
        exact = decode(some.data.cast("B"), info.dtype, some.shape, name=info.name)
        values = _resampled(exact, weights)
        new[..., start : start + SLICE] = encode(np.maximum(values, 0) if edit.floor else values, info.dtype)
    return np.ascontiguousarray(edit.join(parts._replace(grid=new)))


def _resampled(grid: NDArray[np.float64], weights: Sequence[Matrix]) -> NDArray[np.float64]:
    """A grid under one matrix per axis. A plain product would spread NaN along whole axes: zero times NaN is NaN."""
    odd = ~np.isfinite(grid)
    if not odd.any():
        return apply_weights(grid, weights)
    touched = apply_weights(odd.astype(np.float64), [(matrix != 0).astype(np.float64) for matrix in weights]) > 0
    return np.where(touched, np.nan, apply_weights(np.where(odd, 0.0, grid), weights))


def nonfinite(edit: Edit, info: TensorInfo, new: memoryview) -> str:
    """What is said of an edited tensor that holds NaN or Inf; "" for one that holds none. `new`: its bytes now."""
    counts = [
        int(np.count_nonzero(~np.isfinite(decode(raw, info.dtype, shape, name=info.name))))
        for raw, shape in ((read_bytes(info), info.shape), (new, edit.new_shape))
    ]
    if not counts[0]:
        return ""
    return f"{info.name} holds {counts[0]} values that are not finite, kept: {counts[1]} of the new one's are not"
