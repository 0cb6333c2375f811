"""Fixed sine tables of two dimensions: MAE's (util/pos_embed.py), I-JEPA's, and MoCo v3's, whose axes are swapped.

Such a table can be computed anew at another size instead of being resampled. The two differ: resampled, a model sees
its own range of positions more finely; computed anew, it sees positions beyond those that it was trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadValues

Table = NDArray[np.float64]

TEMPERATURE = 10_000.0
CLOSE = {"F16": 1e-3, "BF16": 8e-3}  # a value of 1, rounded; positions and angles of other dtypes are float32's
ROUNDED = 1e-4


def sines(rows: int, columns: int, width: int, *, rows_first: bool = False) -> Table:
    """The table of a grid: (rows, columns, width) in [-1, 1].

    Half of the channels tell the column, the other half the row, each by sines and then cosines of `width` / 4
    frequencies; `rows_first`: the row's half comes first.
    """
    rates = TEMPERATURE ** (-np.arange(width // 4) / (width / 4))
    along = [np.arange(n)[:, None] * rates for n in (rows, columns)]
    row, column = (np.concatenate([np.sin(angle), np.cos(angle)], 1) for angle in along)
    halves = [np.broadcast_to(one, (rows, columns, one.shape[-1])) for one in (column, row[:, None])]
    return np.concatenate(halves[::-1] if rows_first else halves, -1)


def computed_anew(grid: Table, sides: tuple[int, int], *, name: str, dtype: str) -> Table:
    """The sine table of another grid, by the formula that `grid`, (h, w, channels), is of.

    Raises BadValues if it is of none: then it was trained, or is of another formula.
    """
    height, width, channels = grid.shape
    nearest = np.inf
    if channels % 4 == 0:
        for rows_first in (False, True):
            apart: Any = np.abs(grid - sines(height, width, channels, rows_first=rows_first)).max()
            if apart <= CLOSE.get(dtype, ROUNDED):
                return sines(*sides, channels, rows_first=rows_first)
            nearest = min(nearest, apart)
    found = f"differs from the nearest by {nearest:.2g}" if nearest < np.inf else f"has {channels} channels"
    raise BadValues(
        f"{name} is not the sine table of {height}×{width} places: it {found}",
        hint="leave --method sincos out: it is resampled then",
    )
