"""What the tensors hold: the source's bytes where nothing should have changed, sound values where something did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from ..method import DISTANCES, Method
from ..planning import Edit
from ..size import shape_text
from ..store.tensors import FLOATS, TensorInfo, decode, read_bytes, read_float, read_range
from .case import Case, optimizer_branches
from .reference import Array
from .verdict import Check, counted

CHUNK = 16 << 20  # bytes that are compared at a time
TABLE = "1 (p h w) c"
BLOCKED = "1 (u v) (h w) c"


# ------------------------------------------------------------------ what should not have changed


def check_untouched(case: Case) -> Check:
    """What the size does not change is the source's, byte for byte."""
    if case.plan is None:
        return Check("untouched", "skip", case.unplanned)
    edited = {edit.name for edit in (*case.plan.edits, *case.plan.moments)}
    dropped = [name for name in case.plan.drop if name in case.names]
    count = len(case.names.keys() - edited - {*dropped})
    fine = f"{counted(count, 'tensor')} byte-equal to the source's; none missing, none extra"
    fine += f"; {len(dropped)} dropped" if dropped else ""
    problems = list(strays(case))
    return Check.of("untouched", problems, fine, compared=count, difference=None if problems else 0.0)


def strays(case: Case) -> Iterator[str]:
    """Each tensor that is not as in the source though it should be; that is missing; that has no business there."""
    assert case.plan is not None
    assert case.source is not None
    found, tensors = case.out.tensors, case.source.tensors
    edited = {edit.name for edit in (*case.plan.edits, *case.plan.moments)}
    dropped = frozenset(case.plan.drop)
    for name, target in case.names.items():
        if target not in found and name not in dropped:
            yield f"{target} is missing"
        elif target in found and name in dropped:
            yield f"{target} is there: the model computes it, and it is for the old size"
        elif target in found and name not in edited and (why := unlike(tensors[name], found[target])):
            yield f"{target} {why}"
    known, own = {*case.names.values()}, optimizer_branches(case.out)
    if any(name.startswith(own) for name in known):  # the source's, kept; else it is of the checkpoint's own making
        own = ()
    yield from (f"{name} is extra" for name in found if name not in known and not name.startswith(own))


def unlike(old: TensorInfo, new: TensorInfo) -> str:
    """How a tensor differs from the source's; "" if in nothing."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"is {new.dtype} {shape_text(new.shape)}, the source's {old.dtype} {shape_text(old.shape)}"
    if all(a == b for a, b in zip(_pieces(old), _pieces(new), strict=True)):
        return ""
    if old.dtype not in FLOATS and old.dtype != "BF16":
        return "has other bytes than the source's"
    numbers = (map(partial(_numbers, info), _pieces(info)) for info in (old, new))
    with np.errstate(invalid="ignore"):
        largest = max(float(np.abs(a - b).max()) for a, b in zip(*numbers, strict=True))
    return f"differs from the source's by up to {largest:.1e}"


def _numbers(info: TensorInfo, raw: bytes | memoryview) -> Array:
    return decode(raw, info.dtype, (-1,), name=info.name)


def _pieces(info: TensorInfo) -> Iterator[bytes | memoryview]:
    """A tensor's bytes, some at a time."""
    if info.data is None and info.strides is None:
        for at in range(0, info.nbytes, CHUNK):
            yield read_range(info.file, info.start + at, min(CHUNK, info.nbytes - at))
        return
    raw = memoryview(read_bytes(info))
    for at in range(0, len(raw), CHUNK):
        yield raw[at : at + CHUNK]


# ------------------------------------------------------------------ what should have changed


def check_values(case: Case) -> Check:
    """What the size changes is finite, varied, and of the new grid's shape."""
    tables = list(_tables(case))
    if not tables:
        return Check("values", "skip", "no tensor follows the size" if case.models else "no table was found")
    problems = [f"{name} {why}" for name, why in tables if why]
    fine = f"{counted(len(tables), 'tensor')} finite, varied and of the new grid's size"
    return Check.of("values", problems, fine, compared=len(tables))


def _tables(case: Case) -> Iterator[tuple[str, str]]:
    """Each tensor that was edited, or, without a source, that follows the grid; and what is wrong with it."""
    if case.plan is not None and case.source is not None:
        for edit, old, new in case.edits():
            yield case.names[edit.name], "is missing" if new is None else _fault(edit, new, old, case.allow_nonfinite)
        return
    tensors = case.out.tensors
    for model in case.models:
        for name, rule in model.ruled.items():
            info, sides = tensors[model.root + name], rule.sides(model.places[name])
            extra, behind = model.extra[name], rule.behind(model.tensors)
            view = model.shape(name) if rule.copies else ()
            own = Edit(
                info.name, rule.layout, sides, sides, info.shape, info.shape, Method(), extra, suffix=behind, view=view
            )
            yield info.name, _fault(own, info)


def _fault(edit: Edit, new: TensorInfo, old: TensorInfo | None = None, allow_nonfinite: bool = False) -> str:
    """What is wrong with the values of an edited tensor, seen alone; "" if nothing.

    `allow_nonfinite`: it may hold NaN and Inf if the source's does; whether in the right places, `resampled` says.
    """
    if edit.method.name == DISTANCES:  # integers; `resampled` holds them against the formula
        return "" if new.shape == edit.new_shape else f"is {shape_text(new.shape)}, not {shape_text(edit.new_shape)}"
    if new.dtype not in FLOATS and new.dtype != "BF16":
        return f"is stored as {new.dtype}"
    values = read_float(new)
    inherited = allow_nonfinite and old is not None and not np.isfinite(read_float(old)).all()
    if not inherited and not np.isfinite(values).all():
        return f"holds {np.count_nonzero(~np.isfinite(values))} values that are NaN or Inf"
    alone = math.prod(edit.before[axis] for axis in edit.layout.grid_axes) == 1  # one place is the same everywhere
    varied = old is None or not (alone or _flat(grid_of(edit, read_float(old), edit.before)))
    if varied and old is not None and not unlike(old, new):
        return f"is still the source's {shape_text(old.shape)}, though the grid changed"
    if new.shape != edit.new_shape:
        return f"is {shape_text(new.shape)}, not {shape_text(edit.new_shape)}"
    if varied and _flat(grid_of(edit, values, edit.after)):
        return "is all zero" if not values.any() else "has the same values at every place"
    return ""


def grid_of(edit: Edit, tensor: Array, sides: Mapping[str, int]) -> Array:
    """The grid of a table, places first: (h, w, carried). The common layouts are taken apart without `Layout`."""
    if edit.layout.spec == TABLE:  # (1, p + h·w, c)
        return tensor[0, edit.extra :].reshape(sides["h"], sides["w"], -1)
    if edit.layout.spec == BLOCKED:  # (1, blocks, places of a block, c): block by block, each row by row
        side = math.isqrt(tensor.shape[1])
        cut = tensor[0].reshape(side, side, sides["h"] // side, sides["w"] // side, -1)
        return np.concatenate([np.concatenate(list(row), axis=1) for row in cut], axis=0)
    return np.asarray(edit.split(tensor, sides).grid, dtype=np.float64)


def _flat(grid: Array) -> bool:
    """Whether every place of a grid that has several holds the same."""
    places = tuple(range(grid.ndim - 1))
    return math.prod(grid.shape[:-1]) > 1 and bool((grid.max(places) == grid.min(places)).all())
