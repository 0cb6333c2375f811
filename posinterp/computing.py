"""What an edited tensor's values become."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadValues
from .planning import Edit
from .resampling import apply_weights
from .store.tensors import TensorInfo, decode, encode, read_bytes, storage

SLICE = 128  # channels that are resampled at a time: memory stays near the table's own size


def apply(edit: Edit, info: TensorInfo) -> NDArray[Any]:
    """One edited tensor. Its extra rows keep every bit; its grid is resampled in float64 and rounded once."""
    raw = read_bytes(info)
    if not np.isfinite(decode(raw, info.dtype, info.shape, name=info.name)).all():
        raise BadValues(
            f"{info.name} holds values that are not finite (NaN or Inf); resampling would spread them",
            hint="repair the checkpoint first",
        )
    parts = edit.split(storage(raw, info.dtype, info.shape))
    new = np.empty((*(edit.after[axis] for axis in edit.layout.grid_axes), parts.grid.shape[-1]), parts.grid.dtype)
    weights = edit.weights
    for start in range(0, new.shape[-1], SLICE):
        some = np.ascontiguousarray(parts.grid[..., start : start + SLICE])
        exact = decode(some.data.cast("B"), info.dtype, some.shape, name=info.name)
        new[..., start : start + SLICE] = encode(apply_weights(exact, weights), info.dtype)
    return np.ascontiguousarray(edit.join(parts._replace(grid=new)))
