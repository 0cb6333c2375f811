"""Checkpoints of research code: made by hand as their repositories save them, and held against torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import load, save

import posinterp as pi
from posinterp.verification import verify

PLAIN = {"mode": "bicubic"}
LINEAR = {"mode": "bilinear"}
NEAREST = {"mode": "nearest"}
QKV = {"blocks.0.attn.qkv.weight": (24, 8)}
VIT: Mapping[str, tuple[int, ...]] = {"cls_token": (1, 1, 8), "patch_embed.proj.weight": (8, 3, 16, 16), **QKV}
MM = {"cls_token": (1, 1, 8), "patch_embed.projection.weight": (8, 3, 16, 16)}

# Shapes; what is asked; and of each tensor that follows: rows before and behind its grid, its sides, its method.
CASES: dict[str, tuple[Any, ...]] = {
    "mae-original": (
        {**VIT, "pos_embed": (1, 17, 8), "decoder_pos_embed": (1, 17, 4), "decoder_blocks.0.attn.qkv.weight": (12, 4)},
        {"img": (96, 64)},
        {"pos_embed": (1, 0, (4, 4), (6, 4), PLAIN), "decoder_pos_embed": (1, 0, (4, 4), (6, 4), PLAIN)},
    ),
    "timesformer-original": (
        {**VIT, "pos_embed": (1, 17, 8), "time_embed": (1, 4, 8), "blocks.0.temporal_attn.qkv.weight": (24, 8)},
        {"img": "8x96x96"},
        {"pos_embed": (1, 0, (4, 4), (6, 6), NEAREST), "time_embed": (0, 0, (4, 1), (8, 1), NEAREST)},
    ),
    "video-original": (
        {**QKV, "pos_embed": (1, 32, 8), "patch_embed.proj.weight": (8, 3, 2, 16, 16)},
        {"img": (96, 64), "src_img": 64},
        {"pos_embed": (0, 0, (2, 4, 4), (2, 6, 4), PLAIN)},
    ),
    "ast-original": (
        {**VIT, "patch_embed.proj.weight": (8, 1, 16, 16), "dist_token": (1, 1, 8), "pos_embed": (1, 2 + 12 * 21, 8)},
        {"img": (128, 424), "src_img": (128, 224)},
        {"pos_embed": (2, 0, (12, 21), (12, 41), LINEAR)},
    ),
    "yolos-original": (
        {**VIT, "det_token": (1, 5, 8), "pos_embed": (1, 22, 8), "mid_pos_embed": (3, 1, 22, 8)},
        {"img": (96, 128)},
        {"pos_embed": (1, 5, (4, 4), (6, 8), PLAIN), "mid_pos_embed": (1, 5, (4, 4), (6, 8), PLAIN)},
    ),
    "vitdet-original": (
        {**VIT, "pos_embed": (1, 197, 8), "blocks.0.attn.rel_pos_h": (7, 4), "blocks.0.attn.rel_pos_w": (7, 4),
         "blocks.1.attn.rel_pos_h": (3, 4), "blocks.1.attn.rel_pos_w": (3, 4)},
        {"img": (96, 64), "src_img": 64},
        {"blocks.0.attn.rel_pos_h": (0, 0, (7, 1), (11, 1), LINEAR)},
    ),
    "hiera-video-original": (
        {**QKV, "pos_embed_spatial": (1, 256, 8), "pos_embed_temporal": (1, 8, 8), "patch_embed.proj.weight": (8, 3, 3, 7, 7)},
        {"img": 96},
        {"pos_embed_spatial": (0, 0, (16, 16), (24, 24), {"mode": "bicubic", "antialias": True})},
    ),
    "pvt-original": (
        {**{f"pos_embed{n}": (1, (16 >> n - 1) ** 2 + (n == 4), 8) for n in (1, 2, 3, 4)},
         "cls_token": (1, 1, 8), "patch_embed1.proj.weight": (8, 3, 4, 4)},
        {"img": (96, 64)},
        {f"pos_embed{n}": (int(n == 4), 0, (16 >> n - 1,) * 2, (24 >> n - 1, 16 >> n - 1), LINEAR) for n in (1, 2, 3, 4)},
    ),
    "swin-original": (
        {"absolute_pos_embed": (1, 256, 8), "patch_embed.proj.weight": (8, 3, 4, 4), "layers.0.blocks.0.attn.qkv.weight": (24, 8),
         "layers.0.blocks.0.attn.relative_position_bias_table": (169, 2), "layers.1.blocks.1.attn.logit_scale": (2, 1, 1)},
        {"img": (128, 96)},
        {"absolute_pos_embed": (0, 0, (16, 16), (32, 24), PLAIN)},
    ),
    "mm-vit": (
        {**MM, "pos_embed": (1, 17, 8), "layers.0.ln1.weight": (8,)},
        {"img": (96, 64)},
        {"pos_embed": (1, 0, (4, 4), (6, 4), PLAIN)},
    ),
    "mm-sam": (
        {**MM, "pos_embed": (1, 4, 4, 8), "layers.0.attn.rel_pos_h": (7, 4), "layers.0.attn.rel_pos_w": (7, 4)},
        {"img": 96},
        {"pos_embed": (0, 0, (4, 4), (6, 6), PLAIN), "layers.0.attn.rel_pos_w": (0, 0, (7, 1), (11, 1), LINEAR)},
    ),
    "mm-swin": (
        {"absolute_pos_embed": (1, 64, 8), "patch_embed.projection.weight": (8, 3, 4, 4),
         "stages.0.blocks.0.attn.w_msa.relative_position_bias_table": (169, 2)},
        {"img": 64},
        {"absolute_pos_embed": (0, 0, (8, 8), (16, 16), {"mode": "bicubic", "antialias": True})},
    ),
    "dinov2-original": (
        {**VIT, "pos_embed": (1, 17, 8), "mask_token": (1, 8), "blocks.0.ls1.gamma": (8,)},
        {"img": 96},
        {"pos_embed": (1, 0, (4, 4), (6, 6), {"mode": "bicubic", "scale_factor": 6.1 / 4})},
    ),
}  # fmt: skip


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(7)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def grids(tensor: np.ndarray, before: int, behind: int, sides: tuple[int, ...]) -> np.ndarray:
    """Every grid that a tensor holds, as rows."""
    rows = tensor.reshape(-1, before + math.prod(sides) + behind, tensor.shape[-1])
    return rows[:, before : rows.shape[1] - behind]


def reference(rows: np.ndarray, old: tuple[int, ...], new: tuple[int, ...], how: Mapping[str, Any]) -> np.ndarray:
    image = torch.from_numpy(rows).double().reshape(-1, *old[-2:], rows.shape[-1]).permute(0, 3, 1, 2)
    size = None if "scale_factor" in how else new[-2:]
    return F.interpolate(image, size, **how).permute(0, 2, 3, 1).reshape(len(rows), -1, rows.shape[-1]).float().numpy()


@pytest.mark.parametrize("nested", ["", "model/module.", "state_dict/backbone."])
@pytest.mark.parametrize("family", CASES)
def test_is_known_and_resampled(family: str, nested: str, tmp_path: Path) -> None:
    shapes, asked, wanted = CASES[family]
    own = drawn(shapes)
    container, _, prefix = nested.rpartition("/")
    tensors: Any = {prefix + name: torch.from_numpy(value) for name, value in own.items()}
    torch.save({container: tensors, "epoch": 3} if container else tensors, tmp_path / "src.pth")
    made = pi.resize(tmp_path / "src.pth", out=tmp_path / "out.pth", **asked)
    assert made.family.name == family
    out: Any = torch.load(tmp_path / "out.pth", weights_only=True)
    out = {name[len(prefix) :]: value.numpy() for name, value in (out[container] if container else out).items()}
    changed = {edit.name.removeprefix(nested) for edit in made.edits}
    assert set(wanted) <= changed
    for name, (before, behind, old, new, how) in wanted.items():
        np.testing.assert_allclose(
            grids(out[name], before, behind, new), reference(grids(own[name], before, behind, old), old, new, how),
            atol=2e-6, err_msg=name,
        )  # fmt: skip
        was, now = (value[name].reshape(-1, sum((before, behind, math.prod(side))), value[name].shape[-1])
                    for value, side in ((own, old), (out, new)))  # fmt: skip
        np.testing.assert_array_equal(now[:, :before], was[:, :before])
        np.testing.assert_array_equal(now[:, now.shape[1] - behind :], was[:, was.shape[1] - behind :])
    for name in set(own) - changed:
        np.testing.assert_array_equal(out[name], own[name])
    verdict = verify(tmp_path / "out.pth", against=tmp_path / "src.pth", **asked)
    assert verdict.ok, verdict.checks


def test_a_predictor_follows_its_encoder(tmp_path: Path) -> None:
    encoder = drawn({**QKV, "pos_embed": (1, 16, 8), "patch_embed.proj.weight": (8, 3, 16, 16)})
    predictor = drawn(
        {
            "predictor_pos_embed": (1, 16, 4),
            "predictor_embed.weight": (4, 8),
            "predictor_blocks.0.attn.qkv.weight": (12, 4),
        }
    )
    branches = {"encoder": encoder, "target_encoder": encoder, "predictor": predictor}
    saved = {
        branch: {f"module.{name}": torch.from_numpy(value) for name, value in tensors.items()}
        for branch, tensors in branches.items()
    }
    torch.save(saved, tmp_path / "src.pth")
    made = pi.resize(tmp_path / "src.pth", 96, tmp_path / "out.pth")
    assert {edit.name for edit in made.edits} == {
        "encoder/module.pos_embed",
        "target_encoder/module.pos_embed",
        "predictor/module.predictor_pos_embed",
    }
    out = torch.load(tmp_path / "out.pth", weights_only=True)["predictor"]["module.predictor_pos_embed"].numpy()
    np.testing.assert_allclose(out, reference(predictor["predictor_pos_embed"], (4, 4), (6, 6), PLAIN), atol=2e-6)
    torch.save({"predictor": saved["predictor"]}, tmp_path / "alone.pth")
    with pytest.raises(pi.PosinterpError, match="do not show how many pixels a place of predictor_pos_embed spans"):
        pi.plan(tmp_path / "alone.pth", 96)


def test_masks_of_the_old_image_are_left_out(tmp_path: Path) -> None:
    own = drawn({**CASES["swin-original"][0], "layers.0.blocks.1.attn_mask": (4, 49, 49)})
    own["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((49, 49), np.int64)
    torch.save({"model": {name: torch.from_numpy(value) for name, value in own.items()}}, tmp_path / "src.pth")
    made = pi.resize(tmp_path / "src.pth", 128, tmp_path / "out.pth")
    assert {*made.drop} == {
        "model/layers.0.blocks.1.attn_mask", "model/layers.0.blocks.0.attn.relative_position_index"
    }  # fmt: skip
    assert verify(tmp_path / "out.pth", against=tmp_path / "src.pth").ok


def test_a_clip_is_not_guessed(tmp_path: Path) -> None:
    """3136 = 16·14·14 rows would be a square of 56."""
    own = drawn({**QKV, "pos_embed": (1, 3136, 8), "patch_embed.proj.weight": (8, 3, 2, 16, 16)})
    path = save(tmp_path / "clip.safetensors", own)
    with pytest.raises(pi.PosinterpError, match="pos_embed of shape 1×3136×8 could be a grid of"):
        pi.plan(path, 384)
    assert pi.plan(path, 384, src_img="32x224x224").edits[0].new_shape == (1, 16 * 24 * 24, 8)
    with pytest.raises(pi.PosinterpError, match="--src-img says 16x224x224"):
        pi.plan(path, 384, src_img="16x224x224")


def test_a_volume(tmp_path: Path) -> None:
    own = drawn({**QKV, "pos_embed": (1, 64, 8), "patch_embed.proj.weight": (8, 1, 16, 16, 16)})
    path = save(tmp_path / "volume.safetensors", own)
    pi.resize(path, "96x96x64", tmp_path / "out.safetensors", src_img="64x64x64")
    rows = torch.from_numpy(own["pos_embed"]).double().reshape(4, 4, 4, 8).permute(3, 0, 1, 2)
    planes = F.interpolate(rows.reshape(32, 1, 4, 4), (6, 4), mode="bicubic").reshape(8, 4, 24)
    wanted = F.interpolate(planes[None], (6, 24), mode="bicubic")[0].reshape(8, -1).T
    np.testing.assert_allclose(load(tmp_path / "out.safetensors")["pos_embed"][0], wanted, atol=2e-6)


# ------------------------------------------------------------------ fixed sines


def mae_table(height: int, width: int, channels: int, *, swap: bool = False) -> np.ndarray:
    """One value at a time, from the definition: the column's half, the row's half; sines, then cosines."""
    table = np.empty((height, width, channels))
    for row, column, c in np.ndindex(table.shape):
        half, rest = divmod(c, channels // 2)
        wave, k = divmod(rest, channels // 4)
        angle = (column if half == swap else row) / 10_000 ** (k / (channels // 4))
        table[row, column, c] = (math.sin, math.cos)[wave](angle)
    return table


@pytest.mark.parametrize("swap", [False, True], ids=["mae", "moco-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fixed_sines_are_computed_anew(dtype: torch.dtype, swap: bool, tmp_path: Path) -> None:
    state = {name: torch.randn(shape) for name, shape in VIT.items()}
    for name, channels in (("pos_embed", 8), ("decoder_pos_embed", 16)):
        rows = mae_table(4, 4, channels, swap=swap).reshape(1, 16, channels)
        state[name] = torch.from_numpy(np.concatenate([np.zeros((1, 1, channels)), rows], 1)).to(dtype)
    state["decoder_blocks.0.attn.qkv.weight"] = torch.randn(12, 4)
    torch.save({"model": state}, tmp_path / "src.pth")
    made = pi.resize(tmp_path / "src.pth", (96, 112), tmp_path / "out.pth", method="sincos")
    assert len(made.edits) == 2
    out = torch.load(tmp_path / "out.pth", weights_only=True)["model"]
    adapted = pi.adapt(state, (96, 112), method="sincos")
    for name, channels in (("pos_embed", 8), ("decoder_pos_embed", 16)):
        wanted = torch.from_numpy(mae_table(6, 7, channels, swap=swap).reshape(42, channels))
        torch.testing.assert_close(out[name][0, 1:], wanted.to(dtype), rtol=0, atol=1e-7)
        assert not out[name][0, 0].any()
        assert torch.equal(adapted[name], out[name])
    verdict = verify(tmp_path / "out.pth", against=tmp_path / "src.pth")
    assert verdict.ok, verdict.checks
    out["pos_embed"][0, 3, 2] += 0.05
    torch.save({"model": out}, tmp_path / "bad.pth")
    assert not verify(tmp_path / "bad.pth", against=tmp_path / "src.pth", img=(96, 112), method="sincos").ok


def test_a_trained_table_is_not_replaced_by_sines(tmp_path: Path) -> None:
    own = drawn({**VIT, "pos_embed": (1, 17, 8)})
    save(tmp_path / "vit.safetensors", own)
    with pytest.raises(
        pi.PosinterpError, match=r"pos_embed is not the sine table of 4×4 places: it differs .* by [1-9]"
    ):
        pi.resize(tmp_path / "vit.safetensors", 96, tmp_path / "out.safetensors", method="sincos")
    assert not (tmp_path / "out.safetensors").exists()
    with pytest.raises(pi.PosinterpError, match="is not the sine table"):
        pi.adapt(own, 96, method="sincos")
    with pytest.raises(pi.PosinterpError, match="is not the sine table"):
        pi.plan(tmp_path / "vit.safetensors", 96, method="sincos")


def test_sines_are_for_tables_of_places(tmp_path: Path) -> None:
    own = drawn({**CASES["vitdet-original"][0]})
    with pytest.raises(pi.PosinterpError, match="rel_pos_h is no table of places, which sincos would compute"):
        pi.adapt(own, 96, src_img=64, method="sincos")
    with pytest.raises(pi.PosinterpError, match="sincos is no way to resample a patch kernel"):
        pi.adapt(drawn({**VIT, "pos_embed": (1, 17, 8)}), 64, patch=8, method="sincos")
    with pytest.raises(pi.PosinterpError, match="sincos computes a fixed table anew"):
        pi.axis_weights(4, 6, "sincos")
