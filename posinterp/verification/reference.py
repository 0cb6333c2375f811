"""Resampling once more, by other means: torch's own functions, in float64, and none of posinterp's matrices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..method import DISTANCES, SINES, Method

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]


def recomputed(before: Array, sides: Sequence[int], method: Method, *, kernel: bool) -> Array:
    """(*old, carried) -> (*sides, carried) by torch's functions, or short references where torch has none."""
    import torch

    if method.name == SINES:
        return _sines(before, sides)
    if method.name == DISTANCES:
        return _distances(before, sides)
    grid = torch.from_numpy(np.ascontiguousarray(before))
    exact = _kernel(grid, sides, method) if kernel else _resized(grid, sides, method)
    return np.asarray(exact.numpy(), dtype=np.float64)


def _kernel(kernel: Tensor, sides: Sequence[int], method: Method) -> Tensor:
    """FlexiViT's patch kernel, as timm.layers.resample_patch_embed has it: the pseudo-inverse of the whole resize."""
    import torch

    cells = math.prod(kernel.shape[:2])
    basis = torch.eye(cells, dtype=kernel.dtype).reshape(*kernel.shape[:2], cells)
    resize = _resized(basis, sides, method).reshape(-1, cells)  # (new, old)
    inverse: Tensor = torch.linalg.pinv(resize)  # (old, new)
    return (inverse.T @ kernel.reshape(cells, -1)).reshape(*sides, -1)


def _resized(grid: Tensor, sides: Sequence[int], method: Method) -> Tensor:

    if method.name == "geometric":
        return _geometric(grid, sides)
    if method.name == "lanczos3":
        for axis, new in enumerate(sides):
            weights = _lanczos3(grid.shape[axis], new, method.antialias)
            grid = (weights @ grid.movedim(axis, -2)).movedim(-2, axis)
        return grid
    # torch's antialiased kernel repeats the first row where the width becomes 1.
    if len(sides) == 2 and min(sides) > 1:
        return _interpolated(grid.movedim(-1, 0)[None], sides, method)[0].movedim(0, -1)
    for axis, new in enumerate(sides):
        grid = _along(grid, axis, new, method)
    return grid


def _along(grid: Tensor, axis: int, new: int, method: Method) -> Tensor:
    """One axis of a grid, as the height of an image whose width, at least 2, stays."""
    moved = grid.movedim(axis, 0)
    flat = moved.reshape(1, 1, grid.shape[axis], -1)
    width = flat.shape[-1]
    wide = flat.expand(1, 1, -1, 2) if width == 1 else flat
    out = _interpolated(wide, (new, wide.shape[-1]), method, offsets=(method.offset or 0.0, 0.0))[0, 0, :, :width]
    return out.reshape(new, *moved.shape[1:]).movedim(0, axis)


def _interpolated(
    image: Tensor, sides: Sequence[int], method: Method, *, offsets: tuple[float, float] | None = None
) -> Tensor:
    """torch's own function: (1, c, h, w) -> (1, c, *sides)."""
    from torch.nn.functional import interpolate

    added = offsets or (method.offset or 0.0,) * 2
    scale = [(new + more) / old for new, old, more in zip(sides, image.shape[-2:], added, strict=True)]
    out: Tensor = interpolate(
        image,
        size=None if method.offset else list(sides),
        scale_factor=scale if method.offset else None,
        mode=method.name,
        align_corners=method.align_corners if method.name in ("bilinear", "bicubic") else None,
        antialias=method.antialias,
    )
    return out


def _sines(before: Array, sides: Sequence[int]) -> Array:
    """MAE's get_2d_sincos_pos_embed, with the halves in whichever order the old table has them."""
    import torch

    quarter = before.shape[-1] // 4
    rates = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    def table(h: int, w: int, *, swap: bool) -> Array:
        y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        angles = [axis[..., None] * rates for axis in ((y, x) if swap else (x, y))]
        return np.asarray(torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], -1).numpy())

    height, width = before.shape[:2]
    plain, swapped = (np.abs(table(height, width, swap=swap) - before).max() for swap in (False, True))
    return table(sides[0], sides[1], swap=bool(swapped < plain))


def _distances(before: Array, sides: Sequence[int]) -> Array:
    """vit_pytorch.levit's pos_indices of a map, its queries every other place where there are fewer than places."""
    import torch

    step = 1 if before.shape[-1] == before.shape[0] * before.shape[1] else 2
    keys = torch.cartesian_prod(*(torch.arange(side) for side in sides))
    queries = torch.cartesian_prod(*(torch.arange(0, side, step) for side in sides))
    rows, columns = (queries[:, None] - keys[None]).abs().unbind(-1)
    return np.asarray((rows * sides[1] + columns).T.reshape(*sides, -1).double().numpy())


def _lanczos3(old: int, new: int, antialias: bool) -> Tensor:
    """One axis of jax.image.resize (jax/_src/image/scale.py, compute_weight_mat): (new, old)."""
    import torch

    widened = max(old / new, 1.0) if antialias else 1.0
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * old / new - 0.5
    x = (centres[:, None] - torch.arange(old, dtype=torch.float64)).abs() / widened
    weights = torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _geometric(grid: Tensor, sides: Sequence[int]) -> Tensor:
    """timm's resize of bias tables, in float32: (2h - 1, 2w - 1, heads)."""
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table

    window = (sides[0] + 1) // 2, (sides[1] + 1) // 2
    table = grid.movedim(-1, 0).float()  # heads first: a flat table's sides would be guessed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about how timm calls it
        out: Tensor = resize_rel_pos_bias_table(table, window, (len(table), *sides))
    return out.double().movedim(0, -1)
