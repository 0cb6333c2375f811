"""Every family against its oracle: what the home library itself makes of the same weights at the new size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import load, save, vit
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn

import posinterp as pi
from posinterp.families import FAMILIES, family_named
from posinterp.models import find_models
from posinterp.planning import plan
from posinterp.rules import Family

TIMM = [family for family in FAMILIES if family.home == "timm"]
RUNTIME = ("sam-base", "sam-large", "sam-huge")  # timm resizes these in forward, and nowhere else


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(family: Family, size: tuple[int, int] | None = None, **overlay: Any) -> Any:
    """The family's example, at its own size or another."""
    args = {**family.example, **({"img_size": size} if size else {})}
    name = args.pop("name")
    return timm.create_model(name, **args, **overlay).eval()


def native(model: Any) -> tuple[int, int]:
    size = getattr(model.patch_embed, "img_size", None) or model.pretrained_cfg["input_size"][1:]
    return tuple(size)


def randomised(model: Any) -> Any:
    """Values that no symmetry hides, in every tensor that has positions or was born zero."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if any(word in name for word in ("pos", "token", "gamma")) and value.is_floating_point():
                value.copy_(torch.randn(value.shape) * 0.5)
    return model


def source(tmp_path: Path, family: Family, model: Any) -> Path:
    """The model as a folder that timm would have saved."""
    size = native(model)
    config = {
        "architecture": family.example["name"],
        "num_classes": model.num_classes,
        "model_args": {k: v for k, v in family.example.items() if k not in ("name", "num_classes")}
        | {"img_size": size},
        "pretrained_cfg": {"input_size": [3, *size], "num_classes": model.num_classes},
    }
    folder = tmp_path / "src"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def targets(family: Family, model: Any) -> list[tuple[int, int]]:
    """Larger, smaller, not square: as far as the patch or the stem divides."""
    stride = family.patch.stride(model.state_dict())[0]
    side = native(model)[0] // stride
    return [(n * stride, m * stride) for n, m in ((side + 3, side + 3), (side - 3, side - 3), (side + 2, side - 2))]


def timm_loads(family: Family, folder: Path, model: Any, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """timm's own loading path at another size, checkpoint filter included."""
    if family.fetches:
        return checkpoint_filter_fn(model.state_dict(), build(family, size))
    overlay = {
        "file": str(folder / "model.safetensors"),
        "num_classes": model.num_classes,
        "input_size": (3, *native(model)),
        "custom_load": False,
        "label_offset": 0,
        "source": "",
        "hf_hub_id": None,
        "url": None,
    }
    return build(family, size, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()


def load_folder(family: Family, out: Path, size: tuple[int, int]) -> Any:
    """The output as timm loads it, from its config alone."""
    if family.fetches:
        model = build(family, size)
        model.load_state_dict(load_torch(out / "model.safetensors"), strict=True)
        return model
    return timm.create_model(f"local-dir:{out}", pretrained=True).eval()


@pytest.mark.parametrize("family", TIMM, ids=lambda family: family.name)
def test_equals_the_home_library(family: Family, tmp_path: Path) -> None:
    model = randomised(build(family))
    folder = source(tmp_path, family, model)
    for size in targets(family, model):
        out = tmp_path / f"{size[0]}x{size[1]}"
        made = pi.resize(folder, size, out)
        assert made.family.name == family.name
        ours = {name: torch.from_numpy(value) for name, value in load(out).items()}
        assert bool(made.edits) == bool(family.rules)
        loaded = load_folder(family, out, size)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, ours[name]), f"{name} changed while loading"
        image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(3))
        with torch.inference_mode():
            if family.name in RUNTIME:
                torch.testing.assert_close(loaded(image), model(image), rtol=1e-4, atol=1e-5)
                continue
        for name, value in timm_loads(family, folder, model, size).items():
            scale = float(value.abs().max()) if value.is_floating_point() and value.numel() else 1.0
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("family", [f for f in TIMM if f.unnamed is not None], ids=lambda family: family.name)
def test_known_without_a_config(family: Family) -> None:
    model = build(family)
    (found,) = find_models(model.state_dict(), src_img=pi.Size(native(model)))
    assert found.family.name == family.name
    if found.ruled and family.name != "sam-base":
        (proven,) = find_models(model.state_dict())
        assert (proven.src_img, dict(proven.extra)) == (found.src_img, dict(found.extra))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_has_what_its_table_row_needs(family: Family) -> None:
    assert family.home_does
    assert family_named(family.name) == (family,)
    if family.home == "timm":
        assert family.example, "no small model to test it with"
        assert family.knows(str(family.example["name"]))


def test_names_are_unique() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("vit_tiny_patch16_224", 1),
        ("vit_medium_patch16_gap_256", 0),
        ("test_vit2", 1),
        ("vit_so150m_patch16_reg4_gap_256", 4),
        ("vit_little_patch16_reg4_gap_256", 0),
        ("deit_tiny_distilled_patch16_224", 2),
        ("deit3_small_patch16_224", 0),
        ("vit_small_patch14_reg4_dinov2", 0),
        ("vit_small_patch14_dinov2", 1),
        ("vit_base_patch16_siglip_224", 0),
        ("vit_base_patch32_clip_224", 1),
        ("vit_base_patch16_xp_224", 0),
        ("eva02_tiny_patch14_224", 1),
        ("vit_small_patch16_rope_ape_224", 0),
    ],
)
def test_prefix_rows_are_told_from_the_tokens(name: str, prefix: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, depth=1)
    (found,) = find_models(model.state_dict())
    assert found.prefix == prefix
    assert found.src_img == model.pretrained_cfg["input_size"][1:]


# ------------------------------------------------------------------ DINOv2's own code


def dinov2_reference(pos_embed: torch.Tensor, size: tuple[int, int], *, offset: float, antialias: bool) -> torch.Tensor:
    """facebookresearch/dinov2, vision_transformer.py, interpolate_pos_encoding, rewritten: scale factors with an offset."""
    side = int((pos_embed.shape[1] - 1) ** 0.5)
    rows = pos_embed[:, 1:].double().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    how: dict[str, Any] = {"size": size}
    if offset:
        how = {"scale_factor": tuple((n + offset) / side for n in size)}
    out = F.interpolate(rows, mode="bicubic", antialias=antialias, **how)
    assert tuple(out.shape[-2:]) == size
    return torch.cat([pos_embed[:, :1], out.permute(0, 2, 3, 1).flatten(1, 2).float()], 1)


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("grid", [(16, 16), (28, 16), (40, 41)])
def test_dinov2_in_its_own_layout(registers: bool, grid: tuple[int, int], tmp_path: Path) -> None:
    tensors = vit((37, 37), patch=14, prefix=1) | {"mask_token": np.zeros((1, 8), np.float32)}
    tensors["blocks.0.ls1.gamma"] = np.ones(8, np.float32)
    if registers:
        tensors["register_tokens"] = np.ones((1, 4, 8), np.float32)
    path = save(tmp_path / "dinov2.safetensors", tensors)
    made = pi.resize(path, (grid[0] * 14, grid[1] * 14), tmp_path / "out.safetensors")
    assert made.family.name == ("dinov2-registers-original" if registers else "dinov2-original")
    offset, antialias = (0.0, True) if registers else (0.1, False)
    wanted = dinov2_reference(torch.from_numpy(tensors["pos_embed"]), grid, offset=offset, antialias=antialias)
    np.testing.assert_allclose(load(tmp_path / "out.safetensors")["pos_embed"], wanted.numpy(), atol=1e-6)


# ------------------------------------------------------------------ what must not be guessed


def test_a_table_no_rule_speaks_of_is_not_left_behind(tmp_path: Path) -> None:
    tensors = vit() | {"decoder_pos_embed": np.zeros((1, 197, 4), np.float32)}
    with pytest.raises(pi.PosinterpError, match="decoder_pos_embed 1×197×4 looks like a position tensor") as caught:
        plan(save(tmp_path / "mae.safetensors", tensors), 384)
    assert caught.value.kind == "unknown_family"


def test_stale_rotary_buffers_are_dropped_and_learned_ones_kept(tmp_path: Path) -> None:
    stale = {"rope.freqs_cos": np.zeros((196, 4), np.float32), "rope.bands": np.zeros(2, np.float32)}
    learned = {"rope.freqs": np.ones((2, 12, 4), np.float32)}
    path = save(tmp_path / "eva.safetensors", vit() | stale | learned | {"blocks.0.gamma_1": np.ones(8, np.float32)})
    made = pi.resize(path, 384, tmp_path / "out.safetensors")
    assert set(made.drop) == set(stale)
    assert made.family.name == "eva"
    out = load(tmp_path / "out.safetensors")
    assert not stale.keys() & out.keys()
    np.testing.assert_array_equal(out["rope.freqs"], learned["rope.freqs"])


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_bicubic_is_told_from_bilinear(method: str, tmp_path: Path) -> None:
    """The oracle tests would be worth little if the two were alike on these tables."""
    tensors = vit()
    path = save(tmp_path / "a.safetensors", tensors)
    pi.resize(path, 384, tmp_path / "auto.safetensors")
    pi.resize(path, 384, tmp_path / "asked.safetensors", method=method)
    auto, asked = (load(tmp_path / f"{name}.safetensors")["pos_embed"] for name in ("auto", "asked"))
    assert (np.abs(auto - asked).max() > 0.1) == (method == "bilinear")
