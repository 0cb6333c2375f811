"""Hugging Face folders: the library's own resize in forward is the oracle, and its loader must find nothing missing."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import CLIP, clip, load, save, table

import posinterp as pi
from posinterp.verification import verify

transformers = pytest.importorskip("transformers")

TINY = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
DINO = {**TINY, "image_size": 70, "patch_size": 14}
BEIT = {**TINY, "use_absolute_position_embeddings": True}
YOLOS = {**TINY, "image_size": [64, 64], "num_detection_tokens": 5}
HIERA = {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "num_query_pool": 2}
PRISM = {**TINY, "num_frames": 4, "tubelet_size": [1, 16, 16], "num_spatial_layers": 1, "num_temporal_layers": 1}
ON_REQUEST: Mapping[str, Any] = {"interpolate_pos_encoding": True}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def kind_of(name: str) -> Any:
    """A class of the library's, by its name; those that it does not export, from the module of their code."""
    if hasattr(transformers, name):
        return getattr(transformers, name)
    modules = {"GitVisionModel": "git.modeling_git", "Kosmos2VisionModel": "kosmos2.modeling_kosmos2"}
    return getattr(importlib.import_module(f"transformers.models.{modules[name]}"), name)


def built(name: str, config: Mapping[str, Any]) -> Any:
    """A small model whose positions no symmetry hides."""
    torch.manual_seed(5)
    kind = kind_of(name)
    model = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if any(word in key for word in ("position", "pos_embed", "token", "class_emb", "rel_pos")):
                value.copy_(torch.randn(value.shape) * 0.5)
    return model


def features(model: Any, image: torch.Tensor, **more: Any) -> torch.Tensor:
    with torch.inference_mode():
        out = model(**{model.main_input_name: image}, **more)
    return out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]


@pytest.mark.parametrize(
    ("name", "config", "sizes", "how"),
    [
        ("ViTModel", TINY, [(96, 96), (48, 48), (64, 96), (32, 128)], ON_REQUEST),
        ("DeiTModel", TINY, [(96, 96), (64, 96)], ON_REQUEST),
        ("Dinov2Model", DINO, [(98, 98), (56, 56)], {}),
        ("Dinov2WithRegistersModel", DINO, [(98, 98), (56, 56)], {}),
        ("BeitModel", {**BEIT, "use_relative_position_bias": True}, [(96, 96), (48, 48)], ON_REQUEST),
        ("BeitModel", {**BEIT, "use_shared_relative_position_bias": True}, [(96, 96)], ON_REQUEST),
        ("Data2VecVisionModel", {**BEIT, "use_relative_position_bias": True}, [(96, 96)], ON_REQUEST),
        ("YolosModel", YOLOS, [(96, 128), (48, 48)], {}),
        ("IJepaModel", TINY, [(96, 96), (64, 96)], ON_REQUEST),
        ("DPTModel", {**TINY, "backbone_out_indices": [0, 1, 1, 1], "is_hybrid": False}, [(96, 96), (48, 48)], {}),
        ("CLIPVisionModel", TINY, [(96, 96), (48, 48)], ON_REQUEST),
        ("SiglipVisionModel", TINY, [(96, 96), (48, 48)], ON_REQUEST),
        ("BlipVisionModel", TINY, [(96, 96)], ON_REQUEST),
        ("PixioModel", TINY, [(96, 96), (48, 48)], {}),
        ("Tipsv2VisionModel", {**DINO, "num_register_tokens": 1}, [(98, 98), (56, 56)], {}),
        ("HieraModel", HIERA, [(96, 96)], ON_REQUEST),
        ("TimesformerModel", {**TINY, "num_frames": 4}, [(96, 96)], {}),
        ("VideoPrismVisionModel", PRISM, [(96, 96), (48, 48)], ON_REQUEST),
        ("GitVisionModel", TINY, [(96, 96)], ON_REQUEST),
        ("Kosmos2VisionModel", TINY, [(96, 96)], ON_REQUEST),
        ("FlavaImageModel", TINY, [(96, 96), (64, 96)], ON_REQUEST),
        ("VitDetModel", {**TINY, "use_relative_position_embeddings": True, "pretrain_image_size": 64}, [(96, 96)], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_equals_the_library_in_forward(name: str, config: Any, sizes: Any, how: Any, tmp_path: Path) -> None:
    model = built(name, config)
    model.save_pretrained(tmp_path / "src")
    for size in sizes:
        out = tmp_path / f"{size[0]}x{size[1]}"
        made = pi.resize(tmp_path / "src", size, out)
        assert made.edits
        loaded, said = kind_of(name).from_pretrained(out, output_loading_info=True)
        assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
        clip = (config["num_frames"],) if "num_frames" in config else ()
        image = torch.randn(1, *clip, 3, *size, generator=torch.Generator().manual_seed(1))
        native = {"interpolate_pos_encoding": False} if how else {}
        torch.testing.assert_close(
            features(loaded.eval(), image, **native), features(model, image, **how), rtol=1e-4, atol=1e-4
        )
        verdict = verify(out, against=tmp_path / "src")
        assert verdict.ok, verdict.checks
        known = "pass" if hasattr(transformers, name) else "skip"  # verify takes no class from inside
        asked = {check.name: check.status for check in verdict.checks if check.name in ("loads", "forward")}
        assert asked == {"loads": known, "forward": known}


def test_verify_asks_the_library(tmp_path: Path) -> None:
    built("ViTModel", TINY).save_pretrained(tmp_path / "src")
    pi.resize(tmp_path / "src", 96, tmp_path / "out")
    tensors = load(tmp_path / "out")
    for spoiled, check in (
        ({key: value for key, value in tensors.items() if "layernorm.weight" not in key}, "loads"),
        (tensors | {"extra.weight": np.ones(3, np.float32)}, "loads"),
        (
            {key: value * np.float32("nan") if "layernorm.weight" in key else value for key, value in tensors.items()},
            "forward",
        ),
    ):
        save(tmp_path / "out", spoiled, json.loads((tmp_path / "out" / "config.json").read_text()))
        failed = [one.name for one in verify(tmp_path / "out").checks if one.status == "fail"]
        assert check in failed, failed


def grid(rows: torch.Tensor, old: tuple[int, int], new: tuple[int, int], **how: Any) -> torch.Tensor:
    image = rows.double().reshape(1, *old, -1).permute(0, 3, 1, 2)
    return F.interpolate(image, new, **how).permute(0, 2, 3, 1).reshape(1, new[0] * new[1], -1).float()


AST = {
    **{key: value for key, value in TINY.items() if key != "image_size"},
    "frequency_stride": 10,
    "time_stride": 10,
    "num_mel_bins": 64,
    "max_length": 104,
}
VIVIT = {**TINY, "num_frames": 4, "tubelet_size": [2, 16, 16]}
TEXT = {"vocab_size": 40, "max_position_embeddings": 32}
LAYOUT = {**TINY, **TEXT, "input_size": 64, "coordinate_size": 4, "shape_size": 8, "max_2d_position_embeddings": 64}
TILES = {"image_size": 64, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1,
         "attention_heads": 2, "intermediate_size": 64, "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2]],
         "intermediate_layers_indices": [0], "vision_output_dim": 64}  # fmt: skip
LLAMA4 = {**TINY, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
PERCEIVER = {"image_size": 8, "num_latents": 4, "d_latents": 16, "d_model": 512, "num_blocks": 1, "num_labels": 2,
             "num_self_attends_per_block": 1, "num_self_attention_heads": 2, "num_cross_attention_heads": 1}  # fmt: skip
SEG = {
    **TINY,
    "image_size": [64, 32],
    "pretrain_image_size": 64,
    "merge_index": 0,
    "intermediate_hidden_state_indices": [1],
}


MOLMO = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 8, "image_size": [64, 64], "patch_size": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "size", "table", "rows", "before", "after", "how"),
    [
        ("ASTModel", AST, (64, 144), "position_embeddings", (2, 0), (5, 9), (5, 13), {"mode": "bicubic"}),
        ("ASTModel", AST, (84, 104), "position_embeddings", (2, 0), (5, 9), (7, 9), {"mode": "bicubic"}),
        ("VivitModel", VIVIT, 96, "position_embeddings", (1, 0), (2, 4, 4), (2, 6, 6), {"mode": "bicubic"}),
        ("VivitModel", VIVIT, (8, 64, 64), "position_embeddings", (1, 0), (2, 4, 4), (4, 4, 4), {"mode": "bicubic"}),
        ("VivitModel", VIVIT, (8, 32, 96), "position_embeddings", (1, 0), (2, 4, 4), (4, 2, 6), {"mode": "bicubic"}),
        ("TimesformerModel", {**TINY, "num_frames": 4}, (6, 64, 64), "time_embeddings", (0, 0), (4, 1), (6, 1), {"mode": "nearest"}),
        ("MllamaVisionModel", TILES, 96, "positional_embedding.embedding$", (1, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("MllamaVisionModel", TILES, 96, "tile_embedding.weight", (1, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("Llama4VisionModel", LLAMA4, 96, "positional_embedding_vlm", (0, 1), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("LayoutLMv3Model", LAYOUT, 96, "^pos_embed", (1, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("VitPoseBackbone", {**TINY, "image_size": [64, 48]}, (96, 64), "position_embeddings", (1, 0), (4, 3), (6, 4), {"mode": "bicubic"}),
        ("Aimv2VisionModel", TINY, 96, "position_embedding", (0, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("PerceiverForImageClassificationLearned", PERCEIVER, 12, "input_preprocessor.position", (0, 0), (8, 8), (12, 12), {"mode": "bicubic"}),
        ("GroupViTVisionModel", {**TINY, "depths": [1, 1, 0], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]}, 96, "position_embeddings", (0, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("ViltModel", {**TINY, **TEXT}, 96, "^embeddings.position_embeddings", (1, 0), (4, 4), (6, 6), {"mode": "bilinear", "align_corners": True}),
        ("ViTMAEForPreTraining", {**TINY, "decoder_hidden_size": 16, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16, "decoder_num_hidden_layers": 1}, 96, "decoder_pos_embed", (1, 0), (4, 4), (6, 6), {"mode": "bicubic"}),
        ("Molmo2VisionModel", MOLMO, (96, 64), "positional_embedding", (0, 0), (4, 4), (6, 4), {"mode": "bicubic"}),
        ("SegGptModel", SEG, (96, 64), "rel_pos_h", (0, 0), (7, 1), (11, 1), {"mode": "bilinear"}),
        ("SegGptModel", SEG, (96, 64), "rel_pos_w", (0, 0), (3, 1), (7, 1), {"mode": "bilinear"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_equals_a_reference(
    name: str, config: Any, size: Any, table: str, rows: Any, before: Any, after: Any, how: Any, tmp_path: Path
) -> None:
    """Where the library has no way of its own, or only for a part: its loader takes the result, and torch agrees."""
    built(name, config).save_pretrained(tmp_path / "src")
    made = pi.resize(tmp_path / "src", size, tmp_path / "out")
    edits = [edit for edit in made.edits if re.search(table, edit.name)]
    assert edits
    old, new = load(tmp_path / "src"), load(tmp_path / "out")
    for edit in edits:
        width = 32 if "tile" in table else old[edit.name].shape[-1]  # a row of the tile table holds several grids
        first, last = rows
        was, now = (
            value[edit.name].reshape(-1, sum(rows) + math.prod(grid), width)
            for value, grid in ((old, before), (new, after))
        )
        np.testing.assert_array_equal(now[:, :first], was[:, :first])
        np.testing.assert_array_equal(now[:, now.shape[1] - last :], was[:, was.shape[1] - last :])
        for one, other in zip(was, now, strict=True):
            inner = torch.from_numpy(one[first : len(one) - last])
            wanted = resampled(inner, before, after, **how)
            np.testing.assert_allclose(other[first : len(other) - last], wanted, atol=2e-6)
    _, said = kind_of(name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), said
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks
    untouched = set(old) - {edit.name for edit in made.edits}
    assert all(np.array_equal(old[key], new[key]) for key in untouched)


def resampled(rows: torch.Tensor, before: tuple[int, ...], after: tuple[int, ...], **how: Any) -> np.ndarray:
    """Frames by themselves, and then places along time by themselves."""
    flat = {**how, **({} if how["mode"] == "nearest" else {"align_corners": how.get("align_corners", False)})}
    times = before[:-2] or (1,)
    clip = rows.double().reshape(*times, *before[-2:], -1).permute(0, 3, 1, 2)
    clip = F.interpolate(clip, after[-2:], **flat)
    if before[:-2] != after[:-2]:
        t, c, h, w = clip.shape
        clip = F.interpolate(clip.permute(2, 3, 1, 0).reshape(1, h * w, c, t), (c, *after[:-2]), **flat)
        clip = clip.reshape(h, w, c, -1).permute(3, 2, 0, 1)
    return clip.permute(0, 2, 3, 1).reshape(-1, rows.shape[-1]).float().numpy()


def test_the_frames_are_said_in_the_config(tmp_path: Path) -> None:
    built("VivitModel", VIVIT).save_pretrained(tmp_path / "src")
    made = pi.resize(tmp_path / "src", "8x96x96", tmp_path / "out")
    assert (made.dst_img.frames, written(tmp_path / "out")["num_frames"]) == (8, 8)
    again = pi.plan(tmp_path / "out", 64)
    assert (str(again.src_img), str(again.dst_img)) == ("8x96x96", "8x64x64")
    with pytest.raises(pi.PosinterpError, match="7 frames are no multiple of the 2 that a place of .* spans"):
        pi.plan(tmp_path / "src", "7x64x64")


def test_sines_computed_anew_are_the_librarys(tmp_path: Path) -> None:
    decoder = {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16}
    kind = kind_of("ViTMAEForPreTraining")
    config = {**TINY, **decoder, "hidden_size": 32, "decoder_num_hidden_layers": 1}

    def fresh(size: int) -> Any:
        model = kind(kind.config_class(**{**config, "image_size": size}))
        for part in (*model.modules(), *model.parameters()):
            part._is_hf_initialized = False  # or the next two do nothing
        model.vit.embeddings.initialize_weights()
        model.decoder.initialize_weights((size // 16) ** 2)
        return model

    fresh(64).save_pretrained(tmp_path / "src")
    pi.resize(tmp_path / "src", 96, tmp_path / "out", method="sincos")
    resized, new = kind.from_pretrained(tmp_path / "out"), fresh(96)
    for name in ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed"):
        assert new.get_parameter(name).abs().max() > 0.5
        torch.testing.assert_close(resized.get_parameter(name), new.get_parameter(name), rtol=0, atol=1e-5)
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks


def test_frames_by_themselves(tmp_path: Path) -> None:
    built("VivitModel", VIVIT).save_pretrained(tmp_path / "src")
    assert str(pi.plan(tmp_path / "src", frames=8).dst_img) == "8x64x64"
    assert pi.plan(tmp_path / "src", 96, frames=8).edits == pi.plan(tmp_path / "src", "8x96x96").edits
    with pytest.raises(pi.PosinterpError, match="8x96x96 has 8 frames, and --frames says 4"):
        pi.plan(tmp_path / "src", "8x96x96", frames=4)
    with pytest.raises(pi.PosinterpError, match="0 is no number of frames"):
        pi.plan(tmp_path / "src", frames=0)


def test_images_have_no_frames(tmp_path: Path) -> None:
    built("ViTModel", TINY).save_pretrained(tmp_path / "src")
    with pytest.raises(pi.PosinterpError, match="4x64x64 has frames, and hf-vit models take images"):
        pi.plan(tmp_path / "src", "4x64x64")


def test_a_count_of_rows_in_a_config_follows(tmp_path: Path) -> None:
    built("Molmo2VisionModel", MOLMO).save_pretrained(tmp_path / "src")
    config = written(tmp_path / "src")
    config["image_num_pos"] = config.pop("num_position_embeddings")  # as the published files call them
    config["image_default_input_size"] = config.pop("image_size")
    (tmp_path / "src" / "config.json").write_text(json.dumps(config))
    pi.resize(tmp_path / "src", 96, tmp_path / "out")
    new = written(tmp_path / "out")
    assert (new["image_num_pos"], new["image_default_input_size"]) == (36, [96, 96])
    _, said = kind_of("Molmo2VisionModel").from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), said


RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
SEGFORMER = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}


@pytest.mark.parametrize(
    ("name", "config", "said", "size", "wanted"),
    [
        ("ResNetModel", RESNET, {"size": {"shortest_edge": 224}}, 224, {"size": {"shortest_edge": 448}}),
        ("ResNetModel", RESNET, {"size": 256, "crop_size": 224}, 224, {"size": 512, "crop_size": 448}),
        ("ResNetModel", RESNET, {"size": 256, "crop_size": 224, "do_center_crop": False}, 256, {"size": 448}),
        ("ResNetModel", RESNET, {"size": {"shortest_edge": 800, "longest_edge": 1333}}, None, {}),
        ("ResNetModel", RESNET, {"size": "large"}, None, {}),
        ("SegformerModel", SEGFORMER, {"size": {"height": 512, "width": 512}}, 512, {"size": {"height": 448, "width": 448}}),
    ],
    ids=str,
)  # fmt: skip
def test_a_size_that_only_the_preprocessor_says(
    name: str, config: Any, said: dict[str, Any], size: int | None, wanted: dict[str, Any], tmp_path: Path
) -> None:
    built(name, config).save_pretrained(tmp_path / "src")
    (tmp_path / "src" / "preprocessor_config.json").write_text(json.dumps(said))
    made = pi.resize(tmp_path / "src", 448, tmp_path / "out")
    assert made.src_img == (None if size is None else (size, size))
    out = written(tmp_path / "out", "preprocessor_config.json")
    assert {key: out[key] for key in wanted} == wanted
    assert wanted or out == said
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks
    if wanted:
        (tmp_path / "out" / "preprocessor_config.json").write_text(json.dumps(said))
        assert [one.name for one in verify(tmp_path / "out", against=tmp_path / "src").failed] == ["config"]


def test_a_spectrograms_preprocessor_follows(tmp_path: Path) -> None:
    built("ASTModel", AST).save_pretrained(tmp_path / "src")
    (tmp_path / "src" / "preprocessor_config.json").write_text('{"num_mel_bins": 64, "max_length": 104, "mean": -4.2}')
    pi.resize(tmp_path / "src", (64, 144), tmp_path / "out")
    assert written(tmp_path / "out", "preprocessor_config.json") == {
        "num_mel_bins": 64,
        "max_length": 144,
        "mean": -4.2,
    }
    assert (written(tmp_path / "out")["num_mel_bins"], written(tmp_path / "out")["max_length"]) == (64, 144)


def test_pvt_has_a_grid_for_each_stage(tmp_path: Path) -> None:
    small = {"image_size": 64, "hidden_sizes": [8, 16, 32, 32], "num_attention_heads": [1, 1, 1, 1], "depths": [1] * 4}
    model = built("PvtModel", small)
    model.save_pretrained(tmp_path / "src")
    pi.resize(tmp_path / "src", 96, tmp_path / "out")
    old, new = load(tmp_path / "src"), load(tmp_path / "out")
    for stage, side in enumerate((16, 8, 4, 2)):
        name = f"encoder.patch_embeddings.{stage}.position_embeddings"
        before, prefix = torch.from_numpy(old[name]), int(stage == 3)
        wanted = grid(before[:, prefix:], (side, side), (side * 3 // 2,) * 2, mode="bilinear")
        np.testing.assert_allclose(new[name][:, prefix:], wanted, atol=1e-6)
        np.testing.assert_array_equal(new[name][:, :prefix], old[name][:, :prefix])
    _, said = transformers.PvtModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not said["mismatched_keys"]


def test_sams_windowed_layers_keep_their_tables(tmp_path: Path) -> None:
    small = {"image_size": 128, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "global_attn_indexes": [1], "window_size": 3, "mlp_dim": 64, "output_channels": 8}  # fmt: skip
    model = built("SamVisionModel", small)
    model.save_pretrained(tmp_path / "src")
    made = pi.resize(tmp_path / "src", 192, tmp_path / "out")
    assert sorted(edit.name.split(".", 1)[-1] for edit in made.edits) == sorted(
        name.split(".", 1)[-1] for name in load(tmp_path / "src") if "pos" in name and "layers.0" not in name
    )
    loaded = transformers.SamVisionModel.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        assert loaded(torch.zeros(1, 3, 192, 192)).last_hidden_state.isfinite().all()
    assert verify(tmp_path / "out", against=tmp_path / "src").ok


@pytest.mark.parametrize("name", ["ConvNextModel", "Swinv2Model", "DINOv3ViTModel"])
def test_what_has_no_table_gets_its_config(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"image_size": 64}
    small |= {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]} if name == "ConvNextModel" else {}
    small |= {"depths": [1, 1], "num_heads": [1, 1], "embed_dim": 8, "window_size": 4} if name == "Swinv2Model" else {}
    small |= TINY if name.startswith("DINO") else {}
    model = built(name, small)
    model.save_pretrained(tmp_path / "src")
    made = pi.resize(tmp_path / "src", 96, tmp_path / "out")
    assert not made.edits
    assert json.loads((tmp_path / "out" / "config.json").read_text())["image_size"] == 96
    for key, value in load(tmp_path / "src").items():
        np.testing.assert_array_equal(load(tmp_path / "out")[key], value)


# ------------------------------------------------------------------ configs, without the library


def written(folder: Path, name: str = "config.json") -> Any:
    return json.loads((folder / name).read_text())


def test_the_text_tower_is_not_touched(tmp_path: Path) -> None:
    source = save(tmp_path / "clip", clip(), CLIP)
    made = pi.resize(source, 96, tmp_path / "out")
    assert [edit.name for edit in made.edits] == ["vision_model.embeddings.position_embedding.weight"]
    assert made.drop == ("vision_model.embeddings.position_ids",)
    assert written(tmp_path / "out") == {**CLIP, "vision_config": {**CLIP["vision_config"], "image_size": 96}}  # type: ignore[dict-item]
    assert verify(tmp_path / "out", against=source).ok


def test_a_stale_config_fails_verification(tmp_path: Path) -> None:
    source = save(tmp_path / "clip", clip(), CLIP)
    pi.resize(source, 96, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(CLIP))
    failed = [check.name for check in verify(tmp_path / "out", against=source).checks if check.status == "fail"]
    assert failed == ["config"]


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_what_prepares_an_image_keeps_its_proportions(file: str, tmp_path: Path) -> None:
    source = save(tmp_path / "clip", clip(), CLIP)
    sizes = {"size": {"shortest_edge": 73}, "crop_size": {"height": 64, "width": 64}, "do_resize": True}
    inside = {"image_processor": sizes, "processor_class": "X"} if file.startswith("processor") else sizes
    (source / file).write_text(json.dumps(inside))
    pi.resize(source, 96, tmp_path / "out")
    wanted = {"size": {"shortest_edge": 110}, "crop_size": {"height": 96, "width": 96}, "do_resize": True}
    found = written(tmp_path / "out", file)
    assert (found["image_processor"] if file.startswith("processor") else found) == wanted
    pi.resize(source, 96, source, overwrite=True)  # in place, too
    assert written(source, file) == found


@pytest.mark.parametrize(
    ("more", "path", "wanted"),
    [
        ({"image_seq_length": 16}, ("image_seq_length",), 36),
        ({"image_seq_length": 17}, ("image_seq_length",), 37),
        ({"image_seq_length": 99}, ("image_seq_length",), 99),
        ({"text_config": {"num_image_tokens": 16}}, ("text_config", "num_image_tokens"), 36),
        ({"prompt_encoder_config": {"image_embedding_size": 4}}, ("prompt_encoder_config", "image_embedding_size"), 6),
    ],
)
def test_counts_that_follow_the_grid(more: Any, path: tuple[str, ...], wanted: int, tmp_path: Path) -> None:
    pi.resize(save(tmp_path / "in", clip(), {**CLIP, **more}), 96, tmp_path / "out")
    found = written(tmp_path / "out")
    for key in path:
        found = found[key]
    assert found == wanted


def vit_like(side: int = 4) -> dict[str, np.ndarray]:
    return {
        "vit.embeddings.position_embeddings": table((side, side), 8, 1),
        "vit.embeddings.cls_token": np.ones((1, 1, 8), np.float32),
        "vit.embeddings.patch_embeddings.projection.weight": np.ones((8, 3, 16, 16), np.float32),
    }


@pytest.mark.parametrize(("said", "img", "wanted"), [(64, 96, 96), (64, (64, 96), [64, 96]), ([64, 64], 96, [96, 96])])
def test_a_size_is_written_back_as_it_was(said: Any, img: Any, wanted: Any, tmp_path: Path) -> None:
    config = {"model_type": "vit", "image_size": said, "patch_size": 16}
    pi.resize(save(tmp_path / "in", vit_like(), config), img, tmp_path / "out")
    assert written(tmp_path / "out")["image_size"] == wanted


def test_a_config_of_one_number_refuses_two(tmp_path: Path) -> None:
    with pytest.raises(pi.PosinterpError, match="hf-clip models take square images only, not 64x96"):
        pi.plan(save(tmp_path / "clip", clip(), CLIP), (64, 96))


def test_towers_of_different_sizes_are_not_taken_to_one(tmp_path: Path) -> None:
    small = {name.replace("vision_model", "high_model"): value for name, value in clip(8).items() if "vision" in name}
    config = {**CLIP, "high_res_vision_config": {**CLIP["vision_config"], "image_size": 128}}  # type: ignore[dict-item]
    with pytest.raises(pi.PosinterpError, match="holds towers for 128 and 64, and one size cannot be said of both"):
        pi.plan(save(tmp_path / "two", clip() | small, config), 96)


def test_a_type_that_is_not_known_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "my_own", "image_size": 64, "patch_size": 16}
    with pytest.raises(pi.PosinterpError, match="model_type my_own is of no family known"):
        pi.plan(save(tmp_path / "in", vit_like(), config), 96)


@pytest.mark.parametrize("said", [0, "sixteen", 8, [16, 8]])
def test_a_config_may_not_deny_the_kernel(said: Any, tmp_path: Path) -> None:
    config = {"model_type": "vit", "image_size": 64, "patch_size": said}
    with pytest.raises(pi.PosinterpError, match="patch_size is .*; the kernel that cuts the patches is 16 pixels"):
        pi.plan(save(tmp_path / "in", vit_like(), config), 96)


@pytest.mark.parametrize(
    ("name", "config"),
    [("VivitModel", VIVIT), ("VitPoseBackbone", {**TINY, "image_size": [64, 48], "patch_size": [16, 16]})],
)
def test_the_patch_is_said_as_it_was(name: str, config: Any, tmp_path: Path) -> None:
    built(name, config).save_pretrained(tmp_path / "src")
    pi.resize(tmp_path / "src", None, tmp_path / "out", patch=8)
    said = written(tmp_path / "out")
    assert said.get("tubelet_size", said.get("patch_size")) == ([2, 8, 8] if name == "VivitModel" else [8, 8])
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks


def test_the_patch_follows_in_the_config(tmp_path: Path) -> None:
    config = {"model_type": "vit", "image_size": 64, "patch_size": 16}
    pi.resize(save(tmp_path / "in", vit_like(), config), 64, tmp_path / "out", patch=8)
    assert written(tmp_path / "out")["patch_size"] == 8
    assert load(tmp_path / "out")["vit.embeddings.position_embeddings"].shape == (1, 65, 8)


@pytest.mark.parametrize(
    ("types", "table", "reason"),
    [
        (
            "kimi_k25 kimi_k25_vision",
            "model.vision_tower.patch_embed.pos_emb.position_embeddings",
            "it reads its table",
        ),
        ("qwen3_5 qwen3_5_vision", "model.visual.pos_embed.weight", "it reads its table"),
        ("qwen2_5_vl qwen2_5_vl_vision", "", "its positions are computed"),
        ("qwen2_vl qwen2_vl", "", "its positions are computed"),  # as older folders say it
    ],
)
def test_what_takes_any_size_is_refused_by_name(types: str, table: str, reason: str, tmp_path: Path) -> None:
    whole, vision = types.split()
    tensors = {"model.visual.patch_embed.proj.weight": np.ones((8, 3, 2, 14, 14), np.float32)}
    if table:
        tensors[table] = np.ones((64, 64, 8) if "kimi" in whole else (2304, 8), np.float32)
    config = {"model_type": whole, "vision_config": {"model_type": vision, "patch_size": 14}}
    folder = save(tmp_path / "native", tensors, config)
    with pytest.raises(pi.PosinterpError, match=reason) as error:
        pi.plan(folder, 448)
    assert error.value.hint == "there is nothing to convert: give it images of that size"


# ------------------------------------------------------------------ Swin's windows


@pytest.fixture(scope="module")
def swin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=224, patch_size=4, embed_dim=16, depths=[1, 1, 2, 1], num_heads=[2, 2, 2, 2], window_size=7
    )
    model = transformers.SwinModel(config)
    for name, bias in model.named_parameters():
        if "relative_position_bias_table" in name:
            bias.data.normal_()
    folder = tmp_path_factory.mktemp("swin") / "swin"
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("img", "window", "side"), [(384, "scale", 12), (384, "12", 12), (192, "6", 6), (256, "8", 8)])
def test_swins_windows(swin_folder: Path, tmp_path: Path, img: int, window: str, side: int) -> None:
    from timm.layers import resize_rel_pos_bias_table

    made = pi.resize(swin_folder, img, tmp_path / "out", window=window)
    assert len(made.edits) == 5
    before, after = load(swin_folder), load(tmp_path / "out")
    for name, bias in before.items():
        if "relative_position_bias_table" in name:
            shape = ((2 * side - 1) ** 2, bias.shape[1])
            wanted = resize_rel_pos_bias_table(torch.from_numpy(bias), (side, side), shape)
            np.testing.assert_allclose(after[name], wanted.numpy(), atol=2e-5)
        else:
            np.testing.assert_array_equal(after[name], bias)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["window_size"] == side
    assert verify(tmp_path / "out", against=swin_folder).ok


def test_a_window_that_swin_does_not_run(swin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(pi.PosinterpError, match="at 192 map 4 is 6×6, and the window 7×7") as error:
        pi.plan(swin_folder, 192)
    assert error.value.hint == "--window 6 makes it smaller"
    with pytest.raises(pi.PosinterpError, match="square windows only"):
        pi.plan(swin_folder, 384, window="12x8")
    assert not pi.plan(swin_folder, 256).edits  # windows stay
