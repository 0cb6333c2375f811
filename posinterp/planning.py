"""Deciding everything, touching nothing: what each tensor of a checkpoint becomes, and each field of its config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import config as configs
from .errors import Ambiguous, BadSize, BadUsage, BadValues
from .layout import Layout, Parts
from .method import Method
from .models import POSITIONAL, Model, models_of
from .rules import Family, Grid, named
from .size import Size, as_size, shape_text
from .store import Checkpoint, open_checkpoint
from .store.tensors import FLOATS, byte_size

if TYPE_CHECKING:
    from .resampling import Matrix

KERNEL = Layout("o i h w")
LARGEST_TABLE = 16 << 30  # bytes: what no model has, and most machines cannot hold


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
        from .resampling import axis_weights, patch_weights  # numpy, which no plan needs

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
    asked_family: str | None = None

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
    return replace(make_plan(source, models, dst_img, wish, patch=patch), asked_family=family)


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
    notes += _left_alone(source, models)
    _check_values(source.tensors, edits)
    drop = tuple(
        model.root + name for model in models for glob in model.family.drop for name in named(glob, model.tensors)
    )
    edited = configs.timm_edits(source.config, dst_img, patch=sides if _kernel_changes(models, sides) else None)
    return Plan(source, tuple(models), dst_img, tuple(edits), drop, edited, sides, tuple(dict.fromkeys(notes)))


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
    side = model.grid["h"]
    return [
        f"{tables[0]} is read as {side}×{side} without a row for the class token; "
        f"if it is {side - 1}×{side + 1} or the like with one, say --src-img"
    ]


def _notes(model: Model) -> list[str]:
    known = model.family.prefix_counts(model.tensors)
    odd = [(name, n) for name, n in model.extra.items() if model.ruled[name].extra is None and n not in known]
    return _without_class_row(model) + [
        f"{name} has {n} prefix row{'s' * (n > 1)} that no token in the file explains; kept" for name, n in odd
    ]


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
