"""The sentences and fragments of an answer: a plan, an edit, a table's health, for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..size import shape_text

if TYPE_CHECKING:
    from ..pegging import PegPlan
    from ..planning import Edit, Plan

T = TypeVar("T")

DIRECTIONS = {1: ("",), 2: (" down", " across"), 3: (" in time", " down", " across")}


def headline(plan: Plan) -> str:
    """The plan in one line: family, sizes, patch, method."""
    parts = [plan.family.name]
    before, after = plan.src_img or "?", plan.dst_img
    parts.append(f"{before} → {after}" if str(before) != str(after) else f"{after}")
    stride = plan.models[0].stride
    own = str(stride[0]) if stride[0] == stride[1] else f"{stride[0]}x{stride[1]}"
    word = "patch" if plan.family.patch.resizable else "stride"
    if stride != (1, 1):
        parts.append(f"{word} {own}" + (f" → {plan.patch[0]}" if plan.patch and plan.patch != stride else ""))
    if plan.edits:
        parts.append(str(plan.method))
    return " · ".join(parts)


def why_nothing(plan: Plan) -> str:
    """Why a plan resamples nothing."""
    if str(plan.src_img) == str(plan.dst_img):
        return "it is at that size already"
    if not plan.models[0].ruled:
        return plan.family.why_nothing
    windows = any(rule.window for rule in plan.models[0].ruled.values())
    return "its tables span windows, and those stay" if windows else "no tensor's grid changes"


def grids_text(plan: Plan, edit: Edit) -> str:
    """The grids of an edit, with what stays beside them, and its method where it is not the plan's."""
    if edit.kernel:
        return f"patch kernel, pseudo-inverse of {edit.method}"
    sides = [("×".join(str(grid[axis]) for axis in edit.layout.grid_axes)) for grid in (edit.before, edit.after)]
    extra = (
        f"{edit.extra} {'prefix' if 'p' in str(edit.layout) and not edit.suffix else 'extra'} + "
        if edit.layout.has_extras and edit.extra
        else ""
    )
    how = "computed anew" if edit.method.computes else edit.method
    other = f"   {how}" if edit.method != plan.method else ""
    return f"{extra}{sides[0]} → {sides[1]}{other}"


def rest_text(plan: Plan) -> str:
    """What becomes of the tensors that are not resampled."""
    copied = len(plan.source.tensors) - len(plan.edits) - len(plan.drop)
    return f"{copied} {'other ' if plan.edits else ''}tensor{'s' * (copied != 1)} copied" + _dropped(plan)


def _dropped(plan: Plan) -> str:
    if not plan.drop:
        return ""
    return (
        f", {len(plan.drop)} dropped: {', '.join(plan.drop[:3])}{' ...' * (len(plan.drop) > 3)} (computed by the model)"
    )


def expectation(plan: PegPlan) -> str:
    """What to expect of a PEG model, in plain words. The figures are those of docs/peg_recipes.py."""
    if plan.record.get("steps"):
        return "it was taught to answer at other sizes as the source does at its own; measure it at those you will use"
    if plan.mode == "hybrid":
        resized = plan.resizing.edits
        return (
            "it computes what the source, resized, computes" if resized else "it computes what the source computes"
        ) + (" until its PEG is trained" if resized else ", bit for bit, until its PEG is trained")
    start = (
        "a start for training, not a model to use: on a small ViT, 37 to 41 points of accuracy of 79 were lost at once"
    )
    if plan.mode == "replace":
        return f"{start}, and 7 to 17 after 250 steps of fine-tuning (docs/peg.md)"
    return f"{start}, and about one is left after 1000 steps of distillation (docs/peg.md)"


def folded(edits: Sequence[Edit]) -> list[tuple[str, Edit]]:
    """Edits of the same kind in many blocks as one line: blocks.*.attn.rel_pos_h (12)."""
    kinds = ((edit.name, (edit.shape, edit.new_shape, str(edit.method)), edit) for edit in edits)
    return [(name, group[0]) for name, group in _grouped(kinds)]


def kinds(tensors: Sequence[dict[str, Any]], *, apart: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """Inspected tensors, those of the same kind in many blocks together; `apart`: each by itself."""
    if apart:
        return [(tensor["name"], [tensor]) for tensor in tensors]
    return _grouped((one["name"], (one["shape"], one["dtype"], one["layout"]), one) for one in tensors)


def _grouped(items: Iterable[tuple[str, Any, T]]) -> list[tuple[str, list[T]]]:
    """Items by the kind of their name, where numbers are any, and what else must be the same."""
    import re

    groups: dict[str, list[tuple[str, T]]] = {}
    kinds: dict[str, str] = {}
    for name, same, item in items:
        kind = re.sub(r"\d+", "*", name)
        key = f"{kind} {same}"
        kinds[key] = kind
        groups.setdefault(key, []).append((name, item))
    return [
        (f"{kinds[key]} ({len(group)})" if len(group) > 1 else group[0][0], [item for _, item in group])
        for key, group in groups.items()
    ]


def health_lines(group: Sequence[dict[str, Any]]) -> Iterable[str]:
    """How tables of one kind fare, as means over them."""
    found = [tensor["health"] for tensor in group if tensor["health"] and tensor["health"]["norm"]]
    if not found:
        return
    norm, spread = (_mean([one["norm"][key] for one in found]) for key in ("mean", "std"))
    parts = [f"norms {norm:.3g} ± {spread:.2g}"]
    if all(one["alike"] for one in found):
        alike = [_mean(one) for one in zip(*(one["alike"] for one in found), strict=True)]
        words = DIRECTIONS[len(alike)]
        parts.append(
            "neighbours alike " + ", ".join(f"{like:.2f}{word}" for like, word in zip(alike, words, strict=True))
        )
    if all(one["structure"] is not None for one in found):
        parts.append(f"rows and columns explain {_mean([one['structure'] for one in found]):.0%}")
    if all(one["rank"] is not None for one in found):
        parts.append(f"effective rank {_mean([one['rank'] for one in found]):.1f}")
    yield "; ".join(parts)


def ills(group: Sequence[dict[str, Any]]) -> Iterable[str]:
    """What is wrong with tables of one kind, as far as their values tell."""
    told: dict[str, list[str]] = {}
    for tensor in group:
        found = tensor["health"] or {}
        if count := found.get("nonfinite"):
            told.setdefault(f"{count} value{'s' * (count != 1)} are not finite (NaN or Inf)", []).append(tensor["name"])
        if count := found.get("zero_rows"):
            every = "every place holds" if count == found["places"] else f"{count} places hold"
            told.setdefault(f"{every} nothing but 0", []).append(tensor["name"])
        if other := found.get("looks_like"):
            text = f"read as {shape_text(tensor['grid'])}, but the values are those of a grid of {shape_text(other)}"
            told.setdefault(text, []).append(tensor["name"])
    for text, names in told.items():
        yield text if len(names) == len(group) else f"{some(names, 3)}: {text}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def in_bytes(count: int) -> str:
    """A number of bytes, as people say it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def some(names: Sequence[str], most: int = 6) -> str:
    """The first of some names, and that there are more."""
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def value_text(value: Any) -> str:
    """A value of a config."""
    return "-" if value is None else json.dumps(value)


def escaped(text: str, more: str = "") -> str:
    """Text in a workflow command of GitHub's (actions/toolkit, packages/core/src/command.ts)."""
    for mark in ("%", "\r", "\n", *more):
        text = text.replace(mark, f"%{ord(mark):02X}")
    return text


def quoted(path: Path | str) -> str:
    """A path or text as a shell takes it."""
    import shlex

    return shlex.quote(str(path))


def columns() -> int:
    """Of the terminal; 80 where there is none."""
    return max(shutil.get_terminal_size().columns, 20)
