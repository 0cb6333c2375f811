"""What rules a timm model needs: its shapes at two sizes, told apart on the meta device, where no weight is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import BadSize, BadUsage, PosinterpError, UnknownFamily, Unsupported
from .measuring import UNEXPLAINED
from .models import find_models
from .planning import Wish, model_edits
from .rules import Rule, named, rule_of
from .size import Size, as_size

# The layouts that are tried, the more common first. "offsets" behind one: it holds 2n - 1 entries for n places.
LAYOUTS = (
    "1 (p h w) c",
    "1 c h w",
    "1 h w c",
    "(h w s) c, offsets, geometric",
    "c h w, offsets, geometric",
    "h w c, offsets",
    "c (h w)",
    "h c, offsets, bilinear",
    "w c, offsets, bilinear",
    "(p h w) c",
)


@dataclass(frozen=True)
class Proposal:
    """Tensors whose shapes follow the size. `rules`: the texts that explain them, the likeliest first.

    `shape`, `new_shape`: of the first.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Proposals:
    """What becomes of a timm model's shapes. `family`: the one that says the same of every tensor, "" if none does."""

    arch: str
    src_img: Size
    dst_img: Size
    tensors: tuple[Proposal, ...]
    family: str
    fault: str = ""


def propose(
    arch: str, img: int | Sequence[int] | str, *, src_img: int | Sequence[int] | str | None = None
) -> Proposals:
    """Build a timm model at its own size and another, and say by which rules its tensors follow.

    Args:
        arch: timm's name of the model.
        img: the other size. One that is not square tells rows from columns.
        src_img: the first size. None: what the model's pretrained config says.

    Raises:
        Unsupported: without timm; UnknownFamily: timm has no such model; BadUsage: it takes no image size; BadSize: it
        cannot be built for one of them.
    """
    dst = as_size(img)
    native, old = _shapes(arch, None if src_img is None else as_size(src_img))
    _, new = _shapes(arch, dst)
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())
        raise BadSize(
            f"timm builds {arch} with other tensors at {dst}: {', '.join(odd[:3])}",
            hint="no rule can say that: another size",
        )
    family, fault = _known(arch, old, new, native, dst)
    return Proposals(arch, native, dst, tuple(_folded(old, new, native, dst)), family, fault)


def _folded(old: dict[str, Any], new: dict[str, Any], src: Size, dst: Size) -> Iterator[Proposal]:
    """A proposal for each tensor that changes; one for many whose names differ in numbers, where one rule fits all."""
    changed = {name: tuple(_layouts(old[name].shape, new[name].shape, src, dst)) for name in old
               if old[name].shape != new[name].shape}  # fmt: skip
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, layouts in changed.items():
        glob = re.sub(r"\d+", "*", name)
        alone = any(name not in changed or changed[name] != layouts for name in named(glob, old))
        groups.setdefault((name if alone else glob, layouts), []).append(name)
    for (glob, layouts), names in groups.items():
        rules = tuple(f"{glob} = {layout}" for layout in layouts)
        yield Proposal(tuple(names), tuple(old[names[0]].shape), tuple(new[names[0]].shape), rules)


def _shapes(arch: str, size: Size | None) -> tuple[Size, dict[str, Any]]:
    """The model's size, and its state dict without values."""
    try:
        import timm
        import torch
    except ImportError:
        raise Unsupported("inspect --arch needs timm", hint="pip install timm") from None
    if not timm.is_model(arch):
        near = ", ".join(timm.list_models(f"*{arch.split('_')[0]}*")[:3])
        raise UnknownFamily(f"timm has no model {arch!r}", hint=f"such as {near}" if near else "see timm.list_models()")
    more: dict[str, Any] = {} if size is None else {"img_size": tuple(size)}
    try:
        with torch.device("meta"):
            model = timm.create_model(arch, **more)
    except TypeError as error:
        if "img_size" in str(error):
            raise BadUsage(
                f"timm's {arch} takes no img_size: no weight of it follows one", hint="resize changes its config only"
            ) from None
        raise
    except Exception as error:  # whatever the constructor says of a size
        raise BadSize(f"timm does not build {arch} for {size}: {str(error)[:200] or type(error).__name__}") from None
    config: Any = model.pretrained_cfg
    return size or Size.of(config["input_size"][1:]), model.state_dict()


def _layouts(before: Sequence[int], after: Sequence[int], src: Size, dst: Size) -> Iterator[str]:
    """The layouts in which two shapes are those of two grids, each the image's part."""
    for text in LAYOUTS:
        rule = rule_of(f"* = {text}")
        if len(rule.layout.axes) == len(before) and _explains(rule, tuple(before), tuple(after), src, dst):
            yield text


def _explains(rule: Rule, before: tuple[int, ...], after: tuple[int, ...], src: Size, dst: Size) -> bool:
    for stride in range(1, min(*src, *dst) + 1):
        if any(side % stride for side in (*src, *dst)):
            continue
        grids = [{"h": size[0] // stride, "w": size[1] // stride} for size in (src, dst)]
        if rule.layout.exceeds(before, rule.sides(grids[0])):
            continue
        extra = rule.layout.fits(before, rule.sides(grids[0]))
        if extra is not None and extra <= UNEXPLAINED and extra == rule.layout.fits(after, rule.sides(grids[1])):
            carried = rule.layout.reshaped(before, rule.sides(grids[0]), rule.sides(grids[1]))
            return carried == after
    return False


def _known(arch: str, old: dict[str, Any], new: dict[str, Any], src: Size, dst: Size) -> tuple[str, str]:
    """The family that says the same of every tensor; or why there is none."""
    try:
        (model,) = find_models(old, architecture=arch, claims=[(f"timm's {arch}", src)])
        found = {edit.name: edit.new_shape for edit in model_edits(model, dst, Wish())}
    except PosinterpError as error:
        return "", error.message
    wrong = [name for name in old if found.get(name, tuple(old[name].shape)) != tuple(new[name].shape)]
    return (
        ("", f"{model.family.name} says other shapes, of {', '.join(wrong[:3])}") if wrong else (model.family.name, "")
    )
