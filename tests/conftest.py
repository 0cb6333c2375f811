"""What several test files need: small checkpoints, made without any library that is tested against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side

ROOT = Path(__file__).parent.parent
FIXTURE = ROOT / "fixtures" / "fashion-vit"


def table(grid: tuple[int, int], width: int, prefix: int = 0, *, seed: int = 0) -> np.ndarray:
    """(1, prefix + h·w, width) of normal numbers."""
    rows = np.random.default_rng(seed).standard_normal((1, prefix + grid[0] * grid[1], width))
    return rows.astype(np.float32)


def vit(
    grid: tuple[int, int] = (14, 14), *, width: int = 8, patch: int = 16, prefix: int = 1, **tokens: int
) -> dict[str, np.ndarray]:
    """The tensors of a tiny timm-like ViT; `tokens` are names and counts: cls_token=1, reg_token=4."""
    draw = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    tokens = tokens or ({"cls_token": 1} if prefix else {})
    return {
        **{name: normal(1, count, width) for name, count in tokens.items()},
        "pos_embed": table(grid, width, prefix),
        "patch_embed.proj.weight": normal(width, 3, patch, patch),
        "patch_embed.proj.bias": normal(width),
        "blocks.0.norm1.weight": normal(width),
        "blocks.0.attn.qkv.weight": normal(3 * width, width),
        "norm.weight": normal(width),
        "head.weight": normal(10, width),
    }


def swin(window: int = 7) -> dict[str, np.ndarray]:
    """The tensors of a tiny timm-like Swin of four stages."""
    draw = np.random.default_rng(2)
    rows = (2 * window - 1) ** 2
    tables = {f"layers.{stage}.blocks.0.attn.relative_position_bias_table": (rows, 2 << stage) for stage in range(4)}
    shapes = {"patch_embed.proj.weight": (8, 3, 4, 4), **tables, "norm.weight": (64,)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def clip(side: int = 4) -> dict[str, np.ndarray]:
    """A two-tower model's tensors: the text tower has a table of the same name, of a square number of rows."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    return {
        "text_model.embeddings.position_embedding.weight": normal(side * side + 1, 8),
        "vision_model.embeddings.position_embedding.weight": table((side, side), 8, 1)[0],
        "vision_model.embeddings.patch_embedding.weight": normal(8, 3, 16, 16),
        "vision_model.embeddings.class_embedding": normal(8),
        "vision_model.embeddings.position_ids": np.arange(side * side + 1)[None],
    }


CLIP = {
    "model_type": "clip",
    "text_config": {"model_type": "clip_text_model", "max_position_embeddings": 17},
    "vision_config": {"model_type": "clip_vision_model", "image_size": 64, "patch_size": 16},
}


def save(path: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """A .safetensors file, or a folder with a config.json if one is given."""
    if config is None:
        save_file(tensors, path, metadata={"format": "pt"})
        return path
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def load(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "model.safetensors" if path.is_dir() else path)


def timm_config(architecture: str, size: tuple[int, int], **model_args: Any) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "num_classes": 10,
        "model_args": {"img_size": list(size), **model_args},
        "pretrained_cfg": {"input_size": [3, *size], "num_classes": 10},
    }


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in the test's own folder: cli("resize", "a.safetensors", "--img", "384")."""

    def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "posinterp", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, cwd=options.pop("cwd", tmp_path), **options)

    return run
