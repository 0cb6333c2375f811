"""Where the grid sits in a tensor: the notation `1 (p h w) c`, and taking a tensor apart and together by it.

One word an axis. A letter is an axis by itself; a pair of parentheses is an axis that runs over several of the grid:
`(h w)` is row-major over both, `(p h w)` the same with p rows before it, `(h w s)` with s rows after it.

    h w    rows and columns of the grid         t    frames or depth of a grid of three axes
    p s    rows that belong to no place: class, distillation and register tokens, extra offsets
    u v    rows and columns of blocks that the grid is cut into: `1 (u v) (h w) c` has u·v blocks, as many a side, and
           the places of each; h and w are still sides of the whole grid
    1      an axis of length one                any other letter: channels, heads, layers; carried along
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .errors import BadUsage, Mismatch

GRID = "thw"  # the order of a grid's axes everywhere in this package
BLOCKS = {"h": "u", "w": "v"}  # what cuts an axis of the grid into blocks
EXTRAS = "ps"
WORD = re.compile(r"\(([a-z](?: [a-z])*)\)|([a-z1])")


class Parts(NamedTuple):
    """A tensor taken apart. `grid`: (*grid axes, carried); prefix and suffix: as stored, rows along their axis."""

    grid: Any
    prefix: Any
    suffix: Any


@dataclass(frozen=True)
class Layout:
    """A layout, parsed from its notation.

    Raises:
        BadUsage: for a notation that is none.
    """

    spec: str

    def __post_init__(self) -> None:
        words = " ".join(self.spec.split())
        if not words or WORD.sub("", words).strip():
            raise BadUsage(f"{self.spec!r} is no layout", hint="write it like '1 (p h w) c'")
        letters = [letter for axis in self.axes for letter in axis]
        doubled = {letter for letter in letters if letters.count(letter) > 1}
        if doubled or not set(letters) & set(GRID):
            why = f"{', '.join(sorted(doubled))} twice" if doubled else "none of the grid's letters t, h, w"
            raise BadUsage(f"layout {self.spec!r} has {why}", hint="write it like '1 (p h w) c'")
        for axis in self.axes:
            inner = [letter for letter in axis if letter not in EXTRAS]
            if len(axis) > 1 and (axis[0] == "s" or axis[-1] == "p" or not inner or set(axis[1:-1]) & set(EXTRAS)):
                raise BadUsage(f"layout {self.spec!r} has p or s inside an axis", hint="p comes first, s last")
            if set(axis) & set("uv") and (axis != ("u", "v") or not {"h", "w"} <= set(letters) or self.has_extras):
                raise BadUsage(
                    f"layout {self.spec!r} has u or v out of place", hint="blocks are an axis (u v) beside (h w)"
                )
            if len(axis) > 1 and axis != ("u", "v") and not set(inner) <= set(GRID):
                raise BadUsage(
                    f"layout {self.spec!r} has another letter in parentheses", hint="only p, t, h, w, s share an axis"
                )
            if set(axis) & set(EXTRAS) and set(inner) != set(letters) & set(GRID):
                raise BadUsage(
                    f"layout {self.spec!r} has extra rows beside a part of the grid",
                    hint="p and s share their axis with the whole grid, as in '1 (p h w) c'",
                )

    def __str__(self) -> str:
        return self.spec

    @cached_property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """Each axis as its letters; an axis of length one has none."""
        found = WORD.findall(" ".join(self.spec.split()))
        return tuple(tuple(group.split()) if group else tuple(letter.replace("1", "")) for group, letter in found)

    @cached_property
    def grid_axes(self) -> tuple[str, ...]:
        """The grid's letters that the tensor has, in the order t, h, w."""
        present = {letter for axis in self.axes for letter in axis}
        return tuple(letter for letter in GRID if letter in present)

    @cached_property
    def carried(self) -> tuple[str, ...]:
        """Letters of the axes that are carried along, in the tensor's order."""
        apart = {*GRID, *EXTRAS, *BLOCKS.values()}
        return tuple(letter for axis in self.axes for letter in axis if letter not in apart)

    @cached_property
    def has_extras(self) -> bool:
        """Whether some axis holds rows that belong to no place of the grid."""
        return any(set(axis) & set(EXTRAS) for axis in self.axes)

    def fits(self, shape: Sequence[int], grid: Mapping[str, int]) -> int | None:
        """How many extra rows (p + s) a tensor of `shape` holds beside `grid`; None when the two disagree."""
        inner = self._within_block(shape, grid)
        if len(shape) != len(self.axes) or inner is None:
            return None
        grid, extras = inner, 0
        for length, axis in zip(shape, self.axes, strict=True):
            places = math.prod(grid[letter] for letter in axis if letter in GRID)
            if not axis or (set(axis) & set(GRID) and not set(axis) & set(EXTRAS)):
                if length != places:
                    return None
            elif set(axis) & set(EXTRAS):
                extras = length - places
        return extras if extras >= 0 else None

    def exceeds(self, shape: Sequence[int], grid: Mapping[str, int]) -> bool:
        """Whether a grid is larger than a tensor of `shape` can hold."""
        if len(shape) != len(self.axes):
            return True
        counts = [math.prod(grid[letter] for letter in axis if letter in GRID) for axis in self.axes]
        blocks = self._blocks(shape) or 1
        return any(count > length * blocks**2 for count, length in zip(counts, shape, strict=True))

    def _blocks(self, shape: Sequence[int]) -> int | None:
        """Blocks a side; 1 for a layout without; None if the shape's number of blocks is no square."""
        if ("u", "v") not in self.axes:
            return 1
        count = shape[self.axes.index(("u", "v"))]
        side = math.isqrt(count)
        return side if side and side * side == count else None

    def _within_block(self, shape: Sequence[int], grid: Mapping[str, int]) -> Mapping[str, int] | None:
        """The sides of one block; the grid's own where it is not cut. None if they do not go up."""
        blocks = self._blocks(shape) if len(shape) == len(self.axes) else None
        if blocks == 1:
            return grid
        if blocks is None or any(grid[letter] % blocks for letter in BLOCKS):
            return None
        return {letter: n // blocks if letter in BLOCKS else n for letter, n in grid.items()}

    def readable(self, shape: Sequence[int]) -> dict[str, int]:
        """The sides of the grid that a shape shows by itself: those that are an axis of their own."""
        if len(shape) != len(self.axes):
            return {}
        return {axis[0]: n for n, axis in zip(shape, self.axes, strict=True) if len(axis) == 1 and axis[0] in GRID}

    def reshaped(self, shape: Sequence[int], old: Mapping[str, int], new: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for grid `new` of a tensor that has `shape` for grid `old`.

        Raises Mismatch if `new` cannot be cut into the tensor's blocks.
        """
        out = []
        inner = [self._within_block(shape, side) for side in (old, new)]
        if inner[1] is None:
            sides = "×".join(str(new[letter]) for letter in self.grid_axes)
            raise Mismatch(f"a grid of {sides} cannot be cut into {self._blocks(shape)} blocks a side")
        for length, axis in zip(shape, self.axes, strict=True):
            inside = [letter for letter in axis if letter in GRID]
            before, after = (math.prod(side[letter] for letter in inside) for side in inner if side is not None)
            out.append(length - before + after if inside else length)
        return tuple(out)

    def split(self, tensor: Any, grid: Mapping[str, int], *, prefix: int | None = None) -> Parts:
        """Take a tensor apart.

        Args:
            tensor: numpy or torch, in this layout.
            grid: length of each of the grid's sides: {"h": 14, "w": 14}.
            prefix: rows before the grid; needed only by layouts that have p and s both.

        Returns:
            Parts, with the grid as (t, h, w, carried), as far as the layout has those axes, and one last axis for
            everything carried. For numpy and torch views where reshaping allows, else copies.

        Raises:
            Mismatch: the shape is not the layout's for that grid.
        """
        at, first, last = self._rows(tensor.shape, grid, prefix)
        body = tensor[(slice(None),) * at + (slice(first, last),)]
        before = tensor[(slice(None),) * at + (slice(0, first),)]
        after = tensor[(slice(None),) * at + (slice(last, None),)]
        letters, sizes = self._unfolded(body.shape, grid)
        unfolded = _permute(body.reshape(sizes), [letters.index(letter) for letter in self._order])
        return Parts(unfolded.reshape([grid[letter] for letter in self.grid_axes] + [-1]), before, after)

    def join(self, parts: Parts, shape: Sequence[int], grid: Mapping[str, int]) -> Any:
        """Put a tensor of `shape` together from parts of `grid`: the inverse of `split`."""
        at = self._extras_axis
        extent = math.prod(grid[letter] for letter in self.axes[at] if letter in GRID)
        body = [extent if axis == at and self.has_extras else n for axis, n in enumerate(shape)]
        letters, sizes = self._unfolded(body, grid)
        folded = parts.grid.reshape([sizes[letters.index(letter)] for letter in self._order])
        folded = _permute(folded, [self._order.index(letter) for letter in letters]).reshape(body)
        return _concatenate([parts.prefix, folded, parts.suffix], at) if self.has_extras else folded

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """The letters with the grid's first, each behind that of its blocks."""
        cut = ("u", "v") in self.axes
        grid = [one for letter in self.grid_axes for one in ([BLOCKS[letter], letter] if cut else [letter])]
        return (*grid, *self.carried)

    @cached_property
    def _extras_axis(self) -> int:
        return next((i for i, axis in enumerate(self.axes) if set(axis) & set(EXTRAS)), 0)

    def _rows(self, shape: Sequence[int], grid: Mapping[str, int], prefix: int | None) -> tuple[int, int, int]:
        """The axis with extra rows, and where the grid begins and ends on it."""
        extras = self.fits(shape, grid)
        if extras is None:
            sides = "×".join(str(grid[letter]) for letter in self.grid_axes)
            raise Mismatch(f"a tensor of shape {tuple(shape)} is no {self.spec} with a grid of {sides}")
        at = self._extras_axis
        axis = self.axes[at]
        if "p" not in axis:
            prefix = 0
        elif "s" not in axis:
            prefix = extras
        elif prefix is None or prefix > extras:
            raise BadUsage(f"layout {self.spec} needs the number of prefix rows, of {extras} extra rows")
        return (at, prefix, shape[at] - (extras - prefix)) if self.has_extras else (0, 0, shape[0])

    def _unfolded(self, shape: Sequence[int], grid: Mapping[str, int]) -> tuple[list[str], list[int]]:
        """Every letter as an axis of its own, and its length, for a tensor without extra rows."""
        letters: list[str] = []
        sizes: list[int] = []
        blocks, within = self._blocks(shape), self._within_block(shape, grid)
        assert blocks is not None
        assert within is not None
        for length, axis in zip(shape, self.axes, strict=True):
            inner = [letter for letter in axis if letter not in EXTRAS]
            letters += inner
            sizes += [within[letter] if letter in GRID else blocks if len(axis) > 1 else length for letter in inner]
        return letters, sizes


def _permute(tensor: Any, order: Sequence[int]) -> Any:
    return tensor.permute(list(order)) if hasattr(tensor, "permute") else tensor.transpose(order)


def _concatenate(parts: list[Any], axis: int) -> Any:
    if hasattr(parts[0], "permute"):
        import torch

        return torch.cat(parts, axis)
    import numpy as np

    return np.concatenate(parts, axis)
