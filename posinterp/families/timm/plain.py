"""timm's models with one grid.

Most tables are [1, p + h·w, c], prefix rows first. What differs is who owns the prefix rows (told from the tokens that
the file holds), how many pixels a place spans, and three conventions of resampling.
"""

from __future__ import annotations

from typing import Any

from ...layout import Layout
from ...method import Method
from ...rules import Family, Patch, Rule, Side

TABLE = Rule("pos_embed", Layout("1 (p h w) c"))
CLASSLESS = Rule("pos_embed", Layout("1 (h w) c"))
TOKENS = ("cls_token", "dist_token", "reg_token")

# Rotary buffers are computed when the model is built; timm's own loader skips what older files still hold.
ROPE_BUFFERS = ("rope.bands", "rope.pos_embed", "rope.freqs_{sin,cos}", "rope.periods", "blocks.*.attn.rope.**")
ROPE_LEARNED = ("rope.freqs", "rope.freqs.**")  # the mixed variants learn theirs, and none depends on the size

BICUBIC = "bicubic, antialias; prefix rows kept"
NONE = "cannot: a strict load of another size raises"
PLAIN_BILINEAR = Method("bilinear")


# Bias tables of BEiT's kind; three rows at the end belong to the class token, where there is one.
def _bias(place: str) -> Rule:
    name = f"{place}.relative_position_bias_table"
    return Rule(name, Layout("(h w s) c"), extra=(0, 3), offsets=True, method=Method("geometric"))


def _sam(name: str, width: int, blocks: str, example: dict[str, object]) -> Family:
    """SAM's encoders attend globally in four blocks; the tables of the others span a window and stay."""
    sides = ("h", "w")
    return Family(
        name,
        has=("blocks.0.attn.rel_pos_h", f"patch_embed.proj.weight = {width} * * *"),
        lacks=("cls_token",),
        archs=("samvit_*",),
        rules=(
            Rule("pos_embed", Layout("1 h w c")),
            *(
                Rule(f"blocks.{blocks}.attn.rel_pos_{side}", Layout(f"{side} c"), offsets=True, method=PLAIN_BILINEAR)
                for side in sides
            ),
        ),
        leave=("blocks.*.attn.rel_pos_{h,w}",),
        home_does="resized in forward only: table bicubic, antialias; rel_pos linear",
        note="windowed blocks keep their tables",
        example=example,
    )


def _hybrid(
    name: str, patch: Patch, has: str, example: dict[str, object], archs: tuple[str, ...], *, fetches: bool = False
) -> Family:
    return Family(
        name,
        has=("pos_embed = 1 * *", has, *([patch.kernel] if patch.kernel else [])),
        archs=archs,
        rules=(TABLE,),
        patch=patch,
        tokens=TOKENS,
        home_does=BICUBIC,
        note="the grid follows the convolutional stem",
        fetches=fetches,
        example=example,
    )


def _vit(name: str, has: tuple[str, ...], archs: tuple[str, ...], example: dict[str, object], **more: Any) -> Family:
    facts: dict[str, Any] = {
        "rules": (TABLE,),
        "tokens": TOKENS,
        "drop": ROPE_BUFFERS,
        "leave": ROPE_LEARNED,
        "lacks": OTHERS,
        "home_does": BICUBIC,
        **more,
    }
    signs = ("pos_embed = 1 * *", "patch_embed.proj.weight", *has)
    return Family(name, has=signs, archs=archs, example=example, **facts)


# Hiera: a pyramid whose patch kernel is not its stride. YOLOS: rows with a suffix. Vim: a class row inside. Qwen3-VL's
# tower: a fixed table.
OTHERS = ("blocks.*.proj.weight", "det_token", "**.mixer.**", "merger.**", "patch_embed.backbone.**")
SMALL = {"depth": 2, "num_classes": 5}
SAM_SMALL = {"img_size": 256, "mlp_ratio": 0.25}

FAMILIES: tuple[Family, ...] = (
    _sam("sam-base", 768, "{2,5,8,11}", {"name": "samvit_base_patch16_224", "depth": 3}),
    _sam("sam-large", 1024, "{5,11,17,23}", {"name": "samvit_large_patch16", "depth": 6, **SAM_SMALL}),
    _sam("sam-huge", 1280, "{7,15,23,31}", {"name": "samvit_huge_patch16", "depth": 8, **SAM_SMALL}),
    Family(
        "beit",
        has=("blocks.0.attn.relative_position_bias_table", "patch_embed.proj.weight"),
        archs=("beit_*", "beitv2_*"),
        rules=(TABLE, _bias("blocks.*.attn")),
        tokens=TOKENS,
        drop=("blocks.*.attn.relative_position_index",),
        home_does="geometric; the class token's three rows kept; raises for a source that is not square",
        differs="such a source is told from the config",
        note="index buffers that older files hold are dropped: timm computes them",
        example={"name": "beit_base_patch16_224", **SMALL},
    ),
    Family(
        "vit-relpos-bias",
        has=("{blocks.0.attn.rel_pos,shared_rel_pos}.relative_position_bias_table", "patch_embed.proj.weight"),
        archs=("vit_*relpos_*", "test_vit_relpos"),
        rules=(_bias("blocks.*.attn.rel_pos"), _bias("shared_rel_pos")),
        lacks=("pos_embed",),
        home_does="geometric; the class token's three rows kept",
        note="built with rel_pos_type='bias'; no registered name is",
        example={"name": "vit_relpos_medium_patch16_cls_224", "rel_pos_type": "bias", **SMALL},
    ),
    Family(
        "vit-relpos-mlp",
        has=("{blocks.0.attn.rel_pos,shared_rel_pos}.mlp.fc1.weight", "patch_embed.proj.weight"),
        archs=("vit_*relpos_*", "test_vit_relpos"),
        lacks=("pos_embed",),
        leave=("**.rel_pos.mlp.**", "shared_rel_pos.mlp.**"),
        home_does="nothing to do: biases are computed from coordinates",
        example={"name": "test_vit_relpos"},
    ),
    Family(
        "cait",
        has=("pos_embed = 1 * *", "blocks_token_only.0.**", "patch_embed.proj.weight"),
        archs=("cait_*",),
        rules=(CLASSLESS,),
        home_does=NONE,
        note="the class token joins later and has no row",
        example={"name": "cait_xxs24_224", **SMALL},
    ),
    Family(
        "convit",
        has=("pos_embed = 1 * *", "blocks.0.attn.gating_param", "patch_embed.proj.weight"),
        archs=("convit_*",),
        rules=(CLASSLESS,),
        square=True,
        home_does=NONE,
        note="the class token joins later and has no row; square images only",
        example={"name": "convit_tiny", "num_classes": 5},
    ),
    Family(
        "tnt",
        has=("patch_pos = 1 * *", "pixel_pos"),
        archs=("tnt_*",),
        rules=(Rule("patch_pos", Layout("1 (p h w) c"), extra=(1,)),),
        leave=("pixel_pos",),
        patch=Patch(kernel=None, stem=16),
        home_does="bicubic, antialias; the same number of rows in another aspect is left as it is",
        differs="equal means an equal grid, never an equal number of rows",
        note="pixel_pos spans a patch, and stays",
        example={"name": "tnt_s_patch16_224", **SMALL},
    ),
    Family(
        "volo",
        has=("pos_embed = 1 * * *", "network.0.0.attn.attn.weight"),
        archs=("volo_*",),
        rules=(Rule("pos_embed", Layout("1 h w c")),),
        patch=Patch(kernel=None, stem=16),
        home_does=NONE,
        note="patches of 8 pixels, pooled by 2 before the table",
        example={"name": "volo_d1_224", "num_classes": 5},
    ),
    Family(
        "pit",
        has=("pos_embed = 1 * * *", "patch_embed.conv.weight", "transformers.0.**"),
        archs=("pit_*",),
        rules=(Rule("pos_embed", Layout("1 c h w")),),
        patch=Patch(kernel="patch_embed.conv.weight", overlap=True),
        unit=1,
        home_does=NONE,
        note="patches overlap: (side - kernel) / stride + 1 places",
        example={"name": "pit_ti_224", "num_classes": 5},
    ),
    Family(
        "hiera",
        has=("pos_embed = 1 * *", "blocks.*.proj.weight", "patch_embed.proj.weight = * * 7 7"),
        archs=("hiera_*",),
        rules=(Rule("pos_embed", Layout("1 (h w) c"), extra=(0,), side=Side(4)),),
        lacks=("pos_embed_win",),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does=NONE,
        note="a place is 4 pixels: the patch kernel overlaps",
        example={"name": "hiera_tiny_224", "stages": (1, 1, 1, 1), "num_classes": 5},
    ),
    Family(
        "hiera-abswin",
        has=("pos_embed_{win,window}", "pos_embed = 1 * * *"),
        archs=("hiera_*", "sam2_hiera_*", "hieradet_*"),
        leave=("pos_embed", "pos_embed_win", "pos_embed_window"),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="nothing to do: its fixed table is resized in forward",
        example={"name": "hiera_small_abswin_256", "stages": (1, 1, 1, 1), "num_classes": 5},
    ),
    Family(
        "clip-resnet",
        has=("head.pos_embed = * *", "stem.conv1.conv.weight"),
        archs=("resnet*_clip*",),
        rules=(Rule("head.pos_embed", Layout("(p h w) c"), extra=(1,), side=Side(32)),),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="resized in forward only: bicubic, antialias",
        note="the attention pool's first row belongs to the mean token",
        example={"name": "resnet50_clip", "num_classes": 5},
    ),
    Family(
        "rope",
        has=("patch_embed.proj.weight", "blocks.0.gamma_1"),
        archs=("vit_*rope*", "vit_*dinov3*", "vit_*sapiens2*", "vit_*lingbot*"),
        lacks=("pos_embed", "**relative_position_bias_table"),
        drop=ROPE_BUFFERS,
        leave=ROPE_LEARNED,
        home_does="nothing to do: rotary positions are computed",
        example={"name": "vit_small_patch16_rope_mixed_224", **SMALL},
    ),
    _hybrid(
        "hybrid-resnetv2",
        Patch(stem=4, stages="patch_embed.backbone.stages.*"),
        "patch_embed.backbone.stages.0.**",
        {"name": "vit_small_r26_s32_224", **SMALL},
        ("vit_*_r26_*", "vit_*_r50_*", "vit_*_resnet50_*"),
    ),
    _hybrid(
        "hybrid-resnet",
        Patch(stem=4, stages="patch_embed.backbone.{layer1,layer2,layer3,layer4}"),
        "patch_embed.backbone.layer1.**",
        {"name": "vit_small_resnet26d_224", **SMALL},
        ("vit_*_resnet*",),
        fetches=True,
    ),
    _hybrid(
        "hybrid-stem",
        Patch(stem=4),
        "patch_embed.backbone.conv.weight",
        {"name": "vit_tiny_r_s16_p8_224", **SMALL},
        ("vit_*_r_s16_*",),
    ),
    _hybrid(
        "hybrid-mobileclip",
        Patch(kernel=None, stem=4, stages="patch_embed.backbone.{0,1,2}"),
        "patch_embed.backbone.2.conv.weight",
        {"name": "vit_base_mci_224", **SMALL},
        ("vit_*_mci_*",),
    ),
    _hybrid(
        "vitamin",
        Patch(kernel=None, stem=16),
        "patch_embed.backbone.stem.conv1.weight",
        {"name": "vitamin_small_224", "num_classes": 5},
        ("vitamin_*",),
    ),
    Family(
        "vitamin-xlarge",
        has=("patch_embed.backbone.stem.conv1.weight", "blocks.0.attn.qkv.weight"),
        lacks=("pos_embed",),
        archs=("vitamin_xlarge_*",),
        patch=Patch(kernel=None, stem=16),
        home_does="nothing to do: it has no table",
        example={"name": "vitamin_xlarge_256"},
    ),
    _vit(
        "flexivit",
        (),
        ("flexivit_*",),
        {"name": "flexivit_small", **SMALL},
        unnamed=(  # a class token without a row, at 240 pixels, and nothing else: the published files alone
            "pos_embed = 1 225 {384,768,1024}",
            "patch_embed.proj.weight = * * 16 16",
            "cls_token",
            "blocks.0.norm1.bias",
        ),
        lacks=(*OTHERS, "norm_pre.weight", "reg_token", "dist_token", "blocks.0.ls1.gamma"),
        method=PLAIN_BILINEAR,
        home_does="bilinear, no antialias when loading; bicubic, antialias in set_input_size",
        note="at other sizes than 240 only its name tells it: say --family flexivit where no config does",
    ),
    _vit(
        "radio-v3-align",  # timm: _RADIO_ALIGN_CORNERS
        ("reg_token = 1 7 *", "pos_embed = 1 * {768,1280}"),
        ("vit_base_patch16_radio_v3", "vit_huge_patch16_radio_v3"),
        {"name": "vit_base_patch16_radio_v3", "img_size": 256, "depth": 2},
        method=Method("bilinear", align_corners=True),
        home_does="bilinear, align-corners when loading; bicubic, antialias in set_input_size",
    ),
    _vit(
        "radio",
        ("reg_token = 1 {7,9} *",),
        ("vit_*radio_v[34]",),
        {"name": "vit_large_patch16_radio_v3", "img_size": 256, "depth": 1},
        method=PLAIN_BILINEAR,
        home_does="bilinear, no antialias when loading; bicubic, antialias in set_input_size",
    ),
    _vit(
        "deit-distilled",
        ("dist_token",),
        ("deit_*distilled*",),
        {"name": "deit_tiny_distilled_patch16_224", **SMALL},
        note="two prefix rows: class and distillation token",
    ),
    _vit("deit3", ("blocks.0.ls1.gamma",), ("deit3_*",), {"name": "deit3_small_patch16_224", **SMALL},
         unnamed=None, note="the class token has no row in the table"),
    _vit("dinov2", ("blocks.0.ls1.gamma",), ("vit_*dinov2*", "vit_*tipsv2*"),
         {"name": "vit_small_patch14_reg4_dinov2", "img_size": 224, **SMALL}, unnamed=None,
         note="with registers, timm has folded the class token's row into the token"),
    _vit("siglip", ("attn_pool.latent",), ("vit_*siglip*",), {"name": "vit_base_patch16_siglip_224", "depth": 1},
         note="no prefix rows; the pooling head does not depend on the size"),
    _vit("clip", ("norm_pre.weight",), ("vit_*clip_*",), {"name": "vit_base_patch32_clip_224", "depth": 1},
         note="a CLIP tower with a norm before the blocks"),
    _vit("eva", ("blocks.0.{attn.q_bias,attn.q_proj.weight,gamma_1}",),
         ("eva02*", "eva_giant*", "vit_*rope*_ape_*", "vit_*mixed_ape_*", "vit_pe_*", "test_eva*"),
         {"name": "eva02_tiny_patch14_224", **SMALL},
         note="rotary buffers are computed and not stored; those of older files are dropped"),
    _vit("vit", (), ("vit_*", "deit_*", "test_vit*", "beit3_*", "aimv2_*", "eva_large_*"), {"name": "test_vit"},
         note="class token, distillation and register tokens told from the file"),
)  # fmt: skip
