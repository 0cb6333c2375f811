"""Models with PEGs: this package's own and CPVT's, and which families can be given some."""

from __future__ import annotations

from ..rules import Family
from .timm.plain import ROPE_BUFFERS, TABLE, TOKENS

PEGS = "peg.*.proj.weight = * 1 * *"
EXAMPLE: dict[str, object] = {"name": "peg_vit_tiny_patch16_224", "depth": 2, "num_classes": 5}
NOTE = "made by `posinterp peg`; timm knows it after `import posinterp.torch`"

FAMILIES: tuple[Family, ...] = (
    Family(
        "peg-hybrid",
        has=("pos_embed = 1 * *", PEGS, "blocks.0.**"),
        archs=("peg_*",),
        rules=(TABLE,),
        tokens=TOKENS,
        drop=ROPE_BUFFERS,
        home_does="bicubic, antialias when loading, and in forward at any other size",
        note=NOTE,
        example=EXAMPLE,
    ),
    Family(
        "peg",
        has=(PEGS, "blocks.0.**"),
        lacks=("pos_embed",),
        archs=("peg_*",),
        home_does="nothing to do: positions come from the zero border of its convolutions",
        note=NOTE,
        example={**EXAMPLE, "pos_embed": "none"},
    ),
    Family(  # the module as Twins and the code around CPVT call it; a file that keeps a table beside it is a ViT's
        "cpvt",
        has=("pos_block.** = * 1 * *", "blocks.0.**", "patch_embed.proj.weight"),
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
