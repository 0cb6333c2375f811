"""Position tensors as numbers: a grid of vectors, taken out of its tensor, as it is and as a plan would write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .computing import apply
from .errors import BadUsage, BadValues, Unsupported
from .measuring import Model
from .method import Method
from .planning import Plan
from .rules import Grid
from .size import Size, shape_text
from .store import Checkpoint
from .store.tensors import TensorInfo, decode, read_float

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """One position tensor, taken apart.

    `name`: in its checkpoint; `shape`: as stored; `grid`: (*axes, vector), float64; `axes`: the letters t, h, w of its
    leading axes; `model`: whose it is; `size`: of the image it is for, if that is known; `pixels`: that a place spans
    along h and w, if that is known; `extra`: rows of it that belong to no place, left out here; `offsets`: it holds
    offsets between places; `bias`: see `is_bias`.
    """

    name: str
    shape: tuple[int, ...]
    grid: Values
    axes: tuple[str, ...]
    model: Model
    size: Size | None = None
    pixels: dict[str, float] = field(default_factory=dict)
    extra: int = 0
    offsets: bool = False
    bias: bool = False


def is_bias(model: Model, name: str) -> bool:
    """Whether a tensor holds numbers that are added to attention, not vectors that are added to tokens."""
    rule = model.ruled[name]
    rows = math.prod(rule.sides(model.places[name])[axis] for axis in rule.layout.grid_axes) + model.extra[name]
    return rule.offsets or "bias" in name.rpartition(".")[2] or rows == math.prod(model.shape(name))


def positions(models: Sequence[Model]) -> Iterator[tuple[Model, str]]:
    """Every tensor that follows the size, by its name below the model's root."""
    for model in models:
        yield from ((model, name) for name in model.ruled)


def chosen(
    models: Sequence[Model], name: str | None, *, rank: Callable[[Model, str], Any] = lambda *_: 0, pegs: bool = False
) -> tuple[Model, str]:
    """The tensor that is asked for by its name in the checkpoint, or the first of those with the lowest rank.

    `pegs`: there are convolutions that give positions, which the refusal should speak of.

    Raises BadUsage for a name that is none, Unsupported where no tensor of any model follows the size.
    """
    held = list(positions(models))
    if not held:
        family = models[0].family
        raise Unsupported(
            f"there is no position tensor in this {family.name} ({family.why_nothing})",
            hint="its convolutions can be drawn: --show peg" if pegs else None,
        )
    if name is None:
        return min(held, key=lambda one: rank(*one))
    for model, below in held:
        if model.root + below == name:
            return model, below
    names = [model.root + below for model, below in held]
    raise BadUsage(
        f"{name!r} is no position tensor of this checkpoint",
        hint=f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:4])}{' ...' * (len(names) > 4)}",
    )


def together(model: Model, name: str) -> list[str]:
    """A tensor, and those that hold the other axes of the same offsets: rel_pos_h and rel_pos_w."""

    def single(other: str) -> bool:
        rule = model.ruled[other]
        return rule.offsets and len(rule.layout.grid_axes) == 1 and other.rpartition(".")[0] == name.rpartition(".")[0]

    return [name, *(other for other in model.ruled if other != name and single(name) and single(other))]


def read_table(source: Checkpoint, model: Model, name: str) -> Table:
    """A table as it is stored; `name`: below the model's root.

    Raises BadValues for one that holds no floating-point numbers, or such that are not finite.
    """
    rule, info = model.ruled[name], source.tensors[model.root + name]
    grid, extra = grid_of(model, name, _finite(info, read_float(info))), model.extra[name]
    pixels = _pixels(model, name, model.src_img, model.places[name])
    axes = rule.layout.grid_axes
    kind = rule.offsets, is_bias(model, name)
    return Table(info.name, info.shape, grid, axes, model, model.src_img, pixels, extra, *kind)


def grid_of(model: Model, name: str, values: Values) -> Values:
    """The grid in the values of a tensor that follows the size: (*axes, vector)."""
    rule = model.ruled[name]
    sides, prefix = rule.sides(model.places[name]), model.extra[name] - rule.behind(model.tensors)
    return np.asarray(rule.layout.split(values.reshape(model.shape(name)), sides, prefix=prefix).grid)


def resized_table(plan: Plan, model: Model, name: str, *, method: Method | None = None) -> Table | None:
    """A table as `resize` would write it, rounded as there; None if the plan leaves it as it is.

    `method`: instead of the plan's. Raises BadValues as `computing.apply`.
    """
    edit = next((edit for edit in plan.edits if edit.name == model.root + name), None)
    if edit is None:
        return None
    if method is not None:
        edit = replace(edit, method=method)
    rule, info = model.ruled[name], plan.source.tensors[edit.name]
    values = decode(apply(edit, info).tobytes(), info.dtype, edit.new_shape, name=info.name)
    places = {axis: (side + 1) // 2 if rule.offsets else side for axis, side in edit.after.items()}
    pixels = _pixels(model, name, plan.dst_img, places)
    grid = edit.split(values, edit.after).grid
    axes = edit.layout.grid_axes
    kind = rule.offsets, is_bias(model, name)
    return Table(info.name, edit.new_shape, grid, axes, model, plan.dst_img, pixels, edit.extra, *kind)


def _finite(info: TensorInfo, values: Values) -> Values:
    if not np.isfinite(values).all():
        raise BadValues(
            f"{info.name} {shape_text(info.shape)} holds values that are not finite (NaN or Inf)",
            hint="`posinterp verify` says how many; repair the checkpoint first",
        )
    return values


def _pixels(model: Model, name: str, size: Size | None, places: Grid) -> dict[str, float]:
    """Pixels of the image that a place spans. A table of a window has the map's, not the window's, share of them."""
    if size is None:
        return {}
    rule = model.ruled[name]
    seen = None if rule.side is None else rule.side.places(size, model.cut, rule.stage(name))
    spanned = seen or places
    return {axis: pixels / spanned[axis] for axis, pixels in zip("hw", size, strict=True) if axis in spanned}
