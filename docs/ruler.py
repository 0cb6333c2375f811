"""A position table that can be read whatever has been done to it: what docs/comparison.py fills models with.

No library is the judge of another. A table is filled so that each row says where in the image its place lies; after a
resize, in whichever way, each row must still say where its own place lies, and the class token's row must be what it
was. Half a place of the coarser grid is allowed: kernels differ by less, at the borders; a grid that was taken for
another is off by several.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PATCH, WIDTH = 8, 8
Size = tuple[int, int]  # of an image: height, width
SQUARE, LONG = (64, 64), (32, 128)  # 8x8 and 4x16 places: as many
LARGER, SMALLER, OBLONG = (96, 96), (40, 40), (64, 96)
YES = "yes"
KEPT, WRONG, ANEW = "**wrong**: rows kept", "**wrong** places", "**made anew**"


def grid_of(size: Size) -> Size:
    return size[0] // PATCH, size[1] // PATCH


def ruler(size: Size) -> Tensor:
    """(1 + h·w, WIDTH): 7 for the class token, then for each place how far down and how far right it lies."""
    high, wide = grid_of(size)
    down = (torch.arange(high) + 0.5) / high
    right = (torch.arange(wide) + 0.5) / wide
    places = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1).reshape(-1, 2)
    return torch.cat([torch.full((1, WIDTH), 7.0), places.repeat(1, WIDTH // 2)])


def read(table: Tensor, size: Size, source: Size) -> str:
    """What has become of the ruler of `source` at an image of `size`."""
    table, wanted = table.detach().float().reshape(-1, WIDTH), ruler(size)
    if table.shape == wanted.shape:
        coarser = torch.minimum(torch.tensor(grid_of(size)), torch.tensor(grid_of(source)))
        off = (table - wanted)[1:].reshape(-1, WIDTH // 2, 2).abs().amax((0, 1)) * coarser
        if torch.equal(table[0], wanted[0]) and bool((off < 0.5).all()):
            return YES
        if torch.equal(table, ruler(source)):
            return KEPT
        if bool(((table[0] - wanted[0]).abs() > 1).all()):
            return ANEW
    return WRONG


def reads_offsets(bias: Tensor, size: Size) -> str:
    """A bias of (2, n, n) that was, for head 0, how far below, and for head 1 how far right a place lies of another.

    However it is stretched: equal for equal offsets, 0 for none, the opposite for the opposite, and always growing.
    """
    high, wide = grid_of(size)
    bias = bias.detach().float().reshape(2, high, wide, high, wide)
    for head, side in ((0, high), (1, wide)):
        seen: dict[int, list[float]] = {}
        for a in range(side):
            for b in range(side):
                pairs = bias[0, a, :, b, :] if head == 0 else bias[1, :, a, :, b]
                seen.setdefault(a - b, []).extend(pairs.flatten().tolist())
        means = [float(np.mean(seen[offset])) for offset in range(1 - side, side)]
        spread = max(max(values) - min(values) for values in seen.values())
        if spread > 0.01 or abs(means[side - 1]) > 0.01 or not (np.diff(means) > 0).all():
            return WRONG
        if not np.allclose(means, -np.array(means[::-1]), atol=0.01):
            return WRONG
    return YES


def offsets(size: Size, extra: int) -> Tensor:
    """((2h-1)(2w-1) + extra, 2): each row says its offset."""
    high, wide = grid_of(size)
    down, right = torch.arange(1.0 - high, high), torch.arange(1.0 - wide, wide)
    rows = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1).reshape(-1, 2)
    return torch.cat([rows, torch.full((extra, 2), 70.0)])
