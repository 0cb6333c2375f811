"""OpenCLIP's own towers, and OpenAI's CLIP (checked against open_clip 3.3; timm towers inside are timm's families).

open_clip resizes the image tower's table when it loads (`open_clip.model.resize_pos_embed`): bicubic, antialias, the
source a square with one class token. Text tables stretch with the context length, not with the image.
"""

from __future__ import annotations

from ..layout import Layout
from ..rules import Family, Patch, Rule, Side

# open_clip builds a timm tower at the size that its name has, whatever its config says. These differ in nothing but the
# size (tests/test_open_clip.py): the name of the new one makes the tower of that size.
TIMM_TOWERS = {
    "eva02_large_patch14_clip": (224, 336),
    "eva_giant_patch14": (224, 336, 560),
    "vit_base_patch16_clip": (224, 384),
    "vit_base_patch16_siglip": (224, 256, 384, 512),
    "vit_giantopt_patch16_siglip": (256, 384),
    "vit_huge_patch14_clip": (224, 336, 378),
    "vit_large_patch14_clip": (224, 336),
    "vit_large_patch16_siglip": (256, 384),  # 512 is SigLIP 2's, with another activation
    "vit_medium_patch16_gap": (240, 256, 384),
    "vit_so400m_patch14_siglip": (224, 378, 384),
    "vit_so400m_patch16_siglip": (256, 384, 512),
    "vitamin_large": (224, 256, 336, 384),
    "vitamin_large2": (224, 256, 336, 384),
}

FAMILIES: tuple[Family, ...] = (
    Family(
        "open-clip-resnet",
        has=("attnpool.positional_embedding = * *", "layer4.0.conv1.weight"),
        archs=("open_clip/*",),
        rules=(Rule("attnpool.positional_embedding", Layout("(p h w) c"), extra=(1,), side=Side(32)),),
        patch=Patch(kernel=None, stem=32),
        square=True,
        home="open_clip",
        home_does="cannot: a strict load of another size raises",
        note="the attention pool's first row belongs to the mean token; square images only",
    ),
    Family(
        "open-clip",
        has=("positional_embedding = * *", "conv1.weight = * * * *", "transformer.resblocks.0.ln_1.weight"),
        archs=("open_clip/*",),
        rules=(Rule("positional_embedding", Layout("(p h w) c")),),
        patch=Patch("conv1.weight"),
        tokens=("class_embedding",),
        home="open_clip",
        home_does="bicubic, antialias; the grid by a root; as many rows in another aspect left as they are",
        differs="the grid is told from the config or the tensors; equal means an equal grid",
        note="the text tower's table is not touched",
    ),
)
