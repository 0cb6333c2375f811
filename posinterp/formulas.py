"""Tensors that have a formula: at another size they are computed anew, not resampled.

Fixed sine tables of two dimensions are MAE's (util/pos_embed.py), I-JEPA's, and MoCo v3's, whose axes are swapped. Of
them both can be had: resampled, a model sees its own range of positions more finely; computed anew, it sees positions
beyond those that it was trained on. An index of distances can only be computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadValues
from .method import DISTANCES

Table = NDArray[np.float64]

TEMPERATURE = 10_000.0
CLOSE = {"F16": 1e-3, "BF16": 8e-3}  # a value of 1, rounded; positions and angles of other dtypes are float32's
ROUNDED = 1e-4


def computed_anew(grid: Table, sides: tuple[int, int], method: str, *, name: str, dtype: str) -> Table:
    """What the formula of `method` gives for another grid: (h, w, channels) -> (*sides, channels).

    Raises BadValues if `grid` is not of that formula: then it was trained, or is something else.
    """
    return (_distances if method == DISTANCES else _sines)(grid, sides, name, dtype)


def sines(rows: int, columns: int, width: int, *, rows_first: bool = False) -> Table:
    """The sine table of a grid: (rows, columns, width) in [-1, 1].

    Half of the channels tell the column, the other half the row, each by sines and then cosines of `width` / 4
    frequencies; `rows_first`: the row's half comes first.
    """
    rates = TEMPERATURE ** (-np.arange(width // 4) / (width / 4))
    along = [np.arange(n)[:, None] * rates for n in (rows, columns)]
    row, column = (np.concatenate([np.sin(angle), np.cos(angle)], 1) for angle in along)
    halves = [np.broadcast_to(one, (rows, columns, one.shape[-1])) for one in (column, row[:, None])]
    return np.concatenate(halves[::-1] if rows_first else halves, -1)


def distances(rows: int, columns: int, step: int = 1) -> NDArray[np.int64]:
    """Which row of a table of distances is the bias of a query and a key: (queries, keys).

    Keys are all places, row by row; queries every `step`-th of each axis, as LeViT's downsampling blocks have them.
    The table holds a row for each |dy| and |dx|, row by row.
    """
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    apart = np.abs(places[::step, ::step].reshape(-1, 1, 2) - places.reshape(1, -1, 2))
    return np.asarray(apart[..., 0] * columns + apart[..., 1], dtype=np.int64)


def _sines(grid: Table, sides: tuple[int, int], name: str, dtype: str) -> Table:
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


def _distances(grid: Table, sides: tuple[int, int], name: str, dtype: str) -> Table:
    height, width, queries = grid.shape
    for step in (1, 2):
        own = distances(height, width, step)
        if len(own) == queries and np.array_equal(own.T.reshape(grid.shape), grid):
            new = distances(*sides, step)
            return np.asarray(new.T.reshape(*sides, len(new)), dtype=np.float64)
    raise BadValues(
        f"{name} is not the index of distances between {height}×{width} places",
        hint="the file is damaged, or of another model: build it anew, and load its other weights",
    )
