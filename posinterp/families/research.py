"""Checkpoints of research code that are not in a home library's layout."""

from __future__ import annotations

from ..layout import Layout
from ..method import Method
from ..rules import Family, Rule

_DINOV2 = {
    "rules": (Rule("pos_embed", Layout("1 (p h w) c")),),
    "tokens": ("cls_token", "register_tokens"),
    "home": "dinov2",
}

FAMILIES: tuple[Family, ...] = (
    Family(  # facebookresearch/dinov2, hub/backbones.py: interpolate_antialias=True, interpolate_offset=0.0
        "dinov2-registers-original",
        has=("pos_embed = 1 * *", "mask_token", "register_tokens", "patch_embed.proj.weight"),
        home_does="in forward: bicubic, antialias",
        note="register tokens have no rows in the table",
        **_DINOV2,  # type: ignore[arg-type]
    ),
    Family(  # the same file: interpolate_antialias=False, interpolate_offset=0.1
        "dinov2-original",
        has=("pos_embed = 1 * *", "mask_token", "blocks.0.**", "patch_embed.proj.weight", "blocks.**.ls1.gamma"),
        method=Method("bicubic", offset=0.1),
        home_does="in forward: bicubic, scale factor with 0.1 added to the target",
        **_DINOV2,  # type: ignore[arg-type]
    ),
)
