"""OpenCLIP's files, by a short reference: bicubic with antialias, the class token's row kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import load, table, vit
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import posinterp as pi
from posinterp.families.open_clip import TIMM_TOWERS
from posinterp.verification import verify


def tower(grid: tuple[int, int] = (4, 4)) -> dict[str, np.ndarray]:
    """A two-tower model's tensors; the text table has a square number of rows too."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    return {
        "positional_embedding": normal(16, 8),
        "visual.positional_embedding": table(grid, 8, 1)[0],
        "visual.class_embedding": normal(8),
        "visual.conv1.weight": normal(8, 3, 16, 16),
        "visual.transformer.resblocks.0.ln_1.weight": normal(8),
        "transformer.resblocks.0.ln_1.weight": normal(8),
        "logit_scale": np.array(1.0, np.float32),
    }


def folder(path: Path, tensors: dict[str, np.ndarray], **vision: Any) -> Path:
    path.mkdir()
    save_file(tensors, path / "open_clip_model.safetensors")
    config = {
        "model_cfg": {"embed_dim": 8, "vision_cfg": {"image_size": 64, "patch_size": 16, **vision}, "text_cfg": {}},
        "preprocess_cfg": {"size": [64, 64], "mean": [0.5, 0.5, 0.5]},
    }
    (path / "open_clip_config.json").write_text(json.dumps(config))
    return path


def reference(rows: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    image = torch.from_numpy(rows[1:]).double().reshape(1, *old, -1).permute(0, 3, 1, 2)
    out = F.interpolate(image, new, mode="bicubic", antialias=True)[0].flatten(1).T
    return np.concatenate([rows[:1], out.float().numpy()])


@pytest.mark.parametrize(
    ("img", "grid"), [((96, 96), (6, 6)), ((64, 96), (4, 6)), ((32, 128), (2, 8)), ((32, 32), (2, 2))]
)
def test_the_image_tower(img: tuple[int, int], grid: tuple[int, int], tmp_path: Path) -> None:
    source = folder(tmp_path / "src", tower())
    made = pi.resize(source, img, tmp_path / "out")
    assert (made.family.name, [edit.name for edit in made.edits]) == ("open-clip", ["visual.positional_embedding"])
    out = load_tower(tmp_path / "out")
    wanted = reference(tower()["visual.positional_embedding"], (4, 4), grid)
    np.testing.assert_allclose(out["visual.positional_embedding"], wanted, atol=1e-6)
    np.testing.assert_array_equal(out["positional_embedding"], tower()["positional_embedding"])
    config = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())
    size = img[0] if img[0] == img[1] else list(img)
    assert (config["model_cfg"]["vision_cfg"]["image_size"], config["preprocess_cfg"]["size"]) == (size, list(img))
    failed = {check.name for check in verify(tmp_path / "out", against=source).failed}
    assert failed <= {"loads"}  # where the library is installed: these few tensors are no whole model


def load_tower(path: Path) -> dict[str, np.ndarray]:
    return load(path / "open_clip_model.safetensors")


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_training_checkpoint(prefix: str, tmp_path: Path) -> None:
    state = {prefix + name: torch.from_numpy(value) for name, value in tower().items()}
    torch.save({"epoch": 3, "name": "x", "state_dict": state}, tmp_path / "epoch_3.pt")
    made = pi.resize(tmp_path / "epoch_3.pt", 96, tmp_path / "out.pt")
    assert [edit.new_shape for edit in made.edits] == [(37, 8)]
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert out["epoch"] == 3
    assert out["state_dict"][prefix + "visual.positional_embedding"].shape == (37, 8)


def test_the_attention_pool_of_a_resnet_tower(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    rows = draw.standard_normal((50, 16)).astype(np.float32)
    tensors = {
        "visual.attnpool.positional_embedding": rows,
        "visual.layer4.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32),
        "visual.layer1.0.conv1.weight": np.ones((2, 2, 1, 1), np.float32),
        "visual.bn1.weight": np.ones(2, np.float32),
        "positional_embedding": np.ones((16, 8), np.float32),
    }
    save_file(tensors, tmp_path / "rn.safetensors")
    made = pi.resize(tmp_path / "rn.safetensors", 320, tmp_path / "out.safetensors")
    assert (made.family.name, made.src_img) == ("open-clip-resnet", (224, 224))
    out = load(tmp_path / "out.safetensors")["visual.attnpool.positional_embedding"]
    np.testing.assert_allclose(out, reference(rows, (7, 7), (10, 10)), atol=1e-6)


# ------------------------------------------------------------------ timm towers

TEXT = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}


def clip_of(path: Path, name: str, size: int, **vision: Any) -> Any:
    """A folder of OpenCLIP's with a timm tower, written from the library's own model; and that model."""
    open_clip = pytest.importorskip("open_clip")
    said = {"image_size": size, "timm_model_name": name, "timm_model_pretrained": False, **vision}
    config = {
        "model_cfg": {"embed_dim": 32, "vision_cfg": said, "text_cfg": TEXT},
        "preprocess_cfg": {"size": [size] * 2},
    }
    path.mkdir()
    (path / "open_clip_config.json").write_text(json.dumps(config))
    model = open_clip.CLIP(embed_dim=32, vision_cfg=said, text_cfg=TEXT).eval()
    save_torch(model.state_dict(), path / "open_clip_model.safetensors")
    return model


@torch.no_grad()
def test_a_timm_tower_takes_the_name_of_the_new_size(tmp_path: Path) -> None:
    old = clip_of(tmp_path / "src", "vit_medium_patch16_gap_240", 240, timm_pool="avg", timm_proj="linear")
    made = pi.resize(tmp_path / "src", 384, tmp_path / "out")
    assert {edit.path: edit.after for edit in made.config} == {
        "model_cfg.vision_cfg.timm_model_name": "vit_medium_patch16_gap_384",
        "model_cfg.vision_cfg.image_size": 384,
        "preprocess_cfg.size": [384, 384],
    }
    import open_clip

    new = open_clip.create_model(f"local-dir:{tmp_path / 'out'}").eval()
    image = torch.randn(1, 3, 384, 384)
    found = new.encode_image(image)
    old.visual.trunk.set_input_size((384, 384))  # timm's own resize, in memory
    torch.testing.assert_close(found, old.encode_image(image), rtol=0, atol=1e-5)
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks
    assert {check.name: check.status for check in verdict.checks}["loads"] == "pass"


def test_a_timm_tower_that_takes_any_size_keeps_its_name(tmp_path: Path) -> None:
    clip_of(tmp_path / "src", "convnext_atto", 224, timm_pool="avg", timm_proj="linear")
    made = pi.resize(tmp_path / "src", 320, tmp_path / "out")
    assert {edit.path for edit in made.config} == {"model_cfg.vision_cfg.image_size", "preprocess_cfg.size"}
    verdict = verify(tmp_path / "out", against=tmp_path / "src")
    assert verdict.ok, verdict.checks


def test_a_timm_tower_without_a_name_for_the_size_is_refused(tmp_path: Path) -> None:
    tensors = {f"visual.trunk.{name}": value for name, value in vit(prefix=0).items()}
    source = folder(tmp_path / "src", tensors, timm_model_name="vit_medium_patch16_gap_240", image_size=224)
    with pytest.raises(pi.PosinterpError, match="whatever the config says; timm has it for 240, 256, 384"):
        pi.plan(source, 96)
    with pytest.raises(pi.PosinterpError, match="whatever the config says; timm has it for 240, 256, 384"):
        pi.plan(source, 384, patch=32)
    assert pi.plan(source, 384).config[0].after == "vit_medium_patch16_gap_384"


def test_a_file_beside_its_config_takes_it_along_only_with_the_new_size(tmp_path: Path) -> None:
    weights = folder(tmp_path / "src", tower()) / "open_clip_model.safetensors"
    pi.resize(weights, 96, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())
    assert (config["model_cfg"]["vision_cfg"]["image_size"], config["preprocess_cfg"]["size"]) == (96, [96, 96])
    tensors = {f"visual.trunk.{name}": value for name, value in vit(prefix=0).items()}
    source = folder(tmp_path / "timm", tensors, timm_model_name="vit_medium_patch16_gap_240", image_size=224)
    pi.resize(source / "open_clip_model.safetensors", 96, tmp_path / "out.safetensors")
    with pytest.raises(pi.PosinterpError, match="open_clip_config.json cannot say 96 of its timm tower"):
        pi.resize(source / "open_clip_model.safetensors", 96, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("stem", TIMM_TOWERS)
def test_towers_of_one_stem_differ_in_nothing_but_their_size(stem: str) -> None:
    built = []
    for size in TIMM_TOWERS[stem]:
        with torch.device("meta"):
            model = timm.create_model(f"{stem}_{size}", num_classes=0)
        shapes = {name: value.shape for name, value in model.state_dict().items() if name != "pos_embed"}
        assert model.pretrained_cfg["input_size"][1:] == (size, size)
        built.append((shapes, str(model)))
    assert len(built) > 1
    assert all(one == built[0] for one in built)


def test_a_config_that_denies_the_table(tmp_path: Path) -> None:
    with pytest.raises(pi.PosinterpError, match=r"open_clip_config.json model_cfg.vision_cfg.image_size says 128"):
        pi.plan(folder(tmp_path / "src", tower(), image_size=128), 96)
