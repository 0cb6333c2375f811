"""JAX code's numpy archives: vision_transformer, big_vision, FlexiViT. Kernels are (h, w, in, out)."""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule

KERNEL = "embedding/kernel = * * * *"
AXES = Layout("h w i o")


def _family(name: str, table: str, has: tuple[str, ...], **facts: Any) -> Family:
    return Family(
        name,
        has=(f"{table} = 1 * *", KERNEL, *has),
        rules=(Rule(table, Layout("1 (p h w) c")),),
        tokens=("cls",),
        method=Method("bilinear", align_corners=True),
        file=".npz",
        **facts,
    )


FAMILIES: tuple[Family, ...] = (
    _family(
        "jax-hybrid",
        "Transformer/posembed_input/pos_embedding",
        ("conv_root/kernel",),
        patch=Patch("embedding/kernel", axes=AXES, stem=4, stages="block*"),
        home="vision_transformer",
        home_does="at load: linear, corners aligned (scipy's zoom), from a square",
    ),
    _family(
        "jax-vit",
        "Transformer/posembed_input/pos_embedding",
        (),
        lacks=("conv_root/kernel",),
        patch=Patch("embedding/kernel", axes=AXES),
        home="vision_transformer",
        home_does="at load: linear, corners aligned (scipy's zoom), from a square",
        note="timm reads these files, too, and resamples them its own way",
    ),
    _family(
        "big-vision",
        "pos_embedding",
        (),
        patch=Patch("embedding/kernel", axes=AXES),
        home="big_vision",
        home_does="at load: linear, corners aligned (scipy's zoom), from a square",
        note="image towers stand below params/img/; the text tower is not touched",
    ),
)
