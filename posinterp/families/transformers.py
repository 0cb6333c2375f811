"""Hugging Face transformers (checked against 5.24: names as on disk, and what its models do to other sizes in forward).

The library never converts a file: loading one at another size raises, or throws the positions away
(`ignore_mismatched_sizes`). What it does itself, in forward and on request, is the method here.
"""

from __future__ import annotations

from typing import Any

from ..layout import Layout
from ..method import Method
from ..rules import Family, Patch, Rule, Side, Window

PLAIN_BICUBIC = Method("bicubic")
BICUBIC = Method("bicubic", antialias=True)
BILINEAR = Method("bilinear")
SMOOTH = Method("bilinear", antialias=True)
NEAREST = Method("nearest")

TABLE = Rule("embeddings.position_embeddings", Layout("1 (p h w) c"))
PATCH = Patch("embeddings.patch_embeddings.projection.weight")
SIGNS = ("embeddings.position_embeddings = 1 * *", "embeddings.patch_embeddings.projection.weight = * * * *")
TOKENS = ("embeddings.cls_token", "embeddings.distillation_token")
FORWARD = "in forward, on request: bicubic"
ALWAYS = "in forward, always: "
CANNOT = "cannot: a load of another size raises"
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


def _native(name: str, archs: str, why: str, does: str) -> Family:
    """Towers that take any size: nothing of theirs is for one."""
    return _family(
        name,
        archs,
        has=(),
        rules=(),
        unnamed=None,
        patch=Patch(kernel=None),
        unit=1,
        leave=("**",),
        refuses=f"{why} at each image's own size, and it takes any as it is",
        note="there is nothing to convert: give it images of that size",
        home_does=f"nothing to do: {does} at each image's own size",
    )


def _bias(match: str) -> Rule:
    name = f"{match}.relative_position_bias_table"
    return Rule(name, Layout("(h w s) c"), extra=(3,), offsets=True, method=BILINEAR)


def _windowed(name: str, archs: str, blocks: str, kernel: str | None) -> Family:
    """ViTDet's kind: the table stays as it was trained, and offsets of global layers follow the map."""
    offsets = f"{blocks.replace('*', '0')}.rel_pos_h"
    return _family(
        name,
        archs,
        has=(f"{kernel} = * * * *",),
        unnamed=(offsets,),
        rules=tuple(
            Rule(f"{blocks}.rel_pos_{axis}", Layout(f"{axis} c"), offsets=True, optional=True) for axis in "hw"
        ),
        patch=Patch(kernel),
        tokens=(),
        method=BILINEAR,
        leave=("embeddings.position_embeddings",),
        home_does=f"{ALWAYS}bicubic for the table, linear for rel_pos",
        note="the table stays at the size it was trained at; windowed layers keep their rel_pos",
    )


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
        note="fixed sine tables; --method sincos computes them anew",
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
        "rf-detr",
        "rf_detr_dinov2",
        unnamed=None,
        method=BICUBIC,
        square=True,
        home_does=f"{ALWAYS}bicubic, antialias",
        note=SQUARE,
    ),
    _family(
        "tips",
        "tipsv2 tipsv2_vision_model",
        has=("pos_embed = 1 * *", "cls_token", "patch_embed.proj.weight = * * * *"),
        rules=(Rule("pos_embed", Layout("1 (p h w) c")),),
        unnamed=None,
        patch=Patch(),
        tokens=("cls_token",),
        method=SMOOTH,
        square=True,
        home_does=f"{ALWAYS}bilinear, antialias",
        note=f"register tokens have no rows; {SQUARE}",
    ),
    _family(
        "depth-pro",
        "depth_pro",
        unnamed=None,
        refuses="it cuts every image into crops of 384 pixels, whatever its size",
        note="there is nothing to convert: give it images of that size",
        home_does="nothing to do: it takes any size as it is",
    ),
    _family(
        "dinov2",
        "dinov2 pixio",
        has=SIGNS,
        unnamed=("encoder.layer.0.layer_scale1.lambda1",),
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
        has=("embeddings.patch_embeddings.projection.weight = * * * *",),
        unnamed=("{encoder,encoder.layer.0.attention.attention}.relative_position_bias.relative_position_bias_table",),
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
        rules=(
            Rule("embeddings.position_embeddings", Layout("1 (h w) c")),
            Rule(
                "encoder.layers.#.blocks.*.attention.self.relative_position_bias_table",
                Layout("(h w) c"),
                offsets=True,
                window="free",
                method=Method("geometric"),
            ),
        ),
        window=Window("window_size", uniform=True, square=True, within=True),
        leave=("**.relative_position_index",),
        differs="--window changes them, as timm does",
        note="tables span windows, which stay unless --window says otherwise, and must not be larger than the last map",
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
        "timesformer",
        "timesformer",
        unnamed=("embeddings.time_embeddings = 1 * *",),
        rules=(
            Rule("embeddings.position_embeddings", Layout("1 (p h w) c")),
            Rule("embeddings.time_embeddings", Layout("1 t c")),
        ),
        method=NEAREST,
        square=True,
        home_does=f"{ALWAYS}nearest",
        note="square images only: its blocks take one side from the config",
    ),
    _family(
        "vivit",
        "vivit",
        has=("embeddings.position_embeddings = 1 * *", "embeddings.patch_embeddings.projection.weight = * * * * *"),
        rules=(Rule("embeddings.position_embeddings", Layout("1 (p t h w) c")),),
        home_does="cannot: its forward takes space and time for one square, and raises",
        note="every frame's places are resampled; the number of frames stays unless the size says one",
    ),
    _family(
        "videoprism",
        "videoprism_vision_model",
        has=("spatial_embeddings.position_embeddings = 1 * *", "temporal_embeddings.position_embeddings = 1 * *"),
        rules=(
            Rule("spatial_embeddings.position_embeddings", Layout("1 (h w) c")),
            Rule("temporal_embeddings.position_embeddings", Layout("1 t c")),
        ),
        patch=Patch("spatial_embeddings.patch_embeddings.projection.weight"),
        tokens=(),
        method=SMOOTH,
        square=True,
        home_does="in forward, on request: bilinear, antialias",
        note=SQUARE,
    ),
    _family(
        "ast",
        "audio-spectrogram-transformer",
        has=(*SIGNS, "embeddings.distillation_token"),
        unnamed=None,
        patch=Patch("embeddings.patch_embeddings.projection.weight", steps=("frequency_stride", "time_stride")),
        home_does=CANNOT,
        note="an image is mel bins × frames of sound; patches overlap: (side - kernel) / stride + 1 places",
    ),
    _family(
        "vilt",
        "vilt",
        has=(*SIGNS, "embeddings.text_embeddings.word_embeddings.weight"),
        leave=("embeddings.text_embeddings.*.weight",),
        method=Method("bilinear", align_corners=True),
        square=True,
        home_does=f"{ALWAYS}bilinear, corners aligned",
        note="the text table is not touched; its config takes one side",
    ),
    _family(
        "layoutlmv3",
        "layoutlmv3",
        has=("pos_embed = 1 * *", "patch_embed.proj.weight = * * * *", "embeddings.x_position_embeddings.weight"),
        rules=(Rule("pos_embed", Layout("1 (p h w) c")),),
        patch=Patch(),
        tokens=("cls_token",),
        leave=("embeddings.**", "encoder.**"),
        square=True,
        home_does="cannot: its forward resamples the patches' places only, and raises",
        note="the tables of the text, and of boxes on the page, are not touched",
    ),
    _family(
        "vitpose",
        "vitpose vitpose_backbone",
        unnamed=None,
        rules=(Rule("embeddings.position_embeddings", Layout("1 (p h w) c"), extra=(1,)),),
        tokens=(),
        home_does=CANNOT,
        note="the table's first row is a class token's that the model does not have: it is added to every place",
    ),
    _family(
        "perceiver",
        "perceiver",
        has=("input_preprocessor.position_embeddings.position_embeddings = * *",),
        rules=(Rule("input_preprocessor.position_embeddings.position_embeddings", Layout("(h w) c")),),
        unnamed=None,
        leave=("decoder.**",),
        patch=Patch(kernel=None),
        tokens=(),
        unit=1,
        square=True,
        note="one row a pixel",
    ),
    _family(
        "hiera",
        "hiera",
        has=("embeddings.position_embeddings = 1 * *", "embeddings.patch_embeddings.projection.weight = * * 7 7"),
        unnamed=("encoder.stages.0.layers.0.attn.qkv.weight",),
        rules=(Rule("embeddings.position_embeddings", Layout("1 (h w) c"), side=Side(4)),),
        patch=Patch(kernel=None, stem=4),
        tokens=(),
        unit=32,
        square=True,
        note=f"a place is 4 pixels: the patch kernel overlaps; {SQUARE}",
    ),
    _windowed("vitdet", "vitdet", "encoder.layer.*.attention", "embeddings.projection.weight"),
    _windowed("seggpt", "seggpt", "encoder.layers.*.attention", PATCH.kernel),
    _family(
        "aimv2",
        "aimv2_vision_model",
        has=("embeddings.position_embedding.weight = * *", "embeddings.patch_embed.weight = * * * *"),
        rules=(Rule("embeddings.position_embedding.weight", Layout("(h w) c")),),
        patch=Patch("embeddings.patch_embed.weight"),
        tokens=(),
        square=True,
        home_does=CANNOT,
    ),
    _family(
        "llama4",
        "llama4 llama4_vision_model",
        has=("positional_embedding_vlm = * *", "patch_embedding.linear.weight = * *"),
        rules=(Rule("positional_embedding_vlm", Layout("(h w s) c"), extra=(1,)),),
        patch=Patch(kernel=None, pixels="patch_embedding.linear.weight"),
        square=True,
        home_does=CANNOT,
        note="the class token's row is the last one",
    ),
    _family(
        "mllama",
        "mllama mllama_vision_model",
        has=("gated_positional_embedding.embedding = * *", "patch_embedding.weight = * * * *"),
        rules=(
            Rule("gated_positional_embedding.embedding", Layout("(p h w) c")),
            Rule(
                "gated_positional_embedding.tile_embedding.weight",
                Layout("r (p h w) c"),
                copies="gated_positional_embedding.embedding",
            ),
        ),
        patch=Patch("patch_embedding.weight"),
        tokens=("class_embedding",),
        leave=("*_tile_positional_embedding.**",),
        square=True,
        home_does=CANNOT,
        note="a row of the tile table holds a whole grid for each tile",
    ),
    _family(
        "step",
        "step3p5_vision",
        has=("positional_embedding = * *", "conv1.weight = * * * *"),
        rules=(Rule("positional_embedding", Layout("(h w) c")),),
        unnamed=None,
        patch=Patch("conv1.weight"),
        tokens=(),
        method=BILINEAR,
        square=True,
        home_does=f"{ALWAYS}bilinear",
    ),
    _family(
        "molmo2",
        "molmo2 molmo2_vision",
        has=("positional_embedding = * *", "patch_embedding.weight = * *"),
        rules=(Rule("positional_embedding", Layout("(h w) c"), extra=(0,)),),
        unnamed=None,
        patch=Patch(kernel=None, pixels="patch_embedding.weight"),
        tokens=(),
        home_does=CANNOT,
    ),
    _family(
        "levit",
        "levit",
        has=("encoder.stages.0.layers.0.module.attention_biases",),
        rules=tuple(
            Rule(f"encoder.stages.#.layers.*.{place}attention_biases", Layout("c (h w)"))
            for place in ("module.", "")
        ),
        patch=Patch(kernel=None, stem=16),
        tokens=(),
        drop=("**.attention_bias_idxs",),
        home_does=CANNOT,
        note="as timm resizes the same kind of table in TinyViT",
    ),
    _family(
        "mgp-str",
        "mgp-str",
        has=("embeddings.pos_embed = 1 * *", "embeddings.proj.weight = * * * *"),
        rules=(Rule("embeddings.pos_embed", Layout("1 (p h w) c")),),
        patch=Patch("embeddings.proj.weight"),
        home_does=CANNOT,
    ),
    _family(
        "sam",
        "sam sam_vision_model sam_hq sam_hq_vision_model got_ocr2_vision pp_chart2table_vision pp_formulanet_vision",
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
        "vit deit vit_msn vit_mae ijepa internvl_vision qianfan_ocr_vision flava flava_image_model groupvit "
        "groupvit_vision_model",
        home_does=FORWARD,
        note="as on disk; class, distillation and no token told from the file",
    ),
    _family(
        "clip",
        "clip clip_vision_model clipseg clipseg_vision_model chinese_clip chinese_clip_vision_model altclip "
        "altclip_vision_model metaclip_2 metaclip_2_vision_model owlvit owlvit_vision_model owlv2 owlv2_vision_model "
        "xclip xclip_vision_model git git_vision_model bridgetower bridgetower_vision_model kosmos_2_vision_model "
        "siglip siglip_vision_model janus_vision_model idefics idefics_vision idefics2 idefics2_vision idefics3_vision "
        "smolvlm_vision granite_docling_vision minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision ovis2 "
        "phi4_multimodal_vision paddleocr_vl_vision",
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
        "blip blip_vision_model blip-2 blip_2_vision_model instructblip instructblip_vision_model instructblipvideo "
        "instructblipvideo_vision_model qianfan_ocr_vision",
        has=("embeddings.position_embedding = 1 * *", "embeddings.patch_embedding.weight = * * * *"),
        rules=(Rule("embeddings.position_embedding", Layout("1 (p h w) c")),),
        patch=Patch("embeddings.patch_embedding.weight"),
        tokens=("embeddings.class_embedding",),
        square=True,
        note="the text tower's table is not touched; its config takes one side",
    ),
    _native(
        "native",
        "glm4v_vision glm4v_moe_vision glm_image_vision qwen3_vl_vision qwen3_vl_moe_vision "
        "qwen3_omni_moe_vision_encoder qwen3_5_vision qwen3_5_moe_vision qwen4_exp_vision cohere_compass_vision "
        "kimi_k25_vision muse_glimmer_vision muse_spark_vision hunyuan_vl_vision hy_v4_vl_vision inkling2_vision",
        "it reads its table",
        "the table is read",
    ),
    _native(
        "native-rotary",
        "qwen2_vl qwen2_vl_vision qwen2_5_vl qwen2_5_vl_vision qwen2_5_omni_vision_encoder exaone4_5_vision "
        "ernie4_5_vl_moe_vision video_llama_3_vision dots3_note_vision_encoder minimax_m3_vl_vision",
        "its positions are computed",
        "positions are computed",
    ),
    _family(
        "free",
        "dinov3_vit dinov3_convnext swinv2 donut-swin maskformer-swin videomae vjepa2 mlcd mlcd_vision_model convnext "
        "convnextv2 resnet regnet cvt pvt_v2 mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 efficientnet poolformer "
        "van focalnet swiftformer hgnet_v2 bit align align_vision_model swin2sr textnet sapiens2 pixtral fuyu udop "
        "segformer glpn pp_lcnet pp_lcnet_v3 pp_lcnet_v4 omdet-turbo "
        "glm_ocr_vision glm5_next_vision radio lw_detr_vit sam2_hiera_det_model "
        "sam2 sam2_vision_model sam2_video sam3_vit_model hyperclovax_vision_v2",
        has=(),
        rules=(),
        unnamed=None,
        patch=Patch(kernel=None),
        unit=1,
        leave=("**",),
        home_does="nothing to do: positions are computed, or windows, or taken from a table of a size of its own",
        note="the config and the preprocessor follow",
    ),
)  # fmt: skip
