"""OpenCLIP's own towers, and OpenAI's CLIP (checked against open_clip 3.3; timm towers inside are timm's families).

open_clip resizes the image tower's table when it loads (`open_clip.model.resize_pos_embed`): bicubic, antialias, the
source a square with one class token. Text tables stretch with the context length, not with the image.
"""

from __future__ import annotations

from ..layout import Layout
from ..rules import Family, Patch, Rule, Side

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
