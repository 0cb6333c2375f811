"""What a position table says of nearness: cosine similarities between its places, and its principal components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import BadUsage
from .models import models_of
from .rules import rule_of
from .size import shape_text
from .store import Checkpoint, open_checkpoint
from .tables import chosen, is_bias, read_table

Values = NDArray[np.float64]
Place = tuple[int, ...]


def cosine_maps(grid: Values, at: Sequence[Place] | None = None) -> Values:
    """The cosine similarity of places of a grid with all of its places, as in figure 7 of the ViT paper (2010.11929).

    Args:
        grid: (*sides, channels): a vector for each place.
        at: the places to compare with all, each (row, column), or as many numbers as the grid has sides; None: all.

    Returns:
        float64 in [-1, 1]: (len(at), *sides), or (*sides, *sides) where `at` is None. NaN where one of the two vectors
        is zero.

    Raises:
        BadUsage: for a place outside the grid.
    """
    sides = grid.shape[:-1]
    flat = grid.reshape(-1, grid.shape[-1]).astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", divide="ignore"):
        flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    rows = flat if at is None else flat[[flat_place(place, sides) for place in at]]
    found = np.clip(rows @ flat.T, -1, 1)
    return np.asarray(found.reshape(*(sides if at is None else (len(rows),)), *sides))


def flat_place(place: Place, sides: Sequence[int]) -> int:
    """The number of a place, row by row. Raises BadUsage for one outside the grid."""
    if len(place) != len(sides) or not all(0 <= n < side for n, side in zip(place, sides, strict=True)):
        raise BadUsage(
            f"there is no place {','.join(map(str, place))} in a grid of {shape_text(sides)}",
            hint=f"places go from {','.join('0' for _ in sides)} to {','.join(str(n - 1) for n in sides)}",
        )
    return int(np.ravel_multi_index(place, tuple(sides)))


def position_similarity(
    ckpt: str | Path | Checkpoint,
    at: Place | None = None,
    *,
    tensor: str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
    rules: Sequence[str] = (),
) -> Values:
    """Cosine similarities between the places of a checkpoint's position table.

    Args:
        ckpt, src_img, family, rules: as `plan` takes them.
        at: the place, (row, column), whose similarities are wanted; None: those of all places.
        tensor: the table's name, where there are several; None: the first that holds vectors for places.

    Returns:
        float64, (h, w), or (h, w, h, w) where `at` is None; of a table with other axes as many as it has.

    Raises:
        PosinterpError: what `plan` raises for a checkpoint that cannot be opened or understood.
        Unsupported: it has no position tensor.
        BadUsage: the tensor or the place is not there.
        BadValues: its values are not finite.
    """
    source = ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt)
    models = models_of(source, family=family, src_img=src_img, rules=[rule_of(text) for text in rules])
    model, name = chosen(models, tensor, rank=is_bias)
    grid = read_table(source, model, name).grid
    return cosine_maps(grid) if at is None else cosine_maps(grid, [at])[0]


@dataclass(frozen=True)
class Components:
    """The directions along which a table's vectors differ most.

    `mean`: (channels,); `directions`: (count, channels), orthonormal, each with its largest entry positive; `shares`:
    of the variance, one for each.
    """

    mean: Values
    directions: Values
    shares: Values

    def of(self, grid: Values) -> Values:
        """A grid's vectors along the directions: (*sides, channels) -> (*sides, count)."""
        return np.asarray((grid - self.mean) @ self.directions.T)


def principal_components(grid: Values, count: int = 3) -> Components:
    """The first principal components of a grid's vectors, (*sides, channels); fewer where there are no more."""
    flat = grid.reshape(-1, grid.shape[-1])
    mean = flat.mean(0)
    flat = flat - mean
    rows, channels = flat.shape
    # Of the two products the smaller: an SVD of a large table takes half a minute.
    wide = channels > rows
    powers, vectors = np.linalg.eigh(flat @ flat.T if wide else flat.T @ flat)  # ascending
    powers, vectors = np.maximum(powers[::-1], 0), vectors[:, ::-1][:, :count]
    directions = (flat.T @ vectors if wide else vectors).T
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    directions = directions / np.where(lengths > 0, lengths, 1.0)
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], axis=1)
    shares = powers / max(float(powers.sum()), np.finfo(np.float64).tiny)
    return Components(mean, directions * np.where(largest < 0, -1.0, 1.0), shares[:count])
