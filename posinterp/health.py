"""How a position table fares: what its values say of its grid, and what a trip to another size would cost it.

Everything is about the rows of the grid, each a vector of the table's width; rows that belong to no place (class and
register tokens) are left out. "What varies" is what differs from the mean over all places: a constant is kept by any
resampling, and tells no place from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import Ambiguous
from .measuring import ROOT, Model
from .resampling import apply_weights, axis_weights
from .size import Size
from .store.tensors import FLOATS, TensorInfo, read_float
from .tables import grid_of

if TYPE_CHECKING:
    from .planning import Edit

LARGEST = 64 << 20  # bytes: a larger table would take longer than everything else that `inspect` does
CLEAR = 0.2  # by how much another grid must explain the rows better before it is spoken of
NARROW = 8  # channels: fewer can look smooth by chance
SLIM = 8  # the longest grid that is thought of, in its shorter sides
ALIKE = 0.3  # how alike the neighbours of a trained table are at the least

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Health:
    """What the values of one table say.

    `places`: of its grid. `nonfinite`: values that are NaN or Inf; where there are some, the rest is not told.
    `zero_rows`: places whose whole vector is 0. `norm`: Euclidean norms of the places' vectors: mean, standard
    deviation, least, largest.
    `alike`: for each axis of the grid the correlation of places with the next one along it, 0 for noise, near 1 for a
    smooth table. `structure`: the share of what varies that a sum of one vector for each row and one for each column
    explains, 0 for noise and 1 for a pure sum (the adjusted R² of an additive model); None for a grid of one axis.
    `rank`: the effective number of directions in which places differ, (Σλ)² / Σλ² of the covariance's eigenvalues λ
    (the participation ratio), between 1 and the number of places less one. `looks_like`: a grid that the same rows
    would make a clearly smoother table on: they were scrambled, or are read wrongly.
    """

    places: int
    nonfinite: int = 0
    zero_rows: int = 0
    norm: tuple[float, float, float, float] | None = None
    alike: tuple[float, ...] = ()
    structure: float | None = None
    rank: float | None = None
    looks_like: tuple[int, int] | None = None


def health(model: Model, name: str, info: TensorInfo) -> Health | None:
    """The health of one tensor that follows the grid; None if it is stored as no float, or is very large.

    Raises BadFile if the file ends within the tensor.
    """
    values = readable(info)
    return None if values is None else of_values(model, name, values)


def readable(info: TensorInfo) -> Values | None:
    """A tensor's values; None if it is stored as no float, or is very large."""
    return read_float(info) if info.nbytes <= LARGEST and info.dtype in (*FLOATS, "BF16") else None


def of_values(model: Model, name: str, values: Values) -> Health:
    """The health of one tensor that follows the grid, with its values at hand."""
    rule, grid = model.ruled[name], grid_of(model, name, values)
    if bad := int(np.count_nonzero(~np.isfinite(values))):
        return Health(math.prod(grid.shape[:-1]), nonfinite=bad)
    found = of_grid(grid)
    folded = any({"h", "w"} <= set(axis) and "t" not in axis for axis in rule.layout.axes)
    if not folded or ("u", "v") in rule.layout.axes:
        return found
    return replace(found, looks_like=other_grid(grid))


def of_grid(grid: Values) -> Health:
    """The health of a grid of finite values, (*sides, width)."""
    sides = grid.shape[:-1]
    rows = grid.reshape(-1, grid.shape[-1])
    norms = np.linalg.norm(rows, axis=1)
    centred = grid - rows.mean(axis=0)
    energy = float(np.square(centred).sum())
    varies = energy > 1e-12 * float(np.square(rows).sum()) and len(rows) > 1
    return Health(
        len(rows),
        zero_rows=int(np.count_nonzero(norms == 0)),
        norm=(float(norms.mean()), float(norms.std()), float(norms.min()), float(norms.max())),
        alike=tuple(_alike(centred, axis) for axis in range(len(sides))) if varies else (),
        structure=_structure(centred, energy) if varies else None,
        rank=_rank(centred.reshape(rows.shape), energy) if varies else None,
    )


def check_guesses(models: Sequence[Model], read: Callable[[str], Values | None]) -> None:
    """Where a grid was taken for a square because the number of its rows can be one: whether their values deny it.

    `read`: a tensor's values by its name; None for one that is not to be looked at. Raises Ambiguous if they do.
    """
    for model in models:
        for name in model.ruled if model.origin == ROOT else ():
            values = read(model.root + name)
            other = of_values(model, name, values).looks_like if values is not None else None
            if other is None or model.src_img is None:
                continue
            sides = {"h": other[0], "w": other[1]}
            read_as = model.places[name]
            likely = Size(side * sides[axis] // read_as[axis] for side, axis in zip(model.src_img, "hw", strict=True))
            raise Ambiguous(
                f"{model.root}{name} could be a square of {read_as['h']}×{read_as['w']} places by its number of rows, "
                f"but its values are those of a grid of {other[0]}×{other[1]}",
                hint=f"say the size it is for: {likely}, or {model.src_img} if it is a square (--src-img, src_img=)",
            )


def kept(edit: Edit, info: TensorInfo) -> float | None:
    """The share of what varies that a trip to the edit's grid and back keeps: 1 for all, 0 for nothing.

    None for what `health` does not look at, and for a table that does not vary.
    """
    values = readable(info)
    if values is None or edit.kernel or not np.isfinite(values).all():
        return None
    grid = edit.split(values).grid
    back = [axis_weights(edit.after[axis], edit.before[axis], edit.method) for axis in edit.layout.grid_axes]
    centred = grid - grid.reshape(-1, grid.shape[-1]).mean(axis=0)
    energy = float(np.square(centred).sum())
    if not energy:
        return None
    lost = apply_weights(apply_weights(centred, edit.weights), back) - centred
    return max(1 - float(np.square(lost).sum()) / energy, 0.0)


def other_grid(grid: Values) -> tuple[int, int] | None:
    """A grid on which the rows of `grid`, (h, w, width), in their order, make a clearly smoother table; None without.

    Rows are like those a whole line of the grid further on, and less like those between: the autocorrelation of the
    sequence has a peak where a line ends. Cut into lines of another length, what stands above one another never did.
    """
    (height, width), channels = grid.shape[:2], grid.shape[2]
    count = height * width
    centred = grid.reshape(count, -1) - grid.reshape(count, -1).mean(axis=0)
    if not centred.any() or min(height, width) < 2 or channels < NARROW:
        return None
    padded = np.fft.rfft(centred, 2 * count, axis=0)
    sums = np.fft.irfft(np.square(np.abs(padded)).sum(axis=1))[: count // 2 + 1]
    like = sums / (count - np.arange(count // 2 + 1)) / (sums[0] / count)  # by lag; 1 at 0
    lags = [lag for lag in range(2, count // 2 + 1) if count % lag == 0 and count <= SLIM * lag**2 <= SLIM**2 * count]
    rise = {lag: like[lag] - like[1:lag].min() for lag in {*lags, width}}
    best = max(rise, key=lambda lag: float(rise[lag]))
    clear = min(rise[best] - rise[width], like[best] - like[width]) > CLEAR and like[best] > ALIKE
    return (count // best, best) if clear else None


def _alike(centred: Values, axis: int) -> float:
    places = math.prod(centred.shape[:-1])
    return _lagged(centred, axis, float(np.square(centred).sum()) / places)


def _lagged(centred: Values, axis: int, scale: float) -> float:
    """The correlation of places with the next along an axis (Moran's I with weights for those neighbours alone)."""
    first, last = _shifted(centred, axis, slice(None, -1)), _shifted(centred, axis, slice(1, None))
    pairs = math.prod(first.shape[:-1])
    return float((first * last).sum()) / pairs / scale if pairs else 0.0


def _shifted(values: Any, axis: int, part: slice) -> Any:
    return values[(slice(None),) * axis + (part,)]


def _structure(centred: Values, energy: float) -> float | None:
    sides: Sequence[int] = centred.shape[:-1]
    places, axes = math.prod(sides), [axis for axis, side in enumerate(sides) if side > 1]
    left = places - 1 - sum(sides[axis] - 1 for axis in axes)
    if len(axes) < 2 or left <= 0:
        return None
    explained = 0.0
    for axis in axes:
        others = tuple(other for other in range(len(sides)) if other != axis)
        explained += float(np.square(centred.mean(axis=others)).sum()) * (places // sides[axis])
    return max(1 - (1 - explained / energy) * (places - 1) / left, 0.0)


def _rank(centred: Values, energy: float) -> float:
    # Not the entropy of the spectrum (Roy and Vetterli): that takes an eigendecomposition, this a product.
    small = (centred if centred.shape[0] <= centred.shape[1] else centred.T).astype(np.float32)
    small /= np.float32(math.sqrt(energy))
    gram = small @ small.T
    return 1.0 / float(np.square(gram, dtype=np.float64).sum())
