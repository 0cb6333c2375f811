"""Proving a resized checkpoint right, by other means than those that made it.

Bytes are compared with the source's, tables with torch's own kernels in float64, and the whole with the home library:
it must load the checkpoint, hold exactly its values, and compute with them. Nothing here uses `resampling`'s matrices,
and nothing assumes that posinterp made the file.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import config as configs
from .errors import Ambiguous, BadConfig, BadSize, BadUsage, PosinterpError
from .families import FAMILIES
from .models import Model, architecture_of, find_models, models_of
from .planning import Edit, Plan, Wish, make_plan
from .resampling import Method
from .rules import named
from .size import Size, as_size
from .store import RECIPE, WEIGHTS, Checkpoint, Config, open_checkpoint, read_json
from .store.tensors import FLOATS, TensorInfo, byte_size, decode, read_bytes, read_float, read_range, storage
from .writing import recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 16 << 20  # bytes that are compared at a time
TABLE = "1 (p h w) c"
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
NAMES = ("file", "recipe", "untouched", "resampled", "values", "config", "loads", "forward")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One thing that was compared: its name, how it went, and what was found."""

    name: str
    status: Literal["pass", "fail", "skip"]
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The checks of one checkpoint. `ok`: none failed."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.status != "fail" for check in self.checks)


@dataclass(frozen=True)
class _Case:
    """What is held against what.

    `own`: the checkpoint's config, if it is certainly its own; `size`: the size it should be for, said by `origin`;
    `models`: what it holds at that size, empty if `misfit` says why not; `plan`: what should have become of the
    source, or `unplanned` says why there is none; `names`: the source's tensor names -> the checkpoint's.
    """

    out: Checkpoint
    own: Config | None
    size: Size
    origin: str
    made_by: Mapping[str, Any] | None = None
    recipe_fault: str = ""
    models: tuple[Model, ...] = ()
    misfit: str = ""
    source: Checkpoint | None = None
    plan: Plan | None = None
    unplanned: str = "no --against: nothing to compare with"
    wish: Wish = field(default_factory=Wish)
    names: Mapping[str, str] = field(default_factory=dict)
    architecture: str | None = None
    arguments: Mapping[str, Any] | None = None

    def edits(self) -> Iterator[tuple[Edit, TensorInfo, TensorInfo | None]]:
        """Each edit that concerns the checkpoint, with the source's tensor and what became of it."""
        if self.plan is not None and self.source is not None:
            tensors, found = self.source.tensors, self.out.tensors
            for edit in self.plan.edits:
                if edit.name in self.names:
                    yield edit, tensors[edit.name], found.get(self.names[edit.name])


def verify(
    ckpt: str | Path,
    *,
    against: str | Path | None = None,
    img: int | Sequence[int] | str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
) -> Verdict:
    """Check that a checkpoint is another one taken to another size, whoever made it.

    Args:
        ckpt: the result: a path, a hub or timm name.
        against: its source. None: what needs the source is skipped.
        img: the size `ckpt` should be for. None: its recipe says, else its config, else its tensors prove it.
        src_img, family: as `plan` takes them; a timm model name as `family` says the architecture, too.
        method, antialias, align_corners: how it was resampled. "auto": the recipe says, else the home library's way.

    Returns:
        One check for each of `NAMES`, in that order; a difference between the two is a failed check.

    Raises:
        What `plan` raises, for a source that cannot be planned and a checkpoint that cannot be opened or understood.
    """
    wish = Wish(method, antialias, align_corners)
    wish.apply(Method("bicubic"))  # a misspelt method is a mistake, whatever the checkpoint
    out = open_checkpoint(ckpt)
    source = None if against is None else open_checkpoint(against)
    asked = None if img is None else as_size(img)
    try:
        case = _prepare(out, source, asked, wish, family, None if src_img is None else as_size(src_img))
    except _NotUnderstood as failure:
        rest = (Check(name, "skip", "the file is not understood") for name in NAMES[1:])
        return Verdict((Check("file", "fail", str(failure)), *rest))
    own = (look(case) for look in (_file, _recipe, _untouched, _resampled, _values, _config))
    return Verdict((*own, *_home(case)))


class _NotUnderstood(Exception):
    """The checkpoint cannot be read as any known model, though its source can."""


# ------------------------------------------------------------------ what is held against what


def _prepare(
    out: Checkpoint, source: Checkpoint | None, asked: Size | None, wish: Wish, family: str | None, src_img: Size | None
) -> _Case:
    own = out.config if out.folder is not None or out.path.name in WEIGHTS else None
    made_by, fault = _recipe_of(out)
    origins: list[Model] = []
    if source is not None:  # first: a source that cannot be understood is no fault of the checkpoint's
        name, _ = _built_from(source, own, out)
        origins = models_of(source, family=family, src_img=src_img, architecture=name)
    name, arguments = _built_from(own, source, out)
    name = name or _timm_name(family)
    try:
        size, origin = _size(out, own, asked, made_by, name, family)
    except Ambiguous as error:
        raise Ambiguous(error.message, hint="say the size the checkpoint is for with --img") from None
    except PosinterpError as error:
        if source is None:
            raise
        raise _NotUnderstood(str(error)) from None
    models, misfit = _at(out, size, origin, name, family)
    case = _Case(
        out,
        own,
        size,
        origin,
        made_by,
        fault,
        models,
        misfit,
        source,
        wish=wish,
        architecture=name,
        arguments=arguments,
    )
    return case if source is None else _planned(case, source, origins, given=asked is not None)


def _built_from(*places: Config | Checkpoint | None) -> tuple[str | None, Mapping[str, Any] | None]:
    """timm's name of the model, and arguments of its constructor, from the first place that says them.

    The arguments are None where no config says them.
    """
    for place in places:
        config = place.config if isinstance(place, Checkpoint) else place
        if config is not None and (name := configs.architecture(config)):
            return name, config.data.get("model_args") or {}
        if isinstance(place, Checkpoint) and (name := architecture_of(place)):
            return name, None
    return None, None


def _timm_name(family: str | None) -> str | None:
    """What the user calls the family, if it is one of timm's models."""
    return family if family is not None and all(family != known.name for known in FAMILIES) else None


def _recipe_of(out: Checkpoint) -> tuple[dict[str, Any] | None, str]:
    """How posinterp made the checkpoint, if it did; and what is wrong with what it says."""
    told = [_told(file.metadata, file.tree) for file in out.files]
    texts = sorted({text for text in told if text is not None})
    if not texts:
        return None, ""
    if len(texts) > 1 or None in told:
        return None, "its files do not carry the same recipe"
    try:
        found = json.loads(texts[0])
        Size.of(found["to"])
        if not all(isinstance(how, str) and _method(how) for how in found["tensors"].values()):
            return None, "its recipe names a method that there is not"
        return dict(found), ""
    except (ValueError, KeyError, TypeError, AttributeError, BadSize):
        return None, "its recipe cannot be read"


def _told(metadata: Mapping[str, str], tree: Any) -> str | None:
    text = tree.get(RECIPE) if isinstance(tree, dict) else metadata.get(RECIPE)
    return text if isinstance(text, str) else None


def _method(text: str) -> Method | None:
    """A method from the words by which a recipe names it ("bicubic, offset 0.1"); None if there is no such."""
    name, *more = text.split(", ")
    offsets = [word.removeprefix("offset ") for word in more if word.startswith("offset ")]
    try:
        offset = float(offsets[0]) if offsets else None
        found = Method(name, antialias="antialias" in more, align_corners="align-corners" in more, offset=offset)
    except (BadUsage, ValueError):
        return None
    return found if str(found) == text else None


def _size(
    out: Checkpoint,
    own: Config | None,
    asked: Size | None,
    made_by: Mapping[str, Any] | None,
    name: str | None,
    family: str | None,
) -> tuple[Size, str]:
    """The size that the checkpoint should be for, and what says so."""
    if asked is not None:
        return asked, "--img"
    if made_by is not None:
        return Size.of(made_by["to"]), "its recipe"
    try:
        found = find_models(out.tensors, architecture=name, family=family, claims=list(configs.source_sizes(own)))[0]
    except BadConfig:  # a config that says another size than the tensors is for the check of that name to tell
        found = find_models(out.tensors, architecture=name, family=family)[0]
    if found.src_img is None:
        raise Ambiguous("nothing in the checkpoint says its size")
    return found.src_img, found.origin


def _at(
    out: Checkpoint, size: Size, origin: str, name: str | None, family: str | None
) -> tuple[tuple[Model, ...], str]:
    """The checkpoint's models at a size; or why it holds none."""
    try:
        return tuple(find_models(out.tensors, architecture=name, family=family, src_img=size)), ""
    except PosinterpError as error:
        return (), error.message.replace("--src-img", origin)


def _planned(case: _Case, source: Checkpoint, origins: Sequence[Model], *, given: bool) -> _Case:
    """The case with the plan that should have been followed."""
    branches = _alignments(source, origins, case.out)
    first = branches[0]
    patch = _patch(case, origins[0], first)
    try:
        plan = make_plan(source, origins, case.size, case.wish, patch=patch)
    except (BadSize, BadUsage) as error:
        if given:
            raise
        return replace(case, unplanned=f"the source has no size {case.size}: {error.message}")
    case = replace(case, plan=plan, names=first)
    if len(branches) > 1:  # one set of weights out of several: the one that it equals, if any
        tries = (replace(case, names=names) for names in branches)
        case = next((one for one in tries if not any(_strays(one))), case)
    return case


def _patch(case: _Case, origin: Model, names: Mapping[str, str]) -> int | None:
    """The side of the patch, if it is a new one."""
    said = (case.made_by or {}).get("patch")
    if isinstance(said, list) and said and isinstance(said[0], int):
        return said[0]
    kernel = origin.family.patch.kernel
    if kernel is None or origin.family.patch.stem > 1:
        return None
    info = case.out.tensors.get(names.get(origin.root + kernel, ""))
    if info is None or len(info.shape) != 4 or info.shape[-1] != info.shape[-2]:
        return None
    side = info.shape[-1]
    return side if side and origin.family.patch.size(origin.tensors) != (side, side) else None


def _container(name: str) -> str:
    """The branch of a pickle that a tensor stands in: "model/" of "model/pos_embed"."""
    return name[: name.rfind("/") + 1]


def _below(name: str) -> str:
    """A tensor's name in its branch."""
    return name[len(_container(name)) :]


def _largest(ckpt: Checkpoint) -> str:
    """The branch with the most tensors."""
    return Counter(map(_container, ckpt.tensors)).most_common(1)[0][0]


def _alignments(source: Checkpoint, origins: Sequence[Model], out: Checkpoint) -> list[dict[str, str]]:
    """The source's names -> the checkpoint's: as they are, or one branch of a pickle in another container."""
    branches = list(dict.fromkeys(_container(model.root) for model in origins))
    if set(branches) <= {*map(_container, out.tensors)}:
        return [{name: name for name in source.tensors if not name.startswith(_optimizers(source))}]
    place = _largest(out)
    return [
        {name: place + name[len(branch) :] for name in source.tensors if _container(name) == branch}
        for branch in branches
    ]


def _optimizers(ckpt: Checkpoint) -> tuple[str, ...]:
    """Branches of a pickle that hold an optimizer's state: moments of the old shapes are of no use at a new size."""
    tree = ckpt.files[0].tree
    held = tree.items() if isinstance(tree, dict) else ()
    return tuple(f"{key}/" for key, value in held if isinstance(value, dict) and {"state", "param_groups"} <= {*value})


# ------------------------------------------------------------------ file and recipe


def _file(case: _Case) -> Check:
    tensors = case.out.tensors
    total = sum(byte_size(info.dtype, info.shape) for info in tensors.values())
    files = _some([file.path.name for file in case.out.files])
    problems = [case.misfit] if case.misfit else []
    if case.out.index is not None:
        said = (read_json(case.out.index, what="index", error=BadConfig).get("metadata") or {}).get("total_size")
        if said not in (None, total):
            problems.append(f"{case.out.index.name} says {said} bytes of tensors; there are {total}")
    what = f"{case.models[0].family.name} at {case.size} ({case.origin})" if case.models else ""
    return _check("file", problems, f"{what}; {_count(len(tensors), 'tensor')}, {total / 1e6:.1f} MB in {files}")


def _recipe(case: _Case) -> Check:
    if case.made_by is None:
        if case.recipe_fault:
            return Check("recipe", "fail", case.recipe_fault)
        return Check("recipe", "skip", "no recipe: not made by posinterp, or a bare pickle, which has no place for one")
    to = Size.of(case.made_by["to"])
    problems = [f"it says {to}, --img {case.size}"] if to != case.size else []
    if case.misfit:
        problems.append(f"it says {to}: {case.misfit}")
    if case.plan is not None:
        problems += _other_recipe(case.made_by, case.plan)
    compared = "source digest and methods as recorded" if case.plan is not None else "its source was not compared"
    return _check("recipe", problems, f"made for {to} from {_sides(case.made_by.get('from'))}; {compared}")


def _other_recipe(said: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Where a recipe is not the one that makes the checkpoint of this source."""
    right = recipe(plan)
    for key, what in (("family", "family"), ("from", "source size"), ("source", "source digest")):
        if said.get(key) != right[key]:
            yield f"its {what} is {_brief(said.get(key))}, the source's {_brief(right[key])}"
    if astray := {*map(_below, said["tensors"])} ^ {*map(_below, right["tensors"])}:
        yield f"its tensors are not those that the size changes: {_some(sorted(astray))}"


def _brief(value: Any) -> str:
    text = _sides(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


def _sides(value: Any) -> str:
    return "x".join(map(str, dict.fromkeys(value))) if isinstance(value, list) else "a size that is not said"


# ------------------------------------------------------------------ what should not have changed


def _untouched(case: _Case) -> Check:
    if case.plan is None:
        return Check("untouched", "skip", case.unplanned)
    edited = {edit.name for edit in case.plan.edits}
    dropped = [name for name in case.plan.drop if name in case.names]
    count = len(case.names.keys() - edited - {*dropped})
    fine = f"{_count(count, 'tensor')} byte-equal to the source's; none missing, none extra"
    return _check("untouched", list(_strays(case)), fine + (f"; {len(dropped)} dropped" if dropped else ""))


def _strays(case: _Case) -> Iterator[str]:
    """Each tensor that is not as in the source though it should be; that is missing; that has no business there."""
    assert case.plan is not None
    assert case.source is not None
    found, tensors = case.out.tensors, case.source.tensors
    edited, dropped = {edit.name for edit in case.plan.edits}, frozenset(case.plan.drop)
    for name, target in case.names.items():
        if target not in found and name not in dropped:
            yield f"{target} is missing"
        elif target in found and name in dropped:
            yield f"{target} is there: the model computes it, and it is for the old size"
        elif target in found and name not in edited and (why := _unlike(tensors[name], found[target])):
            yield f"{target} {why}"
    known, moments = {*case.names.values()}, _optimizers(case.out)
    yield from (f"{name} is extra" for name in found if name not in known and not name.startswith(moments))


def _unlike(old: TensorInfo, new: TensorInfo) -> str:
    """How a tensor differs from the source's; "" if in nothing."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"is {new.dtype} {_shape(new.shape)}, the source's {old.dtype} {_shape(old.shape)}"
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


# ------------------------------------------------------------------ what should have been resampled


@dataclass(frozen=True)
class _Deviation:
    """How far a grid is from what it should be: absolute; in units of what is allowed; of its largest value."""

    largest: float
    allowed: float
    relative: float

    @property
    def fine(self) -> bool:
        return self.allowed <= 1  # false for NaN


def _resampled(case: _Case) -> Check:
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
        return Check("resampled", "skip", f"nothing to resample: the source has that grid already ({case.size})")
    count = sum(1 for _ in case.edits())
    fine = f"{_count(count, 'tensor')} as torch gives in float64 ({'; '.join(methods)}); largest difference"
    return _check("resampled", problems, f"{fine} {worst.largest:.1e}, {worst.relative:.1e} of the largest value")


def _expected(case: _Case, edit: Edit) -> Method:
    """The method by which a tensor should have been made: what was asked for, what its recipe says, the plan's own."""
    if case.wish != Wish():
        return edit.method
    said = {_below(name): how for name, how in (case.made_by or {}).get("tensors", {}).items()}
    return _method(said.get(_below(edit.name), "")) or edit.method


def _compare(
    case: _Case, edit: Edit, old: TensorInfo, new: TensorInfo | None, method: Method, *, explain: bool
) -> tuple[str, _Deviation]:
    """What is wrong with one tensor, if anything, and how far it is off."""
    none = _Deviation(0.0, 0.0, 0.0)
    if new is None:
        return f"{edit.name} is missing", none
    if (new.dtype, new.shape) != (old.dtype, edit.new_shape):
        return f"{new.name} is {new.dtype} {_shape(new.shape)}, not {old.dtype} {_shape(edit.new_shape)}", none
    if _extras(edit, old, edit.before) != _extras(edit, new, edit.after):
        return f"{new.name}: its {edit.extra} rows that belong to no place are not the source's, bit by bit", none
    before, after = _grid(edit, read_float(old), edit.before), _grid(edit, read_float(new), edit.after)
    own = case.made_by is not None and method.name != "geometric"  # whose reference is timm's, in float32
    deviation = _deviation(edit, old.dtype, before, after, method, own=own)
    if deviation.fine:
        return "", deviation
    what = f"{new.name} is not {method}: off by {deviation.largest:.1e}, {deviation.relative:.1e} of its largest value"
    return what + (_likeness(edit, old.dtype, before, after, method) if explain else ""), deviation


def _grid(edit: Edit, tensor: Array, sides: Mapping[str, int]) -> Array:
    """The grid of a table, places first: (h, w, carried). The common layouts are taken apart without `Layout`."""
    if edit.kernel:  # (o, i, h, w)
        return np.asarray(tensor.transpose(2, 3, 0, 1).reshape(sides["h"], sides["w"], -1), dtype=np.float64)
    if edit.layout.spec == TABLE:  # (1, p + h·w, c)
        return tensor[0, edit.extra :].reshape(sides["h"], sides["w"], -1)
    return np.asarray(edit.layout.split(tensor, sides, prefix=edit.extra).grid, dtype=np.float64)


def _extras(edit: Edit, info: TensorInfo, sides: Mapping[str, int]) -> bytes:
    """The bytes of a tensor's rows that belong to no place."""
    if edit.kernel or not edit.extra:
        return b""
    items = storage(read_bytes(info), info.dtype, info.shape)
    if edit.layout.spec == TABLE:
        return bytes(items[0, : edit.extra].tobytes())
    parts = edit.layout.split(items, sides, prefix=edit.extra)
    return bytes(parts.prefix.tobytes() + parts.suffix.tobytes())


def _deviation(edit: Edit, dtype: str, before: Array, after: Array, method: Method, *, own: bool = False) -> _Deviation:
    """How far `after`, as stored in `dtype`, is from `before` resampled by torch; both (h, w, carried).

    `own`: it must be as near as posinterp's are.
    """
    exact = _recomputed(before, after.shape[:-1], method, kernel=edit.kernel)
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


# ------------------------------------------------------------------ the same by torch, in float64


def _recomputed(before: Array, sides: Sequence[int], method: Method, *, kernel: bool) -> Array:
    """(*old, carried) -> (*sides, carried) by torch's functions, or short references where torch has none."""
    import torch

    grid = torch.from_numpy(np.ascontiguousarray(before))
    exact = _kernel(grid, sides, method) if kernel else _resized(grid, sides, method)
    return np.asarray(exact.numpy(), dtype=np.float64)


def _kernel(kernel: Tensor, sides: Sequence[int], method: Method) -> Tensor:
    """FlexiViT's patch kernel, as timm.layers.resample_patch_embed has it: the pseudo-inverse of the whole resize."""
    import torch

    cells = math.prod(kernel.shape[:2])
    basis = torch.eye(cells, dtype=kernel.dtype).reshape(*kernel.shape[:2], cells)
    resize = _resized(basis, sides, method).reshape(-1, cells)  # (new, old)
    inverse: Tensor = torch.linalg.pinv(resize)  # (old, new)
    return (inverse.T @ kernel.reshape(cells, -1)).reshape(*sides, -1)


def _resized(grid: Tensor, sides: Sequence[int], method: Method) -> Tensor:
    if method.name == "geometric":
        return _geometric(grid, sides)
    if method.name == "lanczos3":
        for axis, new in enumerate(sides):
            weights = _lanczos3(grid.shape[axis], new, method.antialias)
            grid = (weights @ grid.movedim(axis, -2)).movedim(-2, axis)
        return grid
    # torch's antialiased kernel repeats the first row where the width becomes 1.
    if len(sides) == 2 and min(sides) > 1:
        return _interpolated(grid.movedim(-1, 0)[None], sides, method)[0].movedim(0, -1)
    for axis, new in enumerate(sides):
        grid = _along(grid, axis, new, method)
    return grid


def _along(grid: Tensor, axis: int, new: int, method: Method) -> Tensor:
    """One axis of a grid, as the height of an image whose width, at least 2, stays."""
    moved = grid.movedim(axis, 0)
    flat = moved.reshape(1, 1, grid.shape[axis], -1)
    width = flat.shape[-1]
    wide = flat.expand(1, 1, -1, 2) if width == 1 else flat
    out = _interpolated(wide, (new, wide.shape[-1]), method, offsets=(method.offset or 0.0, 0.0))[0, 0, :, :width]
    return out.reshape(new, *moved.shape[1:]).movedim(0, axis)


def _interpolated(
    image: Tensor, sides: Sequence[int], method: Method, *, offsets: tuple[float, float] | None = None
) -> Tensor:
    """torch's own function: (1, c, h, w) -> (1, c, *sides)."""
    from torch.nn.functional import interpolate

    added = offsets or (method.offset or 0.0,) * 2
    scale = [(new + more) / old for new, old, more in zip(sides, image.shape[-2:], added, strict=True)]
    out: Tensor = interpolate(
        image,
        size=None if method.offset else list(sides),
        scale_factor=scale if method.offset else None,
        mode=method.name,
        align_corners=method.align_corners if method.name in ("bilinear", "bicubic") else None,
        antialias=method.antialias,
    )
    return out


def _lanczos3(old: int, new: int, antialias: bool) -> Tensor:
    """One axis of jax.image.resize (jax/_src/image/scale.py, compute_weight_mat): (new, old)."""
    import torch

    widened = max(old / new, 1.0) if antialias else 1.0
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * old / new - 0.5
    x = (centres[:, None] - torch.arange(old, dtype=torch.float64)).abs() / widened
    weights = torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)
    return weights / weights.sum(1, keepdim=True)


def _geometric(grid: Tensor, sides: Sequence[int]) -> Tensor:
    """timm's resize of bias tables, in float32: (2h - 1, 2w - 1, heads)."""
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table

    window = (sides[0] + 1) // 2, (sides[1] + 1) // 2
    table = grid.movedim(-1, 0).float()  # heads first: a flat table's sides would be guessed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about how timm calls it
        out: Tensor = resize_rel_pos_bias_table(table, window, (len(table), *sides))
    return out.double().movedim(0, -1)


# ------------------------------------------------------------------ values


def _values(case: _Case) -> Check:
    tables = list(_tables(case))
    if not tables:
        return Check("values", "skip", "no tensor follows the size" if case.models else "no table was found")
    problems = [f"{name} {why}" for name, why in tables if why]
    return _check("values", problems, f"{_count(len(tables), 'tensor')} finite, varied and of the new grid's size")


def _tables(case: _Case) -> Iterator[tuple[str, str]]:
    """Each tensor that was edited, or, without a source, that follows the grid; and what is wrong with it."""
    if case.plan is not None and case.source is not None:
        for edit, old, new in case.edits():
            yield case.names[edit.name], "is missing" if new is None else _fault(edit, new, old)
        return
    tensors = case.out.tensors
    for model in case.models:
        for name, rule in model.ruled.items():
            info, sides = tensors[model.root + name], rule.sides(model.grid)
            own = Edit(info.name, rule.layout, sides, sides, info.shape, info.shape, Method(), model.extra[name])
            yield info.name, _fault(own, info)


def _fault(edit: Edit, new: TensorInfo, old: TensorInfo | None = None) -> str:
    """What is wrong with the values of an edited tensor, seen alone; "" if nothing."""
    if new.dtype not in FLOATS and new.dtype != "BF16":
        return f"is stored as {new.dtype}"
    values = read_float(new)
    if not np.isfinite(values).all():
        return f"holds {np.count_nonzero(~np.isfinite(values))} values that are NaN or Inf"
    varied = old is None or not _flat(_grid(edit, read_float(old), edit.before))
    if varied and old is not None and not _unlike(old, new):
        return f"is still the source's {_shape(old.shape)}, though the grid changed"
    if new.shape != edit.new_shape:
        return f"is {_shape(new.shape)}, not {_shape(edit.new_shape)}"
    if varied and _flat(_grid(edit, values, edit.after)):
        return "is all zero" if not values.any() else "has the same values at every place"
    return ""


def _flat(grid: Array) -> bool:
    """Whether every place of a grid that has several holds the same."""
    places = tuple(range(grid.ndim - 1))
    return math.prod(grid.shape[:-1]) > 1 and bool((grid.max(places) == grid.min(places)).all())


# ------------------------------------------------------------------ config


def _config(case: _Case) -> Check:
    if case.own is None:
        return Check("config", "skip", "no config.json of its own")
    if configs.architecture(case.own) is None:
        return Check("config", "skip", "config.json names no timm architecture")
    try:
        said = list(configs.source_sizes(case.own))
    except BadConfig as error:
        return Check("config", "fail", error.message)
    problems = [f"{where} says {size}, the weights are for {case.size}" for where, size in said if size != case.size]
    problems += [f"it says {case.size}: {case.misfit}"] if case.misfit else _other_patch(case, case.own)
    if not said:
        return Check("config", "skip", "config.json says no size")
    return _check("config", problems, f"{' and '.join(where for where, _ in said)} say {case.size}")


def _other_patch(case: _Case, own: Config) -> list[str]:
    """A patch size in the config that is not the kernel's."""
    said = (own.data.get("model_args") or {}).get("patch_size")
    patch = case.models[0].family.patch
    if said is None or patch.kernel is None or patch.stem > 1:
        return []
    sides = patch.size(case.models[0].tensors)
    same = said == sides[0] == sides[1] if isinstance(said, int) else said == list(sides)
    return [] if same else [f"model_args.patch_size is {said}, the kernel {_shape(sides)}"]


# ------------------------------------------------------------------ the home library


def _home(case: _Case) -> tuple[Check, Check]:
    """Loading in timm, and one forward pass there."""
    if why := _homeless(case):
        return Check("loads", "skip", why), Check("forward", "skip", why)
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():  # timm draws initial weights
        return _loaded_and_run(case)


def _homeless(case: _Case) -> str:
    """Why the home library is not asked."""
    if case.models and case.models[0].family.home != "timm":
        return f"its home library is {case.models[0].family.home}, not timm"
    return "" if case.architecture else "no config says which architecture"


def _loaded_and_run(case: _Case) -> tuple[Check, Check]:
    problems: list[str] = []
    faults: list[str] = []
    count, seen = 0, ""
    for model in case.models or (None,):
        stored = _stored(case, model)
        try:
            built = _build(case, stored)
            problems += _other_values(case, built, stored)
            count += len(stored)
        except Exception as error:  # whatever timm raises, the answer is that it does not load
            if case.arguments is None:  # a name without arguments need not be the same model
                why = f"no config says the model's arguments, and timm's {case.architecture} does not load it"
                return Check("loads", "skip", why), Check("forward", "skip", why)
            problems.append(_of_timm(error))
            continue
        if model is not None:
            fault, seen = _run(case, built, model)
            faults += [fault] if fault else []
    loads = _check("loads", problems, f"timm holds all {_count(count, 'tensor')} exactly as stored, at {case.size}")
    if not (faults or seen):
        return loads, Check("forward", "skip", "timm does not load it")
    return loads, _check("forward", faults, f"an image of {case.size} gives finite features; {seen}")


def _of_timm(error: Exception) -> str:
    return f"timm: {' '.join(str(error).split())[:300] or type(error).__name__}"


def _stored(case: _Case, model: Model | None) -> dict[str, TensorInfo]:
    """The tensors of one model, by the home library's names; of the largest branch where no model was found."""
    root = model.root if model is not None else _largest(case.out)
    below = {name[len(root) :]: info for name, info in case.out.tensors.items() if name.startswith(root)}
    drop = {name for glob in model.family.drop for name in named(glob, below)} if model is not None else set()
    return {name: info for name, info in below.items() if "/" not in name and name not in drop}


def _build(case: _Case, stored: Mapping[str, TensorInfo]) -> nn.Module:
    """The model in timm: by its own loader from a folder, which believes the config; else from the file's tensors."""
    import timm

    from .torch_io import tensor

    built: nn.Module
    if case.out.folder is not None and case.out.index is None and configs.architecture(case.own):
        built = timm.create_model(f"local-dir:{case.out.folder}", pretrained=True)
        return built.eval()
    patch = {"patch_size": case.plan.patch[0]} if case.plan is not None and case.plan.patch else {}
    heads = [stored[head].shape[0] for head in ("head.weight", "head.fc.weight") if head in stored]
    sizes = {"img_size": list(case.size), **patch, "num_classes": heads[0] if heads else 0}
    built = timm.create_model(case.architecture or "", **{**(case.arguments or {}), **sizes})
    built.load_state_dict({key: tensor(read_bytes(info), info.dtype, info.shape) for key, info in stored.items()})
    return built.eval()


def _other_values(case: _Case, built: nn.Module, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Where the model is not the file's: its size; each parameter or buffer that is not equal, bit by bit."""
    from .torch_io import tensor

    state = built.state_dict()
    size = getattr(getattr(built, "patch_embed", None), "img_size", None)
    if size is not None and tuple(size) != case.size:
        yield f"timm builds it for {_sides([*size])}, not {case.size}"
    for name in sorted(state.keys() ^ stored.keys()):
        yield f"{name} is {'only in the model' if name in state else 'not loaded'}"
    for name in sorted(state.keys() & stored.keys()):
        value, info = state[name], stored[name]
        if tuple(value.shape) != info.shape:
            yield f"{name} is {_shape(value.shape)} in timm's model, {_shape(info.shape)} in the file"
        elif not (value == tensor(read_bytes(info), info.dtype, info.shape).to(value.dtype)).all():
            yield f"{name} has other values in timm's model than in the file"


def _run(case: _Case, built: nn.Module, model: Model) -> tuple[str, str]:
    """One image through the model, and again with the position tables moved: what is wrong, and what was seen."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    channels = next(part.in_channels for part in built.modules() if isinstance(part, torch.nn.Conv2d))
    image = torch.randn(1, channels, *case.size, generator=drawn)
    tables = _some(list(model.ruled))
    try:
        first = _features(built, image)
        for name in model.ruled:
            table = built.get_parameter(name)
            table.add_(torch.randn(table.shape, generator=drawn) * (table.std() + 0.02))
        change = float((_features(built, image) - first).abs().max())
    except Exception as error:  # the home library's
        return _of_timm(error), ""
    if not first.isfinite().all():
        return f"the features of an image of {case.size} are not finite", ""
    if not model.ruled:
        return "", "no table to perturb"
    return "" if change > 0 else f"perturbing {tables} changes nothing", f"perturbing {tables} moves them"


def _features(built: nn.Module, image: Tensor) -> Tensor:
    """What the trunk computes: a head may be zero before it is trained."""
    trunk: Any = built
    out: Tensor = trunk.forward_features(image)
    return out


# ------------------------------------------------------------------ words


def _check(name: str, problems: Iterable[str], fine: str) -> Check:
    found = list(problems)
    return Check(name, "fail" if found else "pass", _some(found, "; ") if found else fine)


def _some(words: Sequence[str], mark: str = ", ") -> str:
    return mark.join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "a scalar"
