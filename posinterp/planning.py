"""Deciding everything, touching nothing: what each tensor of a checkpoint becomes, and each field of its config."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import config as configs
from .errors import Ambiguous, BadSize, BadUsage, BadValues, Mismatch, Unsupported
from .layout import Layout, Parts
from .measuring import POSITIONAL, ROOT, Model, places_at
from .method import DISTANCES, SINES, Method
from .models import models_of
from .optimizer import CHOICES, moment_edits
from .rules import Cut, Family, Grid, Windows, named, rule_of
from .size import Size, as_size, shape_text
from .store import Checkpoint, open_checkpoint
from .store.tensors import FLOATS, INTEGERS, byte_size
from .windows import target_windows, window_arguments, window_notes, window_wish

if TYPE_CHECKING:
    from .resampling import Matrix

LARGEST_TABLE = 16 << 30  # bytes: what no model has, and most machines cannot hold


@dataclass(frozen=True)
class Edit:
    """What one tensor becomes. `before`, `after`: the sides of its grid.

    `extra`: rows that belong to no place, the last `suffix` of them behind the grid if the layout has both. `view`: the
    shape of which the layout speaks, where the tensor is stored folded. `floor`: nothing becomes negative.
    """

    name: str
    layout: Layout
    before: Grid
    after: Grid
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    method: Method
    extra: int = 0
    kernel: bool = False
    suffix: int = 0
    view: tuple[int, ...] = ()
    floor: bool = False

    @property
    def weights(self) -> list[Matrix]:
        """One matrix per axis of the grid."""
        from .resampling import axis_weights, patch_weights  # numpy, which no plan needs

        axes = [(self.before[axis], self.after[axis]) for axis in self.layout.grid_axes]
        if self.kernel:
            return [patch_weights(old, new, self.method) for old, new in axes]
        return [axis_weights(old, new, self.method) for old, new in axes]

    def split(self, tensor: Any, sides: Grid | None = None) -> Parts:
        """Take the tensor apart; `sides`: of its grid, if it is not the one from before."""
        grid = self.before if sides is None else sides
        if self.view:
            tensor = tensor.reshape(self.layout.reshaped(self.view, self.before, grid))
        return self.layout.split(tensor, grid, prefix=self.extra - self.suffix)

    def join(self, parts: Parts) -> Any:
        """Put the new tensor together."""
        shape = self.layout.reshaped(self.view, self.before, self.after) if self.view else self.new_shape
        return self.layout.join(parts, shape, self.after).reshape(self.new_shape)


@dataclass(frozen=True)
class Plan:
    """Everything that `resize` will do. Printing it is `--dry-run`; executing it is `writing.execute`.

    `moments`: edits of an optimizer's state, if `optimizer` says that it is kept.
    """

    source: Checkpoint
    models: tuple[Model, ...]
    dst_img: Size
    edits: tuple[Edit, ...]
    drop: tuple[str, ...]
    config: tuple[configs.ConfigEdit, ...]
    patch: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    asked_family: str | None = None
    asked_rules: tuple[str, ...] = ()
    windows: Windows = field(default_factory=dict)
    moments: tuple[Edit, ...] = ()
    optimizer: str = "drop"

    @property
    def family(self) -> Family:
        return self.models[0].family

    @property
    def src_img(self) -> Size | None:
        return self.models[0].src_img

    @property
    def method(self) -> Method:
        """The method of the table, or of the first tensor where there is none."""
        tables = [edit.method for edit in self.edits if not edit.kernel]
        return tables[0] if tables else self.family.method


@dataclass(frozen=True)
class Wish:
    """What the user asked for, beside the size. `window`: "keep", "scale", or what the constructor takes."""

    method: str = "auto"
    antialias: bool | None = None
    align_corners: bool | None = None
    window: Any = "keep"

    def apply(self, method: Method) -> Method:
        """A family's method with the user's wishes put in."""
        name = None if self.method == "auto" else self.method
        return method.changed(name, antialias=self.antialias, align_corners=self.align_corners)


def plan(
    ckpt: str | Path | Checkpoint,
    img: int | Sequence[int] | str | None = None,
    *,
    frames: int | None = None,
    src_img: int | Sequence[int] | str | None = None,
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
    patch: int | None = None,
    window: int | str | Sequence[Any] = "keep",
    family: str | None = None,
    rules: Sequence[str] = (),
    optimizer: str = "drop",
    look: bool = True,
) -> Plan:
    """Decide what taking a checkpoint to another size changes.

    Reads headers only; and a table's values, where nothing but a square number of rows says what its grid is.

    Args:
        ckpt: a path, a hub or timm name, or an opened checkpoint.
        img: the target size, one side or (height, width), or "384x512"; of clips and volumes also
            (frames, height, width), or "16x224x224". None: the source's, for a new `patch` or other `frames`.
        frames: of clips and volumes, where `img` does not say them. None: the source's.
        src_img: the size the checkpoint is for. None: its config says, else its tensors prove it.
        method: "auto" (what the family's home library does), a name of `resampling.NAMES`, or "sincos": a table that
            holds the fixed sines of MAE, I-JEPA or MoCo v3 is computed anew.
        antialias, align_corners: change that part of the method.
        patch: the new side of the patch, in pixels; the patch kernel is resampled with the table.
        window: for models whose tables span windows: "keep" (what the home library builds at that size), "scale" (as
            the image), or a window: one side, (height, width), or one of either for each stage; also as text: "8",
            "8x12", "12,12,24,12".
        family: a family's name, or a model name of the home library, instead of what the tensors say.
        rules: for tensors of which no family speaks: "GLOB = LAYOUT", as `rule_of` reads them.
        optimizer: of a training checkpoint: "drop" its state, or "keep" it, moments resampled as their parameters.
        look: at those values now. False: `execute` will, when it reads them.

    Raises:
        BadSize, BadUsage: the arguments cannot be met.
        NotFound, BadFile, BadConfig, HubError: the checkpoint cannot be opened.
        UnknownFamily, Ambiguous, Mismatch, BadValues, Unsupported: it cannot be understood, or must not be touched.
    """
    source = ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt)
    wish = Wish(method, antialias, align_corners, window_wish(window))
    wish.apply(Method("bicubic"))  # a misspelt method is a mistake, whatever the checkpoint
    models = models_of(source, family=family, src_img=src_img, rules=[rule_of(text) for text in rules])
    dst_img = _target(models, img, patch, frames)
    made = make_plan(source, models, dst_img, wish, patch=patch)
    if look:
        check_guesses(source, models)
        _check_formulas(source, made.edits)
    if optimizer not in CHOICES:
        raise BadUsage(f"--optimizer {optimizer!r} is no choice", hint=f"it is {' or '.join(CHOICES)}")
    if optimizer == "keep":
        made = replace(made, optimizer=optimizer, moments=moment_edits(source, made.edits))
    return replace(made, asked_family=family, asked_rules=tuple(rules))


def _check_formulas(source: Checkpoint, edits: Iterable[Edit]) -> None:
    """Raises BadValues for a tensor that is to be computed anew by a formula that it is not of."""
    for edit in edits:
        if edit.method.computes:
            from .computing import apply  # numpy, which other plans do without

            apply(edit, source.tensors[edit.name])


def _target(
    models: Sequence[Model], img: int | Sequence[int] | str | None, patch: int | None, frames: int | None
) -> Size:
    if img is not None:
        size = as_size(img)
        if frames is not None and size.frames not in (None, frames):
            raise BadUsage(f"--img {size} has {size.frames} frames, and --frames says {frames}", hint="say them once")
        return size if size.frames is not None else size.of_frames(models[0].frames if frames is None else frames)
    if patch is None and frames is None:
        raise BadUsage("no target size was given", hint="say it with --img, as 384 or 384x512")
    if models[0].src_img is None:
        raise Ambiguous("the size the checkpoint is for is not known", hint="say the target size with --img")
    return models[0].src_img if frames is None else models[0].src_img.of_frames(frames)


def make_plan(
    source: Checkpoint,
    models: Sequence[Model],
    dst_img: Size,
    wish: Wish,
    *,
    patch: int | tuple[int, int] | None,
) -> Plan:
    """The plan for models that have been found and measured. `patch`: one side, or (height, width)."""
    sides = (patch, patch) if isinstance(patch, int) else patch
    edits: list[Edit] = []
    notes: list[str] = []
    for model in models:
        edits += model_edits(model, dst_img, wish, patch=sides)
        notes += _notes(model)
    notes += _left_alone(source, models)
    _check_values(source.tensors, edits)
    drop = tuple(
        model.root + name for model in models for glob in model.family.drop for name in named(glob, model.tensors)
    )
    windows = target_windows(models[0], dst_img, wish.window)
    sizes = list(dict.fromkeys(model.src_img for model in models if model.ruled))
    if len(sizes) > 1 and source.config is not None:
        raise Unsupported(
            f"{source.path} holds towers for {' and '.join(map(str, sizes))}, and one size cannot be said of both",
            hint="take the towers out into files of their own",
        )
    before, after = models[0].grid, _grid_after(models[0], edits)
    edited = configs.edits(
        source,
        models[0].src_img,
        dst_img,
        places=(math.prod(before.values()), math.prod(after.values())),
        patch=sides if _kernel_changes(models, sides) else None,
        kernel=models[0].family.patch.size(models[0].tensors) if models[0].family.patch.resizable else None,
        takes_img_size=models[0].family.takes_img_size,
        arguments=window_arguments(models[0], windows) if source.config is not None else {},
    )
    notes += window_notes(models[0], windows, wish.window, told=source.config is not None)
    return Plan(
        source, tuple(models), dst_img, tuple(edits), drop, edited, sides, tuple(dict.fromkeys(notes)), windows=windows
    )


def check_guesses(source: Checkpoint, models: Sequence[Model]) -> None:
    """Raises Ambiguous for a grid that was guessed, and that its values deny."""
    if not any(model.origin == ROOT for model in models):
        return
    from . import health  # numpy

    health.check_guesses(models, lambda name: health.readable(source.tensors[name]))


def _grid_after(model: Model, edits: Sequence[Edit]) -> Grid:
    """The position table's grid after the edits."""
    name = next((name for name, grid in model.places.items() if grid is model.grid), "")
    return next((edit.after for edit in edits if edit.name == model.root + name), model.grid)


def _kernel_changes(models: Sequence[Model], patch: tuple[int, int] | None) -> bool:
    return patch is not None and any(m.family.patch.size(m.tensors) != patch for m in models if m.family.patch.kernel)


def _left_alone(source: Checkpoint, models: Sequence[Model]) -> list[str]:
    """Position tensors that belong to no model that was found: a decoder's, a predictor's, a text tower's."""
    outside = [
        f"{name} {shape_text(info.shape)}"
        for name, info in source.tensors.items()
        if len(info.shape) > 1
        and POSITIONAL.search(name)
        and not any(name.startswith(model.root) for model in models)
        and not re.search(r"optim|exp_avg", name)
    ]
    if not outside:
        return []
    return [f"left as they are, outside the model: {', '.join(outside[:4])}{' ...' * (len(outside) > 4)}"]


def _without_class_row(model: Model) -> list[str]:
    """A square of k² rows is also (k - 1)(k + 1) rows and a class token's: rarer, and not to be told apart."""
    tables = [name for name, rule in model.ruled.items() if rule.extra is None and model.extra[name] == 0]
    if not tables or "square" not in model.origin or 1 not in model.family.prefix_counts(model.tensors):
        return []
    side = model.places[tables[0]]["h"]
    return [
        f"{tables[0]} is read as {side}×{side} without a row for the class token; "
        f"if it is {side - 1}×{side + 1} or the like with one, say --src-img"
    ]


def _notes(model: Model) -> list[str]:
    known = model.family.prefix_counts(model.tensors)
    rows = {name: n - model.ruled[name].behind(model.tensors) for name, n in model.extra.items()}
    odd = [(name, n) for name, n in rows.items() if model.ruled[name].extra is None and n not in known]
    return _without_class_row(model) + [
        f"{name} has {n} prefix row{'s' * (n > 1)} that no token in the file explains; kept" for name, n in odd
    ]


def _check_values(tensors: Mapping[str, Any], edits: Iterable[Edit]) -> None:
    for edit in edits:
        dtype = tensors[edit.name].dtype
        if edit.method.name == DISTANCES:
            if dtype not in INTEGERS:
                raise BadValues(f"{edit.name} is stored as {dtype}; an index is of integers")
        elif dtype != "BF16" and dtype not in FLOATS:
            raise BadValues(
                f"{edit.name} is stored as {dtype}; only F16, BF16, F32 and F64 tables can be resampled",
                hint="de-quantise or cast the checkpoint first",
            )
        if byte_size(dtype, edit.new_shape) > LARGEST_TABLE:
            gib = byte_size(dtype, edit.new_shape) >> 30
            raise BadSize(f"{edit.name} would have {gib} GiB at that size: too large", hint="check the target size")


# ------------------------------------------------------------------ what becomes of its tensors


def model_edits(model: Model, dst_img: Size, wish: Wish, *, patch: tuple[int, int] | None = None) -> list[Edit]:
    """The edits that take one model to a size."""
    _check_target(model, dst_img, patch=patch)
    windows = target_windows(model, dst_img, wish.window)
    cut = _cut_after(model, patch)
    places = {name: _places_after(model, name, dst_img, windows, cut) for name in model.ruled}
    return edits_to(model, places, wish, patch=patch)


def _cut_after(model: Model, patch: tuple[int, int] | None) -> Cut:
    """How the image is cut with a new patch, if there is one."""
    return model.cut if patch is None else model.family.patch.cuts(model.tensors, model.arguments, kernel=patch)[0]


def edits_to(
    model: Model, places: Mapping[str, Grid], wish: Wish, *, patch: tuple[int, int] | None = None
) -> list[Edit]:
    """The edits that give each tensor so many places. A tensor whose grid stays is not edited."""
    edits: list[Edit] = []
    for name, rule in model.ruled.items():
        old, new = rule.sides(model.places[name]), rule.sides(places[name])
        if any(old[axis] != new[axis] for axis in rule.layout.grid_axes):
            shape, view = tuple(model.tensors[name].shape), model.shape(name)
            how = wish.apply(rule.method or model.family.method)
            if how.name == SINES and (rule.offsets or (*rule.layout.grid_axes,) != ("h", "w")):
                raise BadUsage(f"{name} is no table of places, which {SINES} would compute")
            try:
                shaped = rule.layout.reshaped(view, old, new)
            except Mismatch as error:
                raise BadSize(f"{name}: {error.message}", hint=_nearest(model, None)) from None
            if view != shape:
                shaped = (*shape[:-1], math.prod(shaped) // math.prod(shape[:-1]))
            behind, extra = rule.behind(model.tensors), model.extra[name]
            folded = view if view != shape else ()
            edits.append(
                Edit(model.root + name, rule.layout, old, new, shape, shaped, how, extra, suffix=behind, view=folded)
            )
            edits += _index_edit(model, name, old, new)
    if patch is not None and (kernel := model.family.patch.kernel) and model.family.patch.size(model.tensors) != patch:
        edits.append(_kernel_edit(model, kernel, patch, wish))
    return edits


def _index_edit(model: Model, table: str, old: Grid, new: Grid) -> Iterator[Edit]:
    """The edit of the index of a table of distances, if one is stored: which of its rows lies between which places."""
    name = model.family.index_of(table)
    if name is None or name not in model.tensors:
        return
    shape = tuple(model.tensors[name].shape)
    if len(shape) != 2 or shape[1] != math.prod(old.values()):
        raise Mismatch(f"{name} of shape {shape_text(shape)} is no index of {table}")
    step = 1 if shape[0] == shape[1] else 2
    shaped = math.prod(-(-side // step) for side in new.values()), math.prod(new.values())
    yield Edit(model.root + name, Layout("c (h w)"), old, new, shape, shaped, Method(DISTANCES))


def _kernel_edit(model: Model, kernel: str, patch: tuple[int, int], wish: Wish) -> Edit:
    shape = tuple(model.tensors[kernel].shape)
    layout, own = model.family.patch.kernel_axes(shape), model.family.patch.size(model.tensors)
    old, new = ({"h": h, "w": w} for h, w in (own, patch))
    how = wish.apply(model.family.method)
    if how.name == SINES:
        raise BadUsage(f"{SINES} is no way to resample a patch kernel", hint="resize the patch in a step of its own")
    return Edit(model.root + kernel, layout, old, new, shape, layout.reshaped(shape, old, new), how, kernel=True)


def _places_after(model: Model, name: str, dst_img: Size, windows: Windows, cut: Cut) -> Grid:
    """The places of one tensor at the target size. Raises BadSize where they would not be whole."""
    rule = model.ruled[name]
    if rule.side is not None:
        if not rule.side.whole(dst_img, cut):
            raise BadSize(f"{dst_img} gives {name} no whole number of places", hint=_nearest(model, dst_img))
        grid = places_at(model, name, dst_img, windows, cut=cut)
        if grid is None:
            raise BadSize(f"an image of {dst_img} is too small for {name}", hint=_nearest(model, None))
        return {"t": _times_after(model, name, dst_img), **grid} if "t" in model.places[name] else grid
    assert model.src_img is not None
    after: dict[str, int] = {}
    for axis, n, old, new in zip(("h", "w"), model.places[name].values(), model.src_img, dst_img, strict=True):
        if axis in rule.layout.grid_axes and n * new % old:
            step = old // math.gcd(n, old)
            raise BadSize(
                f"{name} has {n} places for {old} pixels: {new} gives no whole number of them",
                hint=f"the nearest sizes are {new // step * step or step} and {(new // step + 1) * step}",
            )
        after[axis] = max(n * new // old, 1)
    return after


def _times_after(model: Model, name: str, dst_img: Size) -> int:
    """The places along time at the target: as many as now if it says no frames."""
    span = model.cut.frames or 1
    if dst_img.frames is None:
        return model.places[name]["t"]
    if dst_img.frames % span:
        lower = dst_img.frames // span * span
        raise BadSize(
            f"{dst_img.frames} frames are no multiple of the {span} that a place of {name} spans",
            hint=f"the nearest numbers are {lower or span} and {lower + span}",
        )
    return dst_img.frames // span


def _nearest(model: Model, dst_img: Size | None) -> str:
    unit = model.unit[0]
    if dst_img is None:
        return f"sizes are multiples of {unit}" if unit > 1 else "take a larger one"
    near = sorted({max(side // unit, 1) * unit for side in dst_img} | {(side // unit + 1) * unit for side in dst_img})
    return f"sizes are multiples of {unit}, as {' and '.join(map(str, near[:2]))}"


def _check_target(model: Model, dst_img: Size, *, patch: tuple[int, int] | None) -> None:
    """Whether the model can have that size at all. Raises BadSize, with the nearest good sizes."""
    family = model.family
    if made := [name for name in family.other if model.arguments.get(name) is not None]:
        raise Unsupported(
            f"this {family.name} is built with {made[0]}={model.arguments[made[0]]}, which makes another model of it",
            hint="only those built without it can be taken to another size",
        )
    if family.refuses and tuple(dst_img) != tuple(model.src_img or ()):
        raise Unsupported(f"{family.name}: {family.refuses}", hint=family.note or "train it at that size")
    if patch is not None:
        if not family.patch.resizable:
            raise BadUsage(f"{family.name}: {family.patch.fixed}, so its patch size cannot change")
        if not 1 <= patch[0] <= 1024:
            raise BadUsage(f"a patch of {patch[0]} pixels a side is not between 1 and 1024")
    if family.square and not dst_img.square:
        raise BadSize(
            f"{family.name} models take square images only, not {dst_img}",
            hint=f"{max(dst_img)} is the square around it",
        )
    cut = _cut_after(model, patch)
    plain = family.unit is None
    what = "the patch size" if plain and family.patch.stem == 1 else "the stride of the stem" if plain else ""
    own = model.src_img or (0, 0)  # timm lets a rest of pixels go, and a model may be for such a size
    if dst_img.frames is not None and model.frames is None:
        raise BadSize(f"{dst_img} has frames, and {family.name} models take images", hint="say height and width only")
    if family.patch.steps is not None:  # what does not fill a step is let go, as the convolution does
        return
    for side, step, now in zip(dst_img, cut.stride if plain else model.unit, own, strict=True):
        if side % step and (side != now or patch is not None):
            near = sorted({max(side // step, 1) * step, (side // step + 1) * step})
            raise BadSize(
                f"{side} is not a multiple of {what or f'what a {family.name} model divides its image by,'} {step}",
                hint=f"the nearest size{' is' if len(near) == 1 else 's are'} {' and '.join(map(str, near))}",
            )
