"""Models with PEGs: this package's own and CPVT's, and which families can be given some."""

from __future__ import annotations

from dataclasses import replace

from ..rules import Family
from .timm import plain

PEGS = "peg.*.proj.weight = * 1 * *"
CPVT = "pos_block.** = * 1 * *"  # as Twins and the code around CPVT call the module
KERNELS = (PEGS, CPVT)
NOTE = "made by `posinterp peg`; timm knows it after `import posinterp.torch`"
TABLE = "pos_embed = 1 * *"


def _with_table(family: Family) -> Family:
    """A family's models with PEGs beside their table: what the size changes stays what it was."""
    return replace(
        family,
        name=f"peg-{family.name}",
        has=(*family.has, PEGS),
        archs=tuple(f"peg_{name}" for name in family.archs),
        home_does=f"{family.home_does.partition(';')[0]}; in forward, at other sizes: bicubic, antialias",
        note=NOTE,
        example={
            **family.example,
            "name": f"peg_{family.example['name']}",
            "depth": 2,
        },  # a PEG needs a block behind it
    )


def _without_table(family: Family) -> Family:
    """The same with the table dropped."""
    kept = _with_table(family)
    return replace(
        kept,
        name=f"peg-free-{family.name}",
        has=(PEGS, *(sign for sign in family.has if sign != TABLE)),
        lacks=(*family.lacks, "pos_embed"),
        rules=(),
        home_does="nothing to do: positions come from the zero border of its convolutions",
        example={**kept.example, "pos_embed": "none"},
    )


_BY_NAME = {family.name: family for family in plain.FAMILIES}
_VIT = replace(_BY_NAME["vit"], archs=("*",))
_STEMS = tuple(_BY_NAME[name] for name in ("hybrid-resnetv2", "hybrid-resnet", "hybrid-stem"))
_OWN_METHODS = tuple(_BY_NAME[name] for name in ("flexivit", "radio-v3-align", "radio"))

FAMILIES: tuple[Family, ...] = (
    *(_with_table(family) for family in (*_STEMS, *_OWN_METHODS, _VIT)),
    *(_without_table(family) for family in (*_STEMS, _VIT)),
    Family(  # a file that keeps a table beside it is a ViT's
        "cpvt",
        has=(CPVT, "blocks.0.**", "patch_embed.proj.weight"),
        lacks=("pos_embed",),
        home="cpvt",
        home_does="nothing to do: positions come from convolutions with zero padding (PEG)",
    ),
)

# The families whose models are timm's VisionTransformer with a learned table.
CONVERTIBLE = frozenset(
    {
        "vit", "deit-distilled", "deit3", "dinov2", "siglip", "clip", "flexivit", "radio", "radio-v3-align",
        "hybrid-stem", "hybrid-resnet", "hybrid-resnetv2",
    }
)  # fmt: skip


def why_not(family: Family) -> str:
    """Why a family's models cannot be given PEGs; "" if they can."""
    if family.name in CONVERTIBLE:
        return ""
    if family in FAMILIES:
        return "it has PEGs already"
    if family.home != "timm":
        return f"its home library is {family.home or 'not known'}, and a PEG model is one of timm's"
    if any(rule.offsets or "relative" in rule.match for rule in family.rules) or "relpos" in family.name:
        return "its positions are relative: there is no table that a PEG could replace"
    if "rope" in family.name or family.name == "eva":
        return "its positions are rotary, and follow any size already"
    if any("#" in rule.match for rule in family.rules) or "stages" in family.note or family.window is not None:
        return "it is a pyramid: it has no single grid"
    if not family.rules:
        return f"it has no position table ({family.home_does or 'nothing to do'})"
    return "it is not built by timm's VisionTransformer"
