"""What should have been resampled: each table against the reference, within what its maker's precision allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..method import DISTANCES, Method
from ..planning import Edit, Wish
from ..size import shape_text
from ..store.tensors import TensorInfo, read_bytes, read_float, storage
from .case import Case, within_branch
from .claims import method_named
from .contents import TABLE, grid_of
from .reference import Array, recomputed
from .verdict import Check, counted

OWN = 1e-6  # of a channel's largest value: posinterp computes in float64
FOREIGN = 1e-5  # the same for libraries that compute in float32, on grids of up to FINE places a side
FINE = 64  # float32 coordinates grow coarser with the side
STEPS = {"F16": (2.0**-10, 2.0**-24), "BF16": (2.0**-7, 2.0**-133)}  # one rounding step: relative, and the smallest
LARGEST = {"F16": 65504.0, "BF16": float.fromhex("0x1.fep127"), "F32": float.fromhex("0x1.fffffep127")}

# What the table may be instead of what it should be, the more common first.
CANDIDATES = (
    Method("bicubic", antialias=True),
    Method("bicubic"),
    Method("bilinear", antialias=True),
    Method("bilinear"),
    Method("bicubic", align_corners=True),
    Method("bilinear", align_corners=True),
    Method("bicubic", offset=0.1),
    Method("nearest"),
    Method("nearest-exact"),
    Method("area"),
    Method("lanczos3", antialias=True),
    Method("geometric"),
)


@dataclass(frozen=True)
class _Deviation:
    """How far a grid is from what it should be: absolute; in units of what is allowed; of its largest value."""

    largest: float
    allowed: float
    relative: float

    @property
    def fine(self) -> bool:
        return self.allowed <= 1  # false for NaN


def check_resampled(case: Case) -> Check:
    """What the size changes is the source's, resampled."""
    if case.plan is None:
        return Check("resampled", "skip" if case.source is None else "fail", case.unplanned)
    problems: list[str] = []
    worst, methods = _Deviation(0.0, 0.0, 0.0), dict[str, None]()
    for edit, old, new in case.edits():
        method = _expected(case, edit)
        problem, deviation = _compare(case, edit, old, new, method, explain=not problems)
        problems += [problem] if problem else []
        worst = max(worst, deviation, key=lambda one: one.relative)
        methods[str(method)] = None
    if not methods:
        follows = any(model.ruled for model in case.plan.models)
        why = "no grid of the source's changes" if follows else "no tensor of this architecture follows the size"
        return Check("resampled", "skip", f"nothing to resample: {why} at {case.size}")
    count = sum(1 for _ in case.edits())
    fine = f"{counted(count, 'tensor')} as torch gives in float64 ({'; '.join(methods)}); largest difference"
    fine += f" {worst.largest:.1e}, {worst.relative:.1e} of the largest value"
    return Check.of("resampled", problems, fine, compared=count, difference=worst.largest)


def _expected(case: Case, edit: Edit) -> Method:
    """The method by which a tensor should have been made: what was asked for, what its recipe says, the plan's own."""
    if case.wish != Wish():
        return edit.method
    said = {within_branch(name): how for name, how in (case.made_by or {}).get("tensors", {}).items()}
    whose = edit
    if case.plan is not None and edit in case.plan.moments:  # its parameter's, which alone has that shape
        whose = next(one for one in case.plan.edits if one.shape == edit.shape)
    return method_named(said.get(within_branch(whose.name), "")) or whose.method


def _compare(
    case: Case, edit: Edit, old: TensorInfo, new: TensorInfo | None, method: Method, *, explain: bool
) -> tuple[str, _Deviation]:
    """What is wrong with one tensor, if anything, and how far it is off."""
    none = _Deviation(0.0, 0.0, 0.0)
    if new is None:
        return f"{edit.name} is missing", none
    if (new.dtype, new.shape) != (old.dtype, edit.new_shape):
        return f"{new.name} is {new.dtype} {shape_text(new.shape)}, not {old.dtype} {shape_text(edit.new_shape)}", none
    if _extras(edit, old, edit.before) != _extras(edit, new, edit.after):
        return f"{new.name}: its {edit.extra} rows that belong to no place are not the source's, bit by bit", none
    index = method.name == DISTANCES
    before, after = (
        grid_of(edit, read_float(info, integers=index), sides)
        for info, sides in ((old, edit.before), (new, edit.after))
    )
    if index:
        right = np.array_equal(recomputed(before, after.shape[:-1], method, kernel=False), after)
        return "" if right else f"{new.name} is not the index of its table: it points at other distances", none
    if case.allow_nonfinite and not np.isfinite(before).all():
        before, after, astray = _without_nonfinite(edit, before, after, method)
        if astray:
            return (
                f"{new.name} is not finite at {astray} places that no such value of the source reaches, or reversely",
                none,
            )
    own = case.made_by is not None and method.name != "geometric"  # whose reference is timm's, in float32
    deviation = _deviation(edit, old.dtype, before, after, method, own=own)
    if deviation.fine:
        return "", deviation
    what = f"{new.name} is not {method}: off by {deviation.largest:.1e}, {deviation.relative:.1e} of its largest value"
    return what + (_likeness(edit, old.dtype, before, after, method) if explain else ""), deviation


def _without_nonfinite(edit: Edit, before: Array, after: Array, method: Method) -> tuple[Array, Array, int]:
    """Both grids without NaN and Inf; and at how many places there are some that should not be, or none that should.

    A place is reached where such values have a weight: where numbers drawn for them, and zeros for all others, give
    something else than zero. What is about zero may be either.
    """
    odd = ~np.isfinite(before)
    drawn = np.random.default_rng(0).uniform(1, 2, before.shape)
    reach = np.abs(recomputed(np.where(odd, drawn, 0.0), after.shape[:-1], method, kernel=edit.kernel))
    lost = ~np.isfinite(after)
    astray = int(np.count_nonzero(lost & (reach == 0)) + np.count_nonzero(~lost & (reach > 1e-9)))
    clean = np.where(odd, 0.0, before)
    return clean, np.where(lost, recomputed(clean, after.shape[:-1], method, kernel=edit.kernel), after), astray


def _extras(edit: Edit, info: TensorInfo, sides: Mapping[str, int]) -> bytes:
    """The bytes of a tensor's rows that belong to no place."""
    if edit.kernel or not edit.extra:
        return b""
    items = storage(read_bytes(info), info.dtype, info.shape)
    if edit.layout.spec == TABLE:
        return bytes(items[0, : edit.extra].tobytes())
    parts = edit.split(items, sides)
    return bytes(parts.prefix.tobytes() + parts.suffix.tobytes())


def _deviation(edit: Edit, dtype: str, before: Array, after: Array, method: Method, *, own: bool = False) -> _Deviation:
    """How far `after`, as stored in `dtype`, is from `before` resampled by torch; both (h, w, carried).

    `own`: it must be as near as posinterp's are.
    """
    exact = recomputed(before, after.shape[:-1], method, kernel=edit.kernel)
    exact = np.maximum(exact, 0) if edit.floor else exact
    exact = np.clip(exact, -LARGEST.get(dtype, np.inf), LARGEST.get(dtype, np.inf))
    places = tuple(range(after.ndim - 1))
    # A channel at a time: one with large values must not hide what is wrong with the others.
    scale = np.maximum(np.abs(before).max(places), np.abs(exact).max(places))
    coarse = max(1.0, max(*before.shape[:-1], *after.shape[:-1]) / FINE)
    tolerance = OWN if own else FOREIGN * coarse
    step, smallest = STEPS.get(dtype, (0.0, 0.0))
    allowed = tolerance * scale + step * np.abs(exact) + smallest
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(after - exact)
        share = np.where(off > 0, off / allowed, 0.0) + np.where(np.isfinite(off), 0.0, np.nan)
        return _Deviation(float(off.max()), float(share.max()), float(off.max() / (np.abs(exact).max() or 1.0)))


def _likeness(edit: Edit, dtype: str, before: Array, after: Array, method: Method) -> str:
    """What a wrong table looks like instead."""
    if not np.isfinite(after).all():
        return ""
    odd = all(n % 2 for n in (*before.shape[:-1], *after.shape[:-1])) and before.ndim == 3 and not edit.kernel
    others = [one for one in CANDIDATES[: 4 if edit.kernel else None] if one != method]
    tries = [(_deviation(edit, dtype, before, after, one), one) for one in others if odd or one.name != "geometric"]
    best, one = min(tries, key=lambda pair: pair[0].relative)
    if best.fine:
        return f"; it is {one}"
    return f"; nor is it any other method (nearest: {one}, off by {best.largest:.1e})"
