"""OpenCLIP's files, by a short reference: bicubic with antialias, the class token's row kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import load, table
from safetensors.numpy import save_file

import posinterp as pi
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
    assert (config["model_cfg"]["vision_cfg"]["image_size"], config["preprocess_cfg"]["size"]) == (size, size)
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


def test_a_timm_tower_in_a_folder_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", tower(), timm_model_name="vit_base_patch16_siglip_224")
    with pytest.raises(pi.PosinterpError, match="vit_base_patch16_siglip_224|no family"):
        pi.plan(source, 96)


def test_a_config_that_denies_the_table(tmp_path: Path) -> None:
    with pytest.raises(pi.PosinterpError, match=r"open_clip_config.json model_cfg.vision_cfg.image_size says 128"):
        pi.plan(folder(tmp_path / "src", tower(), image_size=128), 96)
