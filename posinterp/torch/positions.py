"""A position table at the size of the moment: two small matrices, the same as `resize` writes with."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..resampling import axis_weights


@lru_cache(maxsize=512)
def _matrix(src: int, dst: int, device: torch.device) -> Tensor:
    return torch.tensor(axis_weights(src, dst, "bicubic", antialias=True), dtype=torch.float32, device=device)


# An operator of its own: to torch.compile and torch.export one opaque step, so that one graph serves every size.
@torch.library.custom_op("posinterp::axis_matrix", mutates_args=())
def axis_matrix(like: Tensor, src: int, dst: int) -> Tensor:
    """(dst, src) float32 on the device of `like`: bicubic with antialias, what timm's `dynamic_img_size` does."""
    return _matrix(src, dst, like.device).clone()  # a compiled graph may write over what an operator gave it


@axis_matrix.register_fake
def _(like: Tensor, src: int, dst: int) -> Tensor:
    return like.new_empty((dst, src), dtype=torch.float32)


def resampled(table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A position table for another grid.

    Args:
        table: (1, prefix + h·w, C) of the grid `old`; prefix rows are kept.

    Returns:
        (1, prefix + h'·w', C) of the grid `new`, in the table's dtype, computed in float32; gradients reach the table.
    """
    # While exporting, the question "is it the native size?" would pin a symbolic size to the example's.
    if not torch.compiler.is_exporting() and tuple(old) == tuple(new):
        return table
    with torch.autocast(table.device.type, enabled=False):
        rows, columns = (axis_matrix(table.detach(), src, dst) for src, dst in zip(old, new, strict=True))
        grid = table[0, prefix:].float().reshape(*old, -1)  # (h, w, C)
        grid = torch.einsum("ih,jw,hwc->ijc", rows, columns, grid).flatten(0, 1)
    return torch.cat([table[:, :prefix], grid[None].to(table.dtype)], dim=1)
