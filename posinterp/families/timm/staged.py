"""timm's pyramids and windowed models: every stage has a grid of its own.

`#` in a rule's glob is the number of the stage; its side doubles the pixels of a place with each. Tables of relative
positions hold one bias for each offset, (2h - 1)(2w - 1) of them, or one for each distance, h·w of them.
"""

from __future__ import annotations

from typing import Any

from ...layout import Layout
from ...method import Method
from ...rules import Family, Patch, Rule, Side, Window

GEOMETRIC = Method("geometric")
PLAIN_BILINEAR = Method("bilinear")

STALE = ("**.relative_position_index", "**.relative_coords_table", "**.attn_mask", "**.attention_bias_idxs")
NONE = "cannot: a strict load of another size raises"


def _offsets(match: str, side: Side, window: Any = "", layout: str = "(h w) c") -> Rule:
    """A table of one bias for each offset, as Swin's."""
    return Rule(
        f"{match}.relative_position_bias_table",
        Layout(layout),
        offsets=True,
        method=GEOMETRIC,
        side=side,
        window=window,
    )


def _distances(match: str, side: Side, window: Any = "") -> Rule:
    """A table of one bias for each pair of absolute distances, as LeViT's."""
    return Rule(f"{match}.attention_biases", Layout("c (h w)"), side=side, window=window)


def _axes(match: str, names: tuple[str, str], side: Side) -> tuple[Rule, ...]:
    """One vector for each offset, along one axis of the map."""
    return tuple(
        Rule(f"{match}.{name}", Layout(f"{axis} c"), offsets=True, method=PLAIN_BILINEAR, side=side)
        for name, axis in zip(names, "hw", strict=True)
    )


def _swin(name: str, archs: tuple[str, ...], window: Window, example: dict[str, object], **more: Any) -> Family:
    return Family(
        name,
        has=("layers.0.blocks.0.attn.relative_position_bias_table = * *", "patch_embed.proj.weight"),
        archs=archs,
        rules=(_offsets("layers.#.blocks.*.attn", Side(), "capped"),),
        drop=STALE,
        window=window,
        home_does="geometric; raises for a window that is not square",
        differs="such a window is told from the config, or from the image's aspect",
        example=example,
        **more,
    )


def _crossvit(name: str, archs: tuple[str, ...], scale: tuple[int, int], unit: int, example: str) -> Family:
    """Two branches, the second of which sees the image smaller; timm cuts its size to whole pixels."""
    return Family(
        name,
        has=("pos_embed_0 = 1 * *", "pos_embed_1 = 1 * *"),
        archs=archs,
        rules=(
            Rule("pos_embed_0", Layout("1 (p h w) c"), extra=(1,), side=Side(12)),
            Rule("pos_embed_1", Layout("1 (p h w) c"), extra=(1,), side=Side(16, scale=scale)),
        ),
        patch=Patch(kernel=None, stem=12),
        unit=unit,
        sized=True,
        home_does=NONE,
        note=f"two grids; only multiples of {unit} give both a whole number of places",
        example={"name": example, "num_classes": 5},
    )


def _bottleneck(
    name: str, archs: tuple[str, ...], unit: int, example: str, note: str, has: tuple[str, ...], **more: Any
) -> Family:
    """ResNets with attention in their last stages: over the map (qkv), or a neighbourhood (q and kv)."""
    return Family(
        name,
        has=("stages.**.self_attn.pos_embed.height_rel", *has),
        archs=archs,
        patch=Patch(kernel=None, stem=4),
        unit=unit,
        home_does=NONE,
        note=note,
        example={"name": example, "num_classes": 5},
        **more,
    )


HEIGHT_WIDTH = ("height_rel", "width_rel")
REL_POS = ("rel_pos_h", "rel_pos_w")
SMALL = {"num_classes": 5}
BIAS = "relative_position_bias_table"

FAMILIES: tuple[Family, ...] = (
    _swin(
        "swin-s3",
        ("swin_s3_*",),
        Window("window_size", usual=((7, 7, 14, 7), (14, 14, 14, 7)), uncapped="always_partition"),
        {"name": "swin_s3_tiny_224", "depths": (1, 1, 1, 1), **SMALL},
        unnamed=(f"layers.2.blocks.0.attn.{BIAS} = 729 *", f"layers.3.blocks.0.attn.{BIAS} = 169 *"),
        note="a window for each stage; --window says another",
    ),
    _swin(
        "swin",
        ("swin_*",),
        Window("window_size", uniform=True, uncapped="always_partition"),
        {"name": "swin_tiny_patch4_window7_224", "depths": (1, 1, 1, 1), **SMALL},
        note="tables span windows, which stay unless --window says otherwise, and are no larger than a stage's map",
    ),
    Family(
        "swinv2-cr",
        has=("stages.0.blocks.0.attn.meta_mlp.fc1.weight", "patch_embed.proj.weight"),
        archs=("swinv2_cr_*",),
        drop=STALE,
        unit=32,
        home_does="nothing to do: biases are computed from coordinates",
        note="windows are the image's 32nd part",
        example={"name": "swinv2_cr_tiny_224", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "swinv2",
        has=("layers.0.blocks.0.attn.cpb_mlp.0.weight", "patch_embed.proj.weight"),
        archs=("swinv2_*",),
        drop=STALE,
        window=Window("window_size", uniform=True, pretrained="pretrained_window_sizes"),
        home_does="nothing to do: biases are computed from coordinates",
        note="with --window the config keeps the window of training, by which coordinates are measured",
        example={"name": "swinv2_tiny_window8_256", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "coatnet",
        has=(f"stages.3.blocks.*.attn.rel_pos.{BIAS} = * *", "stem.conv1.weight"),
        lacks=(f"stages.0.**.{BIAS}",),
        archs=("coatnet_*", "coatnext_*", "test_coatnet"),
        rules=(_offsets("stages.#.blocks.*.attn.rel_pos", Side(4)),),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="geometric",
        note="tables span the whole map of their stage",
        example={"name": "test_coatnet", **SMALL},
    ),
    Family(
        "maxvit-tf",
        has=(f"stages.0.blocks.0.attn_{{block,grid}}.attn.rel_pos.{BIAS} = * * *", "stem.conv1.weight"),
        archs=("maxvit_*_tf_*",),
        rules=(_offsets("stages.*.blocks.*.attn_{block,grid}.attn.rel_pos", Side(32), layout="c h w"),),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="geometric",
        note="windows are the image's 32nd part; tables have heads first",
        example={"name": "maxvit_tiny_tf_224", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "maxvit",
        has=(f"stages.0.blocks.0.**attn_{{block,grid}}.**rel_pos.{BIAS} = * *", "stem.conv1.weight"),
        archs=("maxvit_*", "maxxvit*", "test_maxvit"),
        rules=(
            _offsets("stages.*.blocks.*.attn_{block,grid}.attn.rel_pos", Side(32)),
            _offsets("stages.*.blocks.*.attn.attn_{block,grid}.rel_pos", Side(32)),
        ),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="geometric",
        note="windows are the image's 32nd part",
        example={"name": "maxvit_tiny_pm_256", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "maxvit-mlp",
        has=("stages.3.blocks.0.**rel_pos.mlp.fc1.weight", "stem.conv1.weight"),
        archs=("maxvit_*", "maxxvit*", "coatnet_*", "coatnext_*", "test_maxvit", "test_coatnet"),
        leave=("**.rel_pos.mlp.**",),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does="nothing to do: biases are computed from coordinates",
        example={"name": "coatnet_rmlp_nano_rw_224", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "gcvit",
        has=(f"stages.0.blocks.0.attn.rel_pos.{BIAS}", "stages.0.global_block.**"),
        archs=("gcvit_*",),
        rules=(
            _offsets("stages.2.blocks.*.attn.rel_pos", Side(16)),
            _offsets("stages.*.blocks.*.attn.rel_pos", Side(32)),
        ),
        patch=Patch(kernel=None, stem=4),
        other=("window_size",),
        unit=32,
        home_does=NONE,
        note="windows are the image's 32nd part, the 16th in stage 2, since other windows ask for other layers",
        example={"name": "gcvit_xxtiny", **SMALL},
    ),
    Family(
        "mvitv2",
        has=("stages.0.blocks.0.attn.rel_pos_h", "patch_embed.proj.weight"),
        archs=("mvitv2_*",),
        rules=(  # the first block of stages 2 and 3 pools its queries, but not its keys: it sees the map before
            *_axes("stages.2.blocks.0.attn", REL_POS, Side(8)),
            *_axes("stages.3.blocks.0.attn", REL_POS, Side(16)),
            *_axes("stages.#.blocks.*.attn", REL_POS, Side(4)),
        ),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        square=True,
        home_does="linear along the axis, in the file's dtype",
        differs="computed in float64, rounded once",
        note="square images only",
        example={"name": "mvitv2_tiny", **SMALL},
    ),
    Family(
        "levit",
        has=("stages.0.blocks.0.attn.attention_biases", "stages.1.downsample.attn_downsample.attention_biases"),
        archs=("levit_*",),
        rules=(
            _distances("stages.#.blocks.*.attn", Side()),
            _distances("stages.#.downsample.attn_downsample", Side(before=True)),
        ),
        drop=STALE,
        patch=Patch(kernel=None, stem=2, stages="stem.conv*"),
        home_does=NONE,
        note="as timm resizes the same kind of table in TinyViT",
        example={"name": "levit_128s", **SMALL},
    ),
    Family(
        "efficientformer-v2",
        has=("stages.3.downsample.attn.attention_biases", "stages.2.blocks.*.token_mixer.attention_biases"),
        archs=("efficientformerv2_*",),
        rules=(
            _distances("stages.{2,3}.blocks.*.token_mixer", Side(32)),  # stage 2 attends on every other place
            _distances("stages.3.downsample.attn", Side(16)),
        ),
        drop=STALE,
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does=NONE,
        note="as timm resizes the same kind of table in TinyViT",
        example={"name": "efficientformerv2_s0", **SMALL},
    ),
    Family(
        "efficientvit-msra",
        has=("stages.0.blocks.0.mixer.m.attn.attention_biases",),
        archs=("efficientvit_m*",),
        rules=(_distances("stages.#.blocks.*.mixer.m.attn", Side(16, shorter=True), "capped"),),
        drop=STALE,
        patch=Patch(kernel=None, stem=16),
        window=Window("window_size", uniform=True, listed=True, square=True),
        home_does="bicubic, antialias, on the table of distances",
        note="windows are no larger than a stage's map; the image's shorter side counts",
        example={"name": "efficientvit_m0", **SMALL},
    ),
    Family(
        "tiny-vit",
        has=("stages.1.blocks.0.attn.attention_biases", "patch_embed.conv1.conv.weight"),
        archs=("tiny_vit_*",),
        rules=(_distances("stages.#.blocks.*.attn", Side(4), "free"),),
        drop=STALE,
        patch=Patch(kernel=None, stem=4),
        unit=1,
        window=Window("window_sizes", listed=True, square=True),
        takes_img_size=False,
        home_does="bicubic, antialias, on the table of distances",
        note="tables span windows, which stay unless --window says otherwise",
        example={"name": "tiny_vit_5m_224", "depths": (1, 1, 1, 1), **SMALL},
    ),
    Family(
        "nest",
        has=("levels.0.pos_embed = 1 * * *", "patch_embed.proj.weight"),
        archs=("nest_*", "jx_nest_*"),
        rules=(Rule("levels.#.pos_embed", Layout("1 (u v) (h w) c"), side=Side(4)),),
        patch=Patch(kernel=None, stem=4),
        unit=16,
        square=True,
        home_does="cannot: its filter looks for keys that it has not",
        note="resampled over the whole map, not block by block, which would load and be wrong",
        example={"name": "nest_tiny", **SMALL},
    ),
    Family(
        "visformer",
        has=("pos_embed1 = 1 * * *", "pos_embed3 = 1 * * *"),
        archs=("visformer_*",),
        rules=tuple(
            Rule(f"pos_embed{stage}", Layout("1 c h w"), side=Side(4 << stage)) for stage in (1, 2, 3)
        ),
        patch=Patch(kernel=None, stem=8),
        home_does=NONE,
        note="a table for each of three stages",
        example={"name": "visformer_tiny", **SMALL},
    ),
    _crossvit("crossvit-240", ("crossvit_*_240",), (224, 240), 120, "crossvit_tiny_240"),
    _crossvit("crossvit-408", ("crossvit_*_408",), (384, 408), 204, "crossvit_15_dagger_408"),
    _bottleneck(
        "botnet", ("botnet*", "eca_botnext*", "sebotnet*"), 32, "eca_botnext26ts_256", "tables span a stage's map",
        ("stages.**.self_attn.qkv.weight",),
        lacks=("stages.**.self_attn.kv.weight",),
        rules=(
            *_axes("stages.#.0.self_attn.pos_embed", HEIGHT_WIDTH, Side(4, before=True)),
            *_axes("stages.#.*.self_attn.pos_embed", HEIGHT_WIDTH, Side(4)),
        ),
    ),
    _bottleneck(
        "halobotnet", ("halo2botnet*", "lamhalobotnet*"), 128, "halo2botnet50ts_256",
        "tables of stage 3's last block span its map, the others a neighbourhood, and stay",
        ("stages.3.1.self_attn.qkv.weight", "stages.**.self_attn.kv.weight"),
        rules=_axes("stages.3.1.self_attn.pos_embed", HEIGHT_WIDTH, Side(32)),
        leave=("stages.**.self_attn.pos_embed.{height,width}_rel",),
    ),
    _bottleneck(
        "haloregnet", ("haloregnetz*",), 224, "haloregnetz_b", "tables span a neighbourhood, and stay",
        ("stages.2.3.self_attn.kv.weight",),
        leave=("stages.**.self_attn.pos_embed.{height,width}_rel",),
        lacks=("stem.conv2.**",),
    ),
    _bottleneck(
        "halonet", ("halonet*", "eca_halonext*", "sehalonet*"), 256, "halonet26t",
        "tables span a neighbourhood, and stay; maps must be multiples of a block of 8",
        ("stages.**.self_attn.kv.weight",),
        leave=("stages.**.self_attn.pos_embed.{height,width}_rel",),
    ),
    Family(
        "lambda-resnet",
        has=("stages.3.1.self_attn.pos_emb = * * *", "stem.conv1.conv.weight"),
        archs=("lambda_resnet26rpt*",),
        rules=(
            Rule("stages.#.0.self_attn.pos_emb", Layout("h w c"), offsets=True, side=Side(4, before=True)),
            Rule("stages.#.*.self_attn.pos_emb", Layout("h w c"), offsets=True, side=Side(4)),
        ),
        patch=Patch(kernel=None, stem=4),
        unit=32,
        home_does=NONE,
        note="tables of offsets have an odd side, so that bicubic keeps offset 0 in the middle",
        example={"name": "lambda_resnet26rpt_256", **SMALL},
    ),
)  # fmt: skip
