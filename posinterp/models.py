"""Which models a checkpoint holds, and at which size: told from its names and shapes, never guessed."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import config as configs
from .errors import Ambiguous, BadConfig, BadFile, Mismatch, UnknownFamily
from .families import FAMILIES, family_named
from .rules import Family, Grid, Rule, Shapes, matches
from .size import Size, as_size, shape_text
from .store import Checkpoint

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


def models_of(
    source: Checkpoint,
    *,
    family: str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    architecture: str | None = None,
) -> list[Model]:
    """The models of an opened checkpoint, by all that it says of itself; `architecture`: if it does not say that."""
    named = architecture_of(source) or architecture
    claims = [*configs.source_sizes(source.config), *configs.recorded_size(source)]
    size = None if src_img is None else as_size(src_img)
    recorded = source.recipe.get("family")
    if named is None and family is None and any(one.name == recorded for one in FAMILIES):
        with contextlib.suppress(UnknownFamily):  # nobody asked for it
            return find_models(source.tensors, family=recorded, claims=claims, src_img=size)
    return find_models(source.tensors, architecture=named, family=family, claims=claims, src_img=size)


def architecture_of(source: Checkpoint) -> str | None:
    """The home library's name of the model, where something says it: the config, the hub, a training script's note."""
    if named := configs.architecture(source.config):
        return named
    if source.architecture and (source.fetched or any(family.knows(source.architecture) for family in FAMILIES)):
        return source.architecture
    return None  # a training script may call its model anything


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
        raise UnknownFamily(
            "the file holds no tensors: nothing to resize", hint="is it a state dict, or a checkpoint that holds one?"
        )
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
    positions = [f"{name} {shape_text(info.shape)}" for name, info in tensors.items() if POSITIONAL.search(name)]
    near = [  # the widest family first, of those that lack as little
        (len(family.missing(below)), -place, family.name, family.missing(below))
        for place, family in enumerate(families)
        for root in list(dict.fromkeys(family.roots(tensors)))[:4]
        for below in [{name[len(root) :]: info for name, info in tensors.items() if name.startswith(root)}]
    ]
    if asked:
        missing = _signs(sorted(near)[0][3] if near else families[0].has)
        return UnknownFamily(f"this is no {asked}: it lacks {missing}", hint="leave --family out")
    if not positions:
        return UnknownFamily(
            "no known family, and no position embedding: nothing to resize",
            hint="`posinterp families` lists what is known; --family NAME says which it is",
        )
    which = f"timm's {architecture} is" if architecture else "these tensors are"
    closest = min(near, default=None)
    hint = f"nearest: {closest[2]}, which wants {_signs(closest[3])}; " if closest and closest[0] else ""
    return UnknownFamily(
        f"{which} of no family known here; its positions: {', '.join(positions[:3])}{' ...' * (len(positions) > 3)}",
        hint=hint + "`posinterp families` lists what is known; --family NAME says which it is",
    )


def _signs(signs: Sequence[str]) -> str:
    """Signs for people: "pos_embed = 1 * *" is a pos_embed of shape 1×any×any."""
    named = (sign.partition(" = ") for sign in signs)
    shapes = ((name, shape.replace("*", "any").replace(" ", "×")) for name, _, shape in named)
    return ", ".join(f"{name} of shape {shape}" if shape else name for name, shape in shapes)


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
            shape = shape_text(tensors[name].shape)
            raise BadFile(
                f"{root}{name} of shape {shape} has no elements: a shard of partitioned training?",
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
    what = f"{model.root}{name} of shape {shape_text(model.tensors[name].shape)}"
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
    message = (
        f"{where} says {size}, a grid of {grid}; {model.root}{name} of shape {shape_text(model.tensors[name].shape)}"
    )
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
                f"{name} {shape_text(info.shape)} looks like a position tensor; {family.name} has no rule for it",
                hint=f"--family {family.name} leaves it as it is",
            )


def _check_width(family: Family, tensors: Mapping[str, Any], ruled: Mapping[str, Rule]) -> None:
    tables = [name for name, rule in ruled.items() if not rule.offsets and rule.layout.axes[-1] == ("c",)]
    for name in tables:
        width = tensors[name].shape[-1]
        for token in family.tokens:
            if token in tensors and tensors[token].shape[-1:] != (width,):
                raise Mismatch(
                    f"{name} is {width} wide, {token} of shape {shape_text(tensors[token].shape)} is not",
                    hint="the two are not of one model",
                )
        kernel = family.patch.kernel
        if kernel is not None and kernel in tensors and tensors[kernel].shape[:1] != (width,):
            raise Mismatch(
                f"{name} is {width} wide, {kernel} of shape {shape_text(tensors[kernel].shape)} gives another width",
                hint="the two are not of one model",
            )
