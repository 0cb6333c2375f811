"""Deciding everything, touching nothing: which model a checkpoint holds, its size, and what each tensor becomes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import config as configs
from .errors import Ambiguous, BadConfig, BadFile, BadSize, BadUsage, BadValues, Mismatch, UnknownFamily
from .families import FAMILIES, family_named
from .layout import Layout, Parts
from .resampling import Matrix, Method, axis_weights, patch_weights
from .rules import Family, Grid, Rule, Shapes, matches, named
from .size import Size
from .store import Checkpoint, open_checkpoint
from .store.tensors import FLOATS, byte_size

KERNEL = Layout("o i h w")
LARGEST_TABLE = 16 << 30  # bytes: what no model has, and most machines cannot hold
UNEXPLAINED = 16  # prefix rows that no token in the file explains, when the user vouches for the size
POSITIONAL = re.compile(r"pos(ition(al)?)?_?emb|rel_?pos|relative_position|attention_bias|rope|freqs")


@dataclass(frozen=True)
class Model:
    """One model in a checkpoint: a file may hold several (teacher and student, weights and their average).

    `root`: what stands before its tensors' names; `tensors`: by their names below it; `grid`: places, {"h", "w"};
    `extra`: rows of each ruled tensor that belong to no place; `origin`: what says the source size.
    """

    root: str
    family: Family
    tensors: Shapes
    ruled: Mapping[str, Rule]
    stride: tuple[int, int]
    grid: Grid
    extra: Mapping[str, int]
    src_img: Size | None
    origin: str

    @property
    def prefix(self) -> int:
        """Prefix rows of the position table."""
        return max((n for name, n in self.extra.items() if self.ruled[name].extra is None), default=0)


@dataclass(frozen=True)
class Edit:
    """What one tensor becomes. `before`, `after`: the sides of its grid; `prefix`: rows before the grid."""

    name: str
    layout: Layout
    before: Grid
    after: Grid
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    method: Method
    extra: int = 0
    kernel: bool = False

    @property
    def weights(self) -> list[Matrix]:
        """One matrix per axis of the grid."""
        axes = [(self.before[axis], self.after[axis]) for axis in self.layout.grid_axes]
        if self.kernel:
            return [patch_weights(old, new, self.method) for old, new in axes]
        return [axis_weights(old, new, self.method) for old, new in axes]

    def split(self, tensor: Any) -> Parts:
        return self.layout.split(tensor, self.before, prefix=self.extra)

    def join(self, parts: Parts) -> Any:
        return self.layout.join(parts, self.new_shape, self.after)


@dataclass(frozen=True)
class Plan:
    """Everything that `resize` will do. Printing it is `--dry-run`; executing it is `writing.execute`."""

    source: Checkpoint
    models: tuple[Model, ...]
    dst_img: Size
    edits: tuple[Edit, ...]
    drop: tuple[str, ...]
    config: tuple[configs.ConfigEdit, ...]
    patch: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

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
    """What the user asked for, beside the size."""

    method: str = "auto"
    antialias: bool | None = None
    align_corners: bool | None = None

    def apply(self, method: Method) -> Method:
        """A family's method with the user's wishes put in."""
        name = None if self.method == "auto" else self.method
        return method.changed(name, antialias=self.antialias, align_corners=self.align_corners)


def plan(
    ckpt: str | Path | Checkpoint,
    img: int | Sequence[int] | str | None = None,
    *,
    src_img: int | Sequence[int] | str | None = None,
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
    patch: int | None = None,
    family: str | None = None,
) -> Plan:
    """Decide what taking a checkpoint to another size changes. Reads headers only.

    Args:
        ckpt: a path, a hub or timm name, or an opened checkpoint.
        img: the target size, one side or (height, width), or "384x512". None: the source's, for a new `patch`.
        src_img: the size the checkpoint is for. None: its config says, else its tensors prove it.
        method: "auto" (what the family's home library does), or a name of `resampling.NAMES`.
        antialias, align_corners: change that part of the method.
        patch: the new side of the patch, in pixels; the patch kernel is resampled with the table.
        family: a family's name, or a model name of the home library, instead of what the tensors say.

    Raises:
        BadSize, BadUsage: the arguments cannot be met; NotFound, BadFile, BadConfig, HubError: the checkpoint cannot
        be opened; UnknownFamily, Ambiguous, Mismatch, BadValues: it cannot be understood, or must not be touched.
    """
    source = ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt)
    wish = Wish(method, antialias, align_corners)
    wish.apply(Method("bicubic"))  # a misspelt method is a mistake, whatever the checkpoint
    models = models_of(source, family=family, src_img=src_img)
    dst_img = _target(models, img, patch)
    return make_plan(source, models, dst_img, wish, patch=patch)


def models_of(
    source: Checkpoint,
    *,
    family: str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    architecture: str | None = None,
) -> list[Model]:
    """The models of an opened checkpoint, by all that it says of itself; `architecture`: if it does not say that."""
    named = architecture_of(source) or architecture
    recorded = source.recipe.get("family")
    if named is None and family is None and any(one.name == recorded for one in FAMILIES):
        family = recorded
    return find_models(
        source.tensors,
        architecture=named,
        family=family,
        claims=[*configs.source_sizes(source.config), *configs.recorded_size(source)],
        src_img=None if src_img is None else as_size(src_img),
    )


def architecture_of(source: Checkpoint) -> str | None:
    """The home library's name of the model, where something says it: the config, the hub, a training script's note."""
    if named := configs.architecture(source.config):
        return named
    if source.architecture and (source.fetched or any(family.knows(source.architecture) for family in FAMILIES)):
        return source.architecture
    return None  # a training script may call its model anything


def as_size(value: int | Sequence[int] | str) -> Size:
    """A size from whatever a caller has. Raises BadSize."""
    return Size.parse(value) if isinstance(value, str) else Size.of(value)


def _target(models: Sequence[Model], img: int | Sequence[int] | str | None, patch: int | None) -> Size:
    if img is not None:
        return as_size(img)
    if patch is None:
        raise BadUsage("no target size was given", hint="say it with --img, as 384 or 384x512")
    if models[0].src_img is None:
        raise Ambiguous("the size the checkpoint is for is not known", hint="say the target size with --img")
    return models[0].src_img


def make_plan(source: Checkpoint, models: Sequence[Model], dst_img: Size, wish: Wish, *, patch: int | None) -> Plan:
    """The plan for models that have been found and measured."""
    sides = None if patch is None else (patch, patch)
    edits: list[Edit] = []
    notes: list[str] = []
    for model in models:
        edits += model_edits(model, dst_img, wish, patch=sides)
        notes += _notes(model)
    _check_values(source.tensors, edits)
    drop = tuple(
        model.root + name for model in models for glob in model.family.drop for name in named(glob, model.tensors)
    )
    edited = configs.timm_edits(source.config, dst_img, patch=sides if _kernel_changes(models, sides) else None)
    return Plan(source, tuple(models), dst_img, tuple(edits), drop, edited, sides, tuple(dict.fromkeys(notes)))


def _kernel_changes(models: Sequence[Model], patch: tuple[int, int] | None) -> bool:
    return patch is not None and any(m.family.patch.size(m.tensors) != patch for m in models if m.family.patch.kernel)


def _notes(model: Model) -> list[str]:
    known = model.family.prefix_counts(model.tensors)
    odd = [(name, n) for name, n in model.extra.items() if model.ruled[name].extra is None and n not in known]
    return [f"{name} has {n} prefix row{'s' * (n > 1)} that no token in the file explains; kept" for name, n in odd]


def _check_values(tensors: Mapping[str, Any], edits: Iterable[Edit]) -> None:
    for edit in edits:
        dtype = tensors[edit.name].dtype
        if dtype != "BF16" and dtype not in FLOATS:
            raise BadValues(
                f"{edit.name} is stored as {dtype}; only F16, BF16, F32 and F64 tables can be resampled",
                hint="de-quantise or cast the checkpoint first",
            )
        if byte_size(dtype, edit.new_shape) > LARGEST_TABLE:
            gib = byte_size(dtype, edit.new_shape) >> 30
            raise BadSize(f"{edit.name} would have {gib} GiB at that size: too large", hint="check the target size")


# ------------------------------------------------------------------ which models a checkpoint holds


def find_models(
    tensors: Mapping[str, Any],
    *,
    architecture: str | None = None,
    family: str | None = None,
    claims: Sequence[tuple[str, Size]] = (),
    src_img: Size | None = None,
) -> list[Model]:
    """Every model of a known family among the tensors, each with its source size.

    `claims`: what says the source size, and what it says, the more trustworthy first; `src_img`: the user's word.

    Raises UnknownFamily where there is none, with the near misses; Ambiguous, Mismatch, BadConfig or BadFile where the
    size cannot be told.
    """
    if not tensors:
        raise UnknownFamily("the file holds no tensors: nothing to resize", hint="is it a checkpoint of weights?")
    asked = family_named(family) if family else None
    if asked and all(family != one.name for one in asked):
        architecture = family  # the name of a model says more than a family's
    known = [one for one in asked or FAMILIES if _named_so(one, architecture, asked is not None)]
    found = _identify(tensors, known, named=asked is not None or architecture is not None)
    if not found:
        raise _unknown(tensors, known or list(FAMILIES), architecture, family)
    return [
        _measure(root, one, below, claims=claims, src_img=src_img, vouched=asked is not None)
        for root, (one, below) in found.items()
    ]


def _named_so(family: Family, architecture: str | None, asked: bool) -> bool:
    return asked or architecture is None or not family.archs or family.knows(architecture)


def _identify(
    tensors: Mapping[str, Any], families: Sequence[Family], *, named: bool
) -> dict[str, tuple[Family, dict[str, Any]]]:
    """Root -> the first family that holds there, and the tensors below."""
    found: dict[str, tuple[Family, dict[str, Any]]] = {}
    below: dict[str, dict[str, Any]] = {}
    for family in families:
        for root in dict.fromkeys(family.roots(tensors)):
            if root in found:
                continue
            if root not in below:
                below[root] = {name[len(root) :]: info for name, info in tensors.items() if name.startswith(root)}
            if family.holds(below[root], named=named):
                found[root] = family, below[root]
    return found


def _unknown(
    tensors: Mapping[str, Any], families: Sequence[Family], architecture: str | None, asked: str | None
) -> UnknownFamily:
    """Says what was looked for and what came near."""
    positions = [f"{name} {_shape(info.shape)}" for name, info in tensors.items() if POSITIONAL.search(name)]
    near = [
        (len(family.missing(below)), family.name, family.missing(below))
        for family in families
        for root in list(dict.fromkeys(family.roots(tensors)))[:4]
        for below in [{name[len(root) :]: info for name, info in tensors.items() if name.startswith(root)}]
    ]
    if asked:
        missing = sorted(near)[0][2] if near else list(families[0].has)
        return UnknownFamily(f"this is no {asked}: it lacks {', '.join(missing)}", hint="leave --family out")
    if not positions:
        return UnknownFamily(
            "no known family, and no position embedding: nothing to resize",
            hint="`posinterp families` lists what is known; --family NAME says which it is",
        )
    which = f"timm's {architecture} is" if architecture else "these tensors are"
    hint = (
        f"nearest: {sorted(near)[0][1]}, which wants {', '.join(sorted(near)[0][2])}; " if near and near[0][0] else ""
    )
    return UnknownFamily(
        f"{which} of no family known here; its positions: {', '.join(positions[:3])}{' ...' * (len(positions) > 3)}",
        hint=hint + "`posinterp families` lists what is known; --family NAME says which it is",
    )


# ------------------------------------------------------------------ at which size


def _measure(
    root: str,
    family: Family,
    tensors: Mapping[str, Any],
    *,
    claims: Sequence[tuple[str, Size]],
    src_img: Size | None,
    vouched: bool,
) -> Model:
    """The model's source size, by the order of truth: the user, the config, the tensors themselves."""
    ruled = family.ruled(tensors)
    _check_unruled(family, tensors, ruled, vouched)
    for name in ruled:
        if 0 in tensors[name].shape:
            raise BadFile(
                f"{root}{name} has shape {_shape(tensors[name].shape)}, no elements: a shard of partitioned training?",
                hint="gather the weights first (DeepSpeed: zero_to_fp32.py)",
            )
    _check_width(family, tensors, ruled)
    stride = family.patch.stride(tensors)
    blank = Model(root, family, tensors, ruled, stride, {}, {}, None, "")
    if src_img is not None:
        return _claimed(blank, src_img, "--src-img", vouched=True) or _contradicts(blank, [("--src-img", src_img)])
    if not ruled:
        return replace(blank, src_img=claims[0][1] if claims else None, origin=claims[0][0] if claims else "")
    for where, size in claims:
        if model := _claimed(blank, size, where):
            return model
    if claims:
        return _contradicts(blank, claims)
    return _proven(blank)


def _claimed(model: Model, size: Size, where: str, *, vouched: bool = False) -> Model | None:
    """The model at a size that something claims, if every tensor agrees with it."""
    if not model.ruled:
        return replace(model, src_img=size, origin=where)
    grid = {"h": size[0] // model.stride[0], "w": size[1] // model.stride[1]}
    extra = _fits(model, grid, vouched=vouched)
    return None if extra is None else replace(model, grid=grid, extra=extra, src_img=size, origin=where)


def _fits(model: Model, grid: Grid, *, vouched: bool = False) -> dict[str, int] | None:
    """Each ruled tensor's number of extra rows if all of them hold exactly this grid; None if one does not."""
    if 0 in grid.values():
        return None
    known = model.family.prefix_counts(model.tensors)
    out = {}
    for name, rule in model.ruled.items():
        extra = rule.layout.fits(model.tensors[name].shape, rule.sides(grid))
        if extra is None:
            return None
        explained = extra in (known if rule.extra is None else rule.extra)
        if not explained and not (vouched and rule.extra is None and extra <= UNEXPLAINED):
            return None
        out[name] = extra
    return out


def _proven(model: Model) -> Model:
    """The model at the one grid that its tensors allow: the sides they show, else a square."""
    shown: dict[str, int] = {}
    for name, rule in model.ruled.items():
        shown |= rule.readable(model.tensors[name].shape)
    longest = max(max(model.tensors[name].shape) for name in model.ruled)
    tries = [shown] if shown.keys() >= {"h", "w"} else [{"h": g, "w": g} for g in range(1, math.isqrt(longest) + 2)]
    fitting = [(grid, extra) for grid in tries if (extra := _fits(model, grid)) is not None]
    # Rows that could all be prefix rows prove no grid: a table of one row is one place, or a class token's row.
    known = model.family.prefix_counts(model.tensors)
    fitting = [(grid, extra) for grid, extra in fitting if shown or grid["h"] ** 2 not in known]
    if len(fitting) != 1:
        raise _ambiguous(model, [grid for grid, _ in fitting])
    grid, extra = fitting[0]
    size = Size.of((grid["h"] * model.stride[0], grid["w"] * model.stride[1]))
    origin = "its shape" if shown else "a square grid of its rows"
    return replace(model, grid=grid, extra=extra, src_img=size, origin=origin)


def _ambiguous(model: Model, grids: Sequence[Grid]) -> Ambiguous:
    name = next(iter(model.ruled))
    what = f"{model.root}{name} of shape {_shape(model.tensors[name].shape)}"
    counts = " or ".join(map(str, model.family.prefix_counts(model.tensors)))
    rows = f"{counts} prefix row{'' if counts == '1' else 's'}"
    hint = "say the image size it was made for: --src-img HEIGHTxWIDTH (or one side)"
    if grids:
        several = " or ".join(f"{grid['h']}×{grid['w']}" for grid in grids)
        return Ambiguous(f"{what} could be a grid of {several} with {rows}", hint=hint)
    return Ambiguous(f"{what} holds no square grid beside {rows}", hint=hint)


def _contradicts(model: Model, claims: Sequence[tuple[str, Size]]) -> Model:
    """Raises: what is claimed of the size, and what the tensors say."""
    where, size = claims[0]
    name = next(iter(model.ruled))
    grid = f"{size[0] // model.stride[0]}×{size[1] // model.stride[1]}"
    message = f"{where} says {size}, a grid of {grid}; {model.root}{name} of shape {_shape(model.tensors[name].shape)}"
    try:
        proven = _proven(model)
        message += f" is for {proven.src_img} ({proven.grid['h']}×{proven.grid['w']})"
        right = str(proven.src_img)
    except Ambiguous:
        message += f" disagrees (prefix rows: {' or '.join(map(str, model.family.prefix_counts(model.tensors)))})"
        right = "HEIGHTxWIDTH"
    if where == "--src-img":
        raise Mismatch(message, hint=f"leave --src-img out, or give the size the checkpoint is for ({right})")
    raise BadConfig(message, hint=f"--src-img {right} overrides that")


def _check_unruled(family: Family, tensors: Mapping[str, Any], ruled: Mapping[str, Rule], vouched: bool) -> None:
    """A position tensor that no rule speaks of would be left at its old size, in silence."""
    for name, info in tensors.items():
        spoken = name in ruled or name in family.tokens or any(matches(g, name) for g in family.drop + family.leave)
        if not vouched and not spoken and len(info.shape) > 1 and POSITIONAL.search(name):
            raise UnknownFamily(
                f"{name} {_shape(info.shape)} looks like a position tensor; {family.name} has no rule for it",
                hint=f"--family {family.name} leaves it as it is",
            )


def _check_width(family: Family, tensors: Mapping[str, Any], ruled: Mapping[str, Rule]) -> None:
    tables = [name for name, rule in ruled.items() if not rule.offsets and rule.layout.axes[-1] == ("c",)]
    for name in tables:
        width = tensors[name].shape[-1]
        for token in family.tokens:
            if token in tensors and tensors[token].shape[-1:] != (width,):
                raise Mismatch(
                    f"{name} is {width} wide, {token} of shape {_shape(tensors[token].shape)} is not",
                    hint="the two are not of one model",
                )
        kernel = family.patch.kernel
        if kernel is not None and kernel in tensors and tensors[kernel].shape[:1] != (width,):
            raise Mismatch(
                f"{name} is {width} wide, {kernel} of shape {_shape(tensors[kernel].shape)} gives another width",
                hint="the two are not of one model",
            )


# ------------------------------------------------------------------ what becomes of its tensors


def model_edits(model: Model, dst_img: Size, wish: Wish, *, patch: tuple[int, int] | None = None) -> list[Edit]:
    """The edits that take one model to a size. A tensor whose grid stays is not edited."""
    after = target_grid(model, dst_img, patch=patch)
    edits = []
    for name, rule in model.ruled.items():
        old, new = rule.sides(model.grid), rule.sides(after)
        if any(old[axis] != new[axis] for axis in rule.layout.grid_axes):
            shape = tuple(model.tensors[name].shape)
            how = wish.apply(rule.method or model.family.method)
            shaped = rule.layout.reshaped(shape, old, new)
            edits.append(Edit(model.root + name, rule.layout, old, new, shape, shaped, how, model.extra[name]))
    if patch is not None and (kernel := model.family.patch.kernel) and model.family.patch.size(model.tensors) != patch:
        edits.append(_kernel_edit(model, kernel, patch, wish))
    return edits


def _kernel_edit(model: Model, kernel: str, patch: tuple[int, int], wish: Wish) -> Edit:
    shape = tuple(model.tensors[kernel].shape)
    old, new = ({"h": h, "w": w} for h, w in (shape[-2:], patch))
    how = wish.apply(model.family.method)
    return Edit(model.root + kernel, KERNEL, old, new, shape, (*shape[:2], *patch), how, kernel=True)


def target_grid(model: Model, dst_img: Size, *, patch: tuple[int, int] | None = None) -> Grid:
    """Places a side at the target size. Raises BadSize, with the nearest good sizes."""
    if patch is not None:
        if model.family.patch.kernel is None or model.family.patch.stem > 1:
            raise BadUsage(f"{model.family.name} has a convolutional stem: its patch size cannot change")
        if not 1 <= patch[0] <= 1024:
            raise BadUsage(f"a patch of {patch[0]} pixels a side is not between 1 and 1024")
    stride = model.family.patch.stride(model.tensors, kernel=patch)
    for side, step in zip(dst_img, stride, strict=True):
        if side % step:
            what = "patch size" if model.family.patch.stem == 1 else "stride of the stem"
            near = sorted({max(side // step, 1) * step, (side // step + 1) * step})
            raise BadSize(
                f"{side} is not a multiple of the {what} {step}",
                hint=f"the nearest size{' is' if len(near) == 1 else 's are'} {' and '.join(map(str, near))}",
            )
    return {"h": dst_img[0] // stride[0], "w": dst_img[1] // stride[1]}


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "a scalar"
