"""Seeing what a position table holds, and what a resize makes of it: figures for a file or a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadUsage, Mismatch
from ..measuring import Model
from ..models import models_of
from ..planning import Plan, plan
from ..rules import rule_of
from ..similarity import Place
from ..store import Checkpoint, open_checkpoint
from ..tables import Table, chosen, is_bias, positions, read_table, resized_table, together
from .figures import FIGURES, Scene
from .image import figure_format, save_figure
from .panels import Figure
from .pegs import kernels_of, peg
from .terminal import terminal_lines

__all__ = ["NAMES", "Figure", "figure_format", "make_figure", "place_of", "save_figure", "terminal_lines"]

NAMES = (*FIGURES, "peg")


def make_figure(
    ckpt: str | Path | Checkpoint,
    show: str | None = None,
    *,
    img: int | Sequence[int] | str | None = None,
    against: str | Path | Checkpoint | None = None,
    tensor: str | None = None,
    at: Sequence[Place] = (),
    progress: bool = False,
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
    rules: Sequence[str] = (),
    **wishes: Any,
) -> Figure:
    """A figure of a checkpoint's positions, as numbers that `save_figure` or `terminal_lines` draws.

    Args:
        ckpt, src_img, family, rules: as `plan` takes them.
        show: a name of `NAMES`; None: "resize" where there are two sizes, else "tiles", or "bias" for a checkpoint
            without vectors, or "peg" for one without tables.
        img, **wishes: the size of the table beside it, and how it is resampled, as `plan` takes them.
        against: the checkpoint that `ckpt` was made from: the table before, where `ckpt` has the one after.
        tensor: the tensor's name in the checkpoint; None: the first that the figure speaks of.
        at: places of the source's grid, each (row, column).
        progress: show that of a download.

    Raises:
        What `plan` raises; Unsupported where there is no position tensor; BadUsage for a figure, tensor or place that
        cannot be had; Mismatch where the other checkpoint has not the tensor; BadValues for values that are not finite.
    """
    if show is not None and show not in NAMES:
        raise BadUsage(f"--show {show!r} is no figure", hint=f"the figures are {', '.join(NAMES)}")
    if img is not None and against is not None:
        raise BadUsage("--img and --against both say what to compare with", hint="leave one of them out")
    source = _opened(ckpt if against is None else against, progress)
    known: dict[str, Any] = {"src_img": src_img, "family": family}
    models = models_of(source, rules=[rule_of(text) for text in rules], **known)
    if show == "peg" or (show is None and not any(positions(models)) and kernels_of(models)):
        if img is not None or against is not None or at:
            raise BadUsage(
                "--show peg draws kernels, which no size changes", hint="leave --img, --against and --at out"
            )
        return peg(source, models, tensor)
    made = None if img is None else plan(source, img, rules=rules, **known, **wishes)
    other = None if against is None else _opened(ckpt, progress)
    moved = {edit.name for edit in made.edits} if made else set()

    def rank(model: Model, name: str) -> tuple[bool, bool]:
        return made is not None and model.root + name not in moved, is_bias(model, name) != (show == "bias")

    model, name = chosen(models, tensor, rank=rank, pegs=bool(kernels_of(models)))
    pairs = []
    for one in together(model, name):
        before = read_table(source, model, one)
        after = None
        if made is not None:
            after = resized_table(made, model, one) or _the_same(made, before, first=one == name)
        elif other is not None:
            after = _in_other(other, before, family, rules)
        pairs.append((before, after))
    before, after = pairs[0]
    show = show or ("bias" if before.bias else "tiles" if after is None else "resize")
    return FIGURES[show](Scene(source, model, name, before, after, made, other, tuple(at), tuple(pairs[1:])))


def _opened(ckpt: str | Path | Checkpoint, progress: bool) -> Checkpoint:
    return ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt, progress=progress)


def _the_same(made: Plan, before: Table, *, first: bool) -> Table:
    """A table that the other size leaves as it is: no reason to draw it, unless another stands beside it."""
    if not first:
        return replace(before, size=made.dst_img)
    windowed = bool(before.model.ruled[before.name[len(before.model.root) :]].window)
    raise BadUsage(
        f"{before.name} is the same at {made.dst_img}: there is nothing to compare",
        hint="it spans a window: --window scale, or --window N" if windowed else "say another size with --img",
    )


def _in_other(other: Checkpoint, before: Table, family: str | None, rules: Sequence[str]) -> Table:
    """The same tensor of another checkpoint."""
    models = models_of(other, family=family, rules=[rule_of(text) for text in rules])
    for model, name in positions(models):
        if model.root + name == before.name:
            after = read_table(other, model, name)
            if after.axes == before.axes and after.grid.shape[-1] == before.grid.shape[-1]:
                return after
            raise Mismatch(
                f"{before.name} has vectors of {after.grid.shape[-1]} numbers in {other.path}, and of "
                f"{before.grid.shape[-1]} in its source",
                hint="is it the same model?",
            )
    raise Mismatch(f"{other.path} has no position tensor {before.name}", hint="say one that both have with --tensor")


def place_of(text: str) -> Place:
    """A place from "ROW,COL". Raises BadUsage."""
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})?", text.replace(" ", "")):
        raise BadUsage(f"--at {text!r} is no place", hint="write ROW,COL, counted from 0, as 3,4")
    return tuple(int(word) for word in text.split(","))
