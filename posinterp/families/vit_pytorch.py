"""lucidrains' vit-pytorch (checked against 1.26). Its files carry no config, and the library never converts one.

The patch is told from the layer that takes its pixels; the grid, from the rows: a smaller image would run on the first
rows of the table, at the wrong places, and nothing would say so.
"""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule, Side

LINEAR = Method("bilinear")
CANNOT = "cannot: a load of another size raises"
PIXELS = "to_patch_embedding.1.weight"
NORMED = "linear.parametrizations.weight.original"


def _family(name: str, has: tuple[str, ...], layout: str, patch: Patch, **facts: Any) -> Family:
    return Family(
        f"vp-{name}",
        has=has,
        rules=(Rule("pos_embedding", Layout(layout)),),
        patch=patch,
        tokens=("cls_token", "register_tokens"),
        home="vit-pytorch",
        home_does=CANNOT,
        **facts,
    )


def _free(name: str, sign: str, *leave: str) -> Family:
    return Family(
        f"vp-{name}",
        has=(sign,),
        patch=Patch(kernel=None),
        unit=1,
        leave=leave,
        home="vit-pytorch",
        home_does="nothing to do: positions come from convolutions, windows or the distance",
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
        home_does=CANNOT,
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
        home_does=CANNOT,
        note="one table for the rows, one for the columns",
    ),
    _family(
        "vit",
        ("pos_embedding = * *", PIXELS),
        "(p h w) c",
        Patch(kernel=None, pixels=PIXELS),
        leave=("transformer.layers.*.*.options.*.rel_pos_bias.weight",),  # JetViT's, of windows
        note="ViT and what follows it; without a class token where it pools",
    ),
    _family(
        "batched",
        ("pos_embedding = 1 * *", PIXELS),
        "1 (p h w) c",
        Patch(kernel=None, pixels=PIXELS),
        sized=True,
        note="DeepViT, CaiT, XCiT, parallel ViT, learnable memory, ...",
    ),
    Family(
        "vp-volume",
        has=("pos_embedding = 1 * *", PIXELS),
        rules=(Rule("pos_embedding", Layout("1 (p t h w) c")),),
        patch=Patch(kernel=None, pixels=PIXELS, volume=True),
        tokens=("cls_token",),
        home="vit-pytorch",
        home_does=CANNOT,
        note="ViT of clips and volumes; the shapes alone rarely say how a patch is cut: --src-img",
    ),
    Family(
        "vp-vivit",
        has=("pos_embedding = 1 * * *", PIXELS),
        rules=(Rule("pos_embedding", Layout("1 t (h w) c")),),
        patch=Patch(kernel=None, pixels=PIXELS, volume=True),
        home="vit-pytorch",
        home_does=CANNOT,
        note="a table for each frame; the shapes alone rarely say how a patch is cut: --src-img",
    ),
    Family(
        "vp-t2t",
        has=("pos_embedding = 1 * *", "to_patch_embedding.3.layers.0.0.to_qkv.weight"),
        rules=(Rule("pos_embedding", Layout("1 (p h w) c")),),
        patch=Patch(kernel=None, stem=16),
        tokens=("cls_token",),
        home="vit-pytorch",
        home_does=CANNOT,
        note="its three unfoldings, with strides of 4, 2 and 2",
    ),
    Family(
        "vp-nest",
        has=("to_patch_embedding.2.weight = * * 1 1", "layers.0.0.pos_emb = *"),
        rules=(Rule("layers.*.0.pos_emb", Layout("(h w)")),),
        patch=Patch(kernel=None, pixels="to_patch_embedding.2.weight", stages="layers.*"),
        home="vit-pytorch",
        home_does=CANNOT,
        note="one number a place of a block; blocks are as many as the levels say",
    ),
    Family(
        "vp-cct",
        has=("classifier.positional_emb = 1 * *", "tokenizer.conv_layers.0.0.weight = * * * *"),
        rules=(Rule("classifier.positional_emb", Layout("1 (p h w) c"), side=None),),
        patch=Patch(kernel=None),
        tokens=("classifier.class_emb",),
        unit=1,
        home="vit-pytorch",
        home_does=CANNOT,
        note="strides and pooling of its convolutions are not in the file: --src-img",
    ),
    _family(
        "small-dataset",
        ("pos_embedding = 1 * *", "to_patch_embedding.to_patch_tokens.1.weight"),
        "1 (p h w) c",
        Patch(kernel=None, pixels="to_patch_embedding.to_patch_tokens.1.weight", copies=5),
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
        home_does=CANNOT,
        note="patches overlap by half",
    ),
    Family(
        "vp-nvit",
        has=(f"abs_pos_emb.{NORMED} = * *", f"to_patch_embedding.1.{NORMED} = * *"),
        rules=(Rule(f"abs_pos_emb.{NORMED}", Layout("(h w) c"), extra=(0,)),),
        patch=Patch(kernel=None, pixels=f"to_patch_embedding.1.{NORMED}"),
        home="vit-pytorch",
        home_does=CANNOT,
        note="the model itself brings each row to length 1",
    ),
    Family(
        "vp-look",
        has=("pos_embedding = * *", "to_patches.1.weight = * * * *"),
        rules=(Rule("pos_embedding", Layout("(h w) c"), extra=(0,), side=None),),
        patch=Patch(kernel=None),
        unit=1,
        home="vit-pytorch",
        home_does=CANNOT,
        note="its finer grid's table; how fine is not in the file: --src-img",
    ),
    Family(
        "vp-simple",
        has=("transformer.layers.0.0.to_qkv.weight", PIXELS),
        lacks=("pos_embedding", "pos_embed_height"),
        patch=Patch(kernel=None, pixels=PIXELS),
        leave=("transformer.layers.*.0.rel_pos_bias.**",),
        home="vit-pytorch",
        home_does="nothing to do: positions are computed",
    ),
    _free("jumbo", "jumbo_cls_token"),
    _free("cvt", "layers.0.2.layers.0.0.to_q.net.0.weight"),
    _free("twins", "layers.0.1.layers.0.0.fn.to_q.weight"),
    _free("rvt", "transformer.pos_emb.scales", "transformer.pos_emb.scales"),
    _free("maxvit", "layers.0.2.fn.rel_pos_bias.weight", "layers.*.*.fn.rel_pos_bias.weight"),
    _free("maxvit-registers", "layers.0.1.0.rel_pos_bias.weight", "layers.*.*.0.rel_pos_bias.weight"),
    _free("region", "layers.0.2.local_rel_pos_bias.weight", "layers.*.*.local_rel_pos_bias.weight"),
    Family(
        "vp-levit",
        has=("backbone.0.layers.0.0.pos_indices = * *", "conv_embedding.0.weight"),
        rules=tuple(  # a stage, and behind it the layer that halves the map, whose queries are every other place
            Rule(
                f"backbone.{{{2 * stage},{2 * stage + 1}}}.layers.*.0.pos_bias.weight",
                Layout("(h w) c"),
                extra=(0,),
                side=Side(16, halvings=stage),
            )
            for stage in range(8)
        ),
        index=("pos_bias.weight", "pos_indices"),
        patch=Patch(kernel=None, stem=16),
        square=True,
        home="vit-pytorch",
        home_does=CANNOT,
        note="tables of distances, as LeViT's; the indices into them, which the file holds, are computed anew",
    ),
)
