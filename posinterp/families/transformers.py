"""Hugging Face transformers (checked against 5.24: names as on disk, and what its models do to other sizes in forward).

The library never converts a file: loading one at another size raises, or throws the positions away
(`ignore_mismatched_sizes`). What it does itself, in forward and on request, is the method here.
"""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule, Side

PLAIN_BICUBIC = Method("bicubic")
BICUBIC = Method("bicubic", antialias=True)
BILINEAR = Method("bilinear")

TABLE = Rule("embeddings.position_embeddings", Layout("1 (p h w) c"))
PATCH = Patch("embeddings.patch_embeddings.projection.weight")
SIGNS = ("embeddings.position_embeddings = 1 * *", "embeddings.patch_embeddings.projection.weight = * * * *")
TOKENS = ("embeddings.cls_token", "embeddings.distillation_token")
FORWARD = "in forward, on request: bicubic"
ALWAYS = "in forward, always: "
STALE = ("embeddings.position_ids",)  # of older versions; new ones compute them
SQUARE = "square images only: for others the library takes a root of the number of rows"


def _types(text: str) -> tuple[str, ...]:
    return tuple(f"transformers/{name}" for name in text.split())


def _family(name: str, archs: str, **facts: Any) -> Family:
    return Family(
        f"hf-{name}",
        **{
            "archs": _types(archs),
            "has": SIGNS,
            "rules": (TABLE,),
            "patch": PATCH,
            "tokens": TOKENS,
            "method": PLAIN_BICUBIC,
            "home": "transformers",
            "home_does": FORWARD,
            **facts,
        },
    )


def _bias(match: str) -> Rule:
    name = f"{match}.relative_position_bias_table"
    return Rule(name, Layout("(h w s) c"), extra=(3,), offsets=True, method=BILINEAR)


FAMILIES: tuple[Family, ...] = (
    _family(
        "vit-mae",
        "vit_mae",
        has=("decoder.decoder_pos_embed = 1 * *", "vit.embeddings.position_embeddings = 1 * *"),
        rules=(
            Rule("vit.embeddings.position_embeddings", Layout("1 (p h w) c")),
            Rule("decoder.decoder_pos_embed", Layout("1 (p h w) c")),
        ),
        patch=Patch("vit.embeddings.patch_embeddings.projection.weight"),
        tokens=("vit.embeddings.cls_token",),
        home_does="in forward, on request: bicubic; the decoder's table along the flattened rows",
        differs="the decoder's table is resampled as a grid",
    ),
    _family(
        "dinov2-registers",
        "dinov2_with_registers",
        has=(*SIGNS, "embeddings.register_tokens"),
        tokens=("embeddings.cls_token",),
        method=BICUBIC,
        square=True,
        home_does=f"{ALWAYS}bicubic, antialias",
        note=f"register tokens have no rows; {SQUARE}",
    ),
    _family(
        "dinov2",
        "dinov2",
        has=(*SIGNS, "encoder.layer.0.layer_scale1.lambda1"),
        square=True,
        home_does=f"{ALWAYS}bicubic",
        note=SQUARE,
    ),
    _family(
        "dpt",
        "dpt",
        unnamed=None,
        method=BILINEAR,
        square=True,
        home_does=f"{ALWAYS}bilinear",
        note=SQUARE,
    ),
    _family(
        "beit",
        "beit data2vec-vision",
        has=(
            "embeddings.patch_embeddings.projection.weight = * * * *",
            "{encoder,encoder.layer.0.attention.attention}.relative_position_bias.relative_position_bias_table",
        ),
        rules=(
            TABLE,
            _bias("encoder.layer.*.attention.attention.relative_position_bias"),
            _bias("encoder.relative_position_bias"),
        ),
        drop=("**.relative_position_index",),
        square=True,
        home_does="in forward, on request: bicubic; biases bilinear",
        note="three extra rows for the class token; square images only: the library swaps the sides of the bias tables",
    ),
    _family(
        "swin",
        "swin",
        has=(
            "embeddings.patch_embeddings.projection.weight = * * * *",
            "encoder.layers.0.blocks.0.attention.self.relative_position_bias_table",
        ),
        rules=(Rule("embeddings.position_embeddings", Layout("1 (h w) c")),),
        leave=("**.relative_position_bias_table", "**.relative_position_index"),
        note="windows are kept",
    ),
    _family(
        "pvt",
        "pvt",
        has=("encoder.patch_embeddings.0.position_embeddings = 1 * *", "encoder.patch_embeddings.3.cls_token"),
        rules=(
            Rule(
                "encoder.patch_embeddings.#.position_embeddings", Layout("1 (p h w) c"), extra=(0, 1), side=Side(4)
            ),
        ),
        patch=Patch(kernel=None, stem=4),
        tokens=(),
        unit=32,
        method=BILINEAR,
        home_does="cannot: its forward reshapes the old table with the new sides, and raises",
        note="bilinear, as the model's first code; the last stage has a class token's row",
    ),
    _family(
        "yolos",
        "yolos",
        has=(*SIGNS, "embeddings.detection_tokens"),
        rules=(
            Rule("embeddings.position_embeddings", Layout("1 (p h w s) c"), suffix="embeddings.detection_tokens"),
            Rule("encoder.mid_position_embeddings", Layout("n 1 (p h w s) c"), suffix="embeddings.detection_tokens"),
        ),
        tokens=("embeddings.cls_token",),
        home_does=f"{ALWAYS}bicubic",
        note="the detection tokens' rows stand behind the grid, and stay",
    ),
    _family(
        "levit",
        "levit",
        has=("encoder.stages.0.layers.0.module.attention_biases",),
        rules=tuple(
            Rule(
                f"encoder.stages.#.layers.*.{place}attention_biases",
                Layout("c (h w)"),
                method=Method("bicubic", antialias=True, mirrored=True),
            )
            for place in ("module.", "")
        ),
        patch=Patch(kernel=None, stem=16),
        tokens=(),
        drop=("**.attention_bias_idxs",),
        home_does="cannot: a load of another size raises",
        note="the table is a quarter of the field of offsets; the whole is resampled, so that distance 0 stays 0",
    ),
    _family(
        "mgp-str",
        "mgp-str",
        has=("embeddings.pos_embed = 1 * *", "embeddings.proj.weight = * * * *"),
        rules=(Rule("embeddings.pos_embed", Layout("1 (p h w) c")),),
        patch=Patch("embeddings.proj.weight"),
        home_does="cannot: a load of another size raises",
    ),
    _family(
        "sam",
        "sam sam_vision_model sam_hq sam_hq_vision_model",
        has=("pos_embed = 1 * * *", "layers.0.attn.rel_pos_h", "patch_embed.projection.weight"),
        rules=(
            Rule("pos_embed", Layout("1 h w c")),
            Rule("layers.*.attn.rel_pos_h", Layout("h c"), offsets=True, method=BILINEAR, optional=True),
            Rule("layers.*.attn.rel_pos_w", Layout("w c"), offsets=True, method=BILINEAR, optional=True),
        ),
        patch=Patch("patch_embed.projection.weight"),
        tokens=(),
        square=True,
        home_does="in forward: rel_pos linear; the table never",
        note="global layers are those whose tables have the map's length; windowed ones keep theirs",
    ),
    _family(
        "vit",
        "vit deit vit_msn ijepa internvl_vision flava flava_image_model",
        home_does=FORWARD,
        note="as on disk; class, distillation and no token told from the file",
    ),
    _family(
        "clip",
        "clip clip_vision_model clipseg clipseg_vision_model chinese_clip chinese_clip_vision_model altclip "
        "altclip_vision_model metaclip_2 metaclip_2_vision_model owlvit owlvit_vision_model owlv2 owlv2_vision_model "
        "xclip xclip_vision_model git git_vision_model bridgetower bridgetower_vision_model kosmos_2_vision_model "
        "siglip siglip_vision_model janus_vision_model",
        has=("embeddings.position_embedding.weight = * *", "embeddings.patch_embedding.weight = * * * *"),
        rules=(Rule("embeddings.position_embedding.weight", Layout("(p h w) c")),),
        unnamed=("embeddings.class_embedding",),
        patch=Patch("embeddings.patch_embedding.weight"),
        tokens=("embeddings.class_embedding",),
        drop=STALE,
        square=True,
        note="the text tower's table, of the same name, is not touched; its config takes one side",
    ),
    _family(
        "blip",
        "blip blip_vision_model blip-2 blip_2_vision_model instructblip instructblip_vision_model",
        has=("embeddings.position_embedding = 1 * *", "embeddings.patch_embedding.weight = * * * *"),
        rules=(Rule("embeddings.position_embedding", Layout("1 (p h w) c")),),
        patch=Patch("embeddings.patch_embedding.weight"),
        tokens=("embeddings.class_embedding",),
        square=True,
        note="the text tower's table is not touched; its config takes one side",
    ),
    _family(
        "free",
        "dinov3_vit dinov3_convnext swinv2 donut-swin maskformer-swin videomae vjepa2 mlcd mlcd_vision_model convnext "
        "convnextv2 resnet regnet cvt pvt_v2 mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 efficientnet poolformer "
        "van focalnet swiftformer hgnet_v2 bit",
        has=(),
        rules=(),
        unnamed=None,
        patch=Patch(kernel=None),
        unit=1,
        leave=("**",),
        home_does="nothing to do: positions are computed, or windows, or there are none",
        note="the config and the preprocessor follow",
    ),
)  # fmt: skip
