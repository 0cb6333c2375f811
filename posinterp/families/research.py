"""Checkpoints of research code that are not in a home library's layout. They name no architecture: tensors tell them.

What a repository does to its own tables is the method here, as far as it does one thing; where it does nothing, bicubic
with antialias.
"""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule, Side

PLAIN = Method("bicubic")
LINEAR = Method("bilinear")
NEAREST = Method("nearest")
TABLE = Rule("pos_embed", Layout("1 (p h w) c"))
KERNEL = "patch_embed.proj.weight = * * * *"
TUBES = "patch_embed.proj.weight = * * * * *"
TOKENS = ("cls_token", "dist_token")
CANNOT = "cannot: a load of another size raises"
FORWARD = "in forward: "


def _family(name: str, home: str, has: tuple[str, ...], **facts: Any) -> Family:
    return Family(name, has=has, home=home, **{"rules": (TABLE,), "tokens": TOKENS, **facts})


def _offsets(match: str, **facts: Any) -> tuple[Rule, ...]:
    """One axis of offsets by itself."""
    return tuple(
        Rule(f"{match}.rel_pos_{axis}", Layout(f"{axis} c"), offsets=True, method=LINEAR, **facts) for axis in "hw"
    )


DINOV2 = ("cls_token", "register_tokens")

FAMILIES: tuple[Family, ...] = (
    _family(  # hub/backbones.py: interpolate_antialias=True, interpolate_offset=0.0
        "dinov2-registers-original",
        "dinov2",
        ("pos_embed = 1 * *", "mask_token", "register_tokens", KERNEL),
        tokens=DINOV2,
        home_does=f"{FORWARD}bicubic, antialias",
        note="register tokens have no rows in the table",
    ),
    _family(  # the same file: interpolate_antialias=False, interpolate_offset=0.1
        "dinov2-original",
        "dinov2",
        ("pos_embed = 1 * *", "mask_token", "blocks.0.**", KERNEL, "blocks.**.ls1.gamma"),
        tokens=DINOV2,
        method=Method("bicubic", offset=0.1),
        home_does=f"{FORWARD}bicubic, scale factor with 0.1 added to the target",
    ),
    _family(
        "mae-original",
        "mae",
        ("decoder_pos_embed = 1 * *", "pos_embed = 1 * *", "decoder_blocks.0.attn.qkv.weight", KERNEL),
        rules=(TABLE, Rule("decoder_pos_embed", Layout("1 (p h w) c"))),
        method=PLAIN,
        home_does="util/pos_embed.py: bicubic, the encoder's only, from a square",
        differs="the decoder's too",
        note="fixed sine tables are resampled, as MAE fine-tunes; --method sincos computes them anew",
    ),
    _family(
        "timesformer-original",
        "timesformer",
        (
            "time_embed = 1 * *",
            "pos_embed = 1 * *",
            "blocks.0.temporal_attn.qkv.weight",
            "{,model.}patch_embed.proj.weight",
        ),
        rules=(TABLE, Rule("time_embed", Layout("1 t c"))),
        method=NEAREST,
        home_does=f"{FORWARD}nearest; at load nearest along the flattened rows",
        differs="as a grid at load, too",
    ),
    _family(  # jepa and vjepa2, videomae with learned positions
        "video-original",
        "jepa, videomae",
        ("pos_embed = 1 * *", "blocks.0.attn.qkv.weight", TUBES),
        rules=(Rule("pos_embed", Layout("1 (p t h w) c")),),
        method=PLAIN,
        home_does=f"{FORWARD}each frame bicubic (VideoMAE), or trilinear (V-JEPA)",
        note="frames × height × width; rows do not show the three, so --src-img FRAMESxHEIGHTxWIDTH",
    ),
    _family(
        "jepa-predictor",
        "jepa",
        ("predictor_pos_embed = 1 * *", "predictor_embed.weight", "predictor_blocks.0.attn.qkv.weight"),
        rules=(Rule("predictor_pos_embed", Layout("1 (p h w) c"), extra=(0,), side=None),),
        patch=Patch(kernel=None),
        tokens=(),
        unit=1,
        method=PLAIN,
        home_does=CANNOT,
        note="follows the encoder in the same file",
    ),
    _family(
        "ast-original",
        "ast",
        ("pos_embed = 1 * *", "dist_token", "patch_embed.proj.weight = * 1 * *", "blocks.0.attn.qkv.weight"),
        patch=Patch(steps=("fstride", "tstride")),
        method=LINEAR,
        home_does="bilinear, axis by axis; a smaller grid is cut from the middle",
        differs="a smaller grid is resampled, as a larger one is",
        note="an image is mel bins × frames of sound, which --src-img must say; it also tells the stride",
    ),
    _family(
        "yolos-original",
        "yolos",
        ("pos_embed = 1 * *", "det_token = 1 * *", KERNEL),
        rules=(
            Rule("pos_embed", Layout("1 (p h w s) c"), suffix="det_token"),
            Rule("mid_pos_embed", Layout("n 1 (p h w s) c"), suffix="det_token"),
        ),
        tokens=("cls_token",),
        method=PLAIN,
        home_does=f"{FORWARD}bicubic",
        note="the detection tokens' rows stand behind the grid, and stay",
    ),
    _family(
        "vitdet-original",
        "detectron2",
        ("blocks.0.attn.rel_pos_h = * *", "pos_embed = 1 * *", KERNEL),
        rules=_offsets("blocks.*.attn", optional=True),
        leave=("pos_embed",),
        home_does=f"{FORWARD}bicubic for the table, linear for rel_pos",
        note="the table stays at the size it was trained at; --src-img says the map that global blocks are for",
    ),
    _family(
        "hiera-video-original",
        "hiera",
        ("pos_embed_spatial = 1 * *", "pos_embed_temporal = 1 * *", "blocks.0.attn.qkv.weight"),
        rules=(
            Rule("pos_embed_spatial", Layout("1 (h w) c"), side=Side(4)),
            Rule("pos_embed_temporal", Layout("1 t c"), side=Side(4)),
        ),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does=CANNOT,
    ),
    _family(
        "sam2-original",
        "sam2",
        ("pos_embed = 1 * * *", "pos_embed_window = 1 * * *", "blocks.0.attn.qkv.weight"),
        rules=(),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        leave=("pos_embed", "pos_embed_window"),
        home_does="nothing to do: its fixed table is resized in forward",
    ),
    _family(  # utils.py of Swin and of SimMIM; those without absolute positions are timm's swin and swinv2
        "swin-original",
        "swin, simmim",
        ("absolute_pos_embed = 1 * *", "layers.0.blocks.0.attn.qkv.weight", "patch_embed.proj.weight = * * 4 4"),
        rules=(Rule("absolute_pos_embed", Layout("1 (h w) c"), extra=(0,), side=Side(4)),),
        patch=Patch(kernel=None, stem=4),
        tokens=(),
        unit=32,
        method=PLAIN,
        drop=("**.relative_position_index", "**.relative_coords_table", "**.attn_mask"),
        leave=("layers.*.blocks.*.attn.relative_position_bias_table",),
        home_does="at load: bicubic, from a square",
        note="Swin, V1 and V2, with absolute positions (APE); windows are kept",
    ),
    _family(
        "pvt-original",
        "pvt",
        ("pos_embed1 = 1 * *", "pos_embed4 = 1 * *", "patch_embed1.proj.weight = * * 4 4"),
        rules=tuple(
            Rule(f"pos_embed{stage}", Layout("1 (p h w) c"), extra=(int(stage == 4),), side=Side(2 << stage))
            for stage in (1, 2, 3, 4)
        ),
        patch=Patch(kernel=None, stem=4),
        tokens=(),
        unit=32,
        method=LINEAR,
        home_does=f"{FORWARD}bilinear",
        note="the last stage has a class token's row",
    ),
    _family(
        "mm-vit",
        "mmpretrain, mmseg",
        ("pos_embed = 1 * *", "patch_embed.projection.weight = * * * *", "layers.0.ln1.weight"),
        patch=Patch("patch_embed.projection.weight"),
        method=PLAIN,
        home_does="at load: bicubic, from a square; mmseg keeps one row before the grid",
        differs="all rows before the grid are kept",
    ),
    _family(
        "mm-beit",
        "mmpretrain",
        ("layers.0.attn.relative_position_bias_table = * *", "patch_embed.projection.weight = * * * *"),
        rules=(
            TABLE,
            Rule(
                "layers.*.attn.relative_position_bias_table",
                Layout("(h w s) c"),
                extra=(3,),
                offsets=True,
                method=Method("geometric"),
            ),
        ),
        patch=Patch("patch_embed.projection.weight"),
        drop=("layers.*.attn.relative_position_index",),
        home_does="at load: geometric, from a square",
        note="three extra rows for the class token; index buffers are computed anew",
    ),
    _family(
        "mm-sam",
        "mmpretrain",
        ("layers.0.attn.rel_pos_h = * *", "pos_embed = 1 * * *", "patch_embed.projection.weight = * * * *"),
        rules=(Rule("pos_embed", Layout("1 h w c")), *_offsets("layers.*.attn", optional=True)),
        patch=Patch("patch_embed.projection.weight"),
        method=PLAIN,
        home_does="at load: bicubic; rel_pos linear",
        note="global layers are those whose tables have the map's length; windowed ones keep theirs",
    ),
    _family(
        "mm-swin",
        "mmpretrain, mmdet, mmseg",
        ("stages.0.blocks.0.attn.w_msa.relative_position_bias_table", "patch_embed.projection.weight = * * * *"),
        rules=(Rule("absolute_pos_embed", Layout("1 (h w) c"), side=Side(4)),),
        patch=Patch(kernel=None, stem=4),
        tokens=(),
        unit=32,
        leave=("stages.*.blocks.*.attn.w_msa.relative_position_{bias_table,index}",),
        home_does="windows are kept",
    ),
)
