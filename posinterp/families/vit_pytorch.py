"""lucidrains' vit-pytorch (checked against 1.26). Its files carry no config, and the library never converts one.

The patch is told from the layer that takes its pixels, three channels being taken for granted; the grid, from the
rows: a smaller image would run on the first rows of the table, at the wrong places, and nothing would say so.
"""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule

LINEAR = Method("bilinear")
PIXELS = "to_patch_embedding.1.weight"


def _family(name: str, has: tuple[str, ...], layout: str, patch: Patch, **facts: Any) -> Family:
    return Family(
        f"vp-{name}",
        has=has,
        rules=(Rule("pos_embedding", Layout(layout)),),
        patch=patch,
        tokens=("cls_token",),
        home="vit-pytorch",
        home_does="cannot: a load of another size raises",
        **facts,
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        "vp-mae",
        has=("decoder_pos_emb.weight = * *", "encoder.pos_embedding = * *", f"encoder.{PIXELS}"),
        rules=(
            Rule("encoder.pos_embedding", Layout("(p h w) c")),
            Rule("decoder_pos_emb.weight", Layout("(h w s) c"), extra=(0, 1)),
        ),
        patch=Patch(kernel=None, pixels=f"encoder.{PIXELS}"),
        tokens=("encoder.cls_token",),
        home="vit-pytorch",
        home_does="cannot: a load of another size raises",
        note="the decoder looks its places up from row 0 on; its last row is not used",
    ),
    Family(
        "vp-navit",
        has=("pos_embed_height = * *", "pos_embed_width = * *", PIXELS),
        rules=(
            Rule("pos_embed_height", Layout("h c"), method=LINEAR),
            Rule("pos_embed_width", Layout("w c"), method=LINEAR),
        ),
        patch=Patch(kernel=None, pixels=PIXELS),
        home="vit-pytorch",
        home_does="cannot: a load of another size raises",
        note="one table for the rows, one for the columns",
    ),
    _family(
        "vit",
        ("pos_embedding = * *", PIXELS),
        "(p h w) c",
        Patch(kernel=None, pixels=PIXELS),
        note="ViT and what follows it; without a class token where it pools",
    ),
    _family(
        "batched",
        ("pos_embedding = 1 * *", PIXELS),
        "1 (p h w) c",
        Patch(kernel=None, pixels=PIXELS),
        note="DeepViT, CaiT, parallel ViT, learnable memory, ...",
    ),
    _family(
        "small-dataset",
        ("pos_embedding = 1 * *", "to_patch_embedding.to_patch_tokens.1.weight"),
        "1 (p h w) c",
        Patch(kernel=None, pixels="to_patch_embedding.to_patch_tokens.1.weight", channels=15),
        note="a patch is seen with its four shifts",
    ),
    Family(
        "vp-pit",
        has=("pos_embedding = 1 * *", "to_patch_embedding.2.weight = * *"),
        lacks=(PIXELS,),
        rules=(Rule("pos_embedding", Layout("1 (p h w) c")),),
        patch=Patch(kernel=None, pixels="to_patch_embedding.2.weight", overlap=True),
        tokens=("cls_token",),
        unit=1,
        home="vit-pytorch",
        home_does="cannot: a load of another size raises",
        note="patches overlap by half",
    ),
    Family(
        "vp-simple",
        has=("transformer.layers.0.0.to_qkv.weight", PIXELS),
        lacks=("pos_embedding", "pos_embed_height"),
        patch=Patch(kernel=None, pixels=PIXELS),
        home="vit-pytorch",
        home_does="nothing to do: positions are computed",
    ),
)
