"""What resizing is for: a trained model keeps its accuracy at a size it was not trained at."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import FIXTURE, ROOT, load

import posinterp as pi

torch.set_num_threads(1)
COUNT = 500  # images: a standard error of two points at most


@cache
def images(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images of each class, as the model takes them, resized to `side` pixels."""
    data = np.load(ROOT / "fixtures" / "fashion-test.npz")
    pick = np.concatenate([np.flatnonzero(data["labels"] == label)[: COUNT // 10] for label in range(10)])
    config = timm.create_model(f"local-dir:{FIXTURE}", pretrained=False).pretrained_cfg
    pixels = (torch.from_numpy(data["images"][pick]).float()[:, None] / 255 - config["mean"][0]) / config["std"][0]
    if side != 28:
        pixels = F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True)
    return pixels, torch.from_numpy(data["labels"][pick]).long()


def accuracy(state: dict[str, np.ndarray], side: int) -> float:
    model = timm.create_model(f"local-dir:{FIXTURE}", pretrained=False, img_size=side).eval()
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()}, strict=True)
    pixels, labels = images(side)
    with torch.inference_mode():
        right: Any = model(pixels).argmax(1) == labels
    return float(right.float().mean())


def with_rows(state: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    table = np.concatenate([state["pos_embed"][:, :1], rows[None]], axis=1)
    return {**state, "pos_embed": table}


@pytest.fixture(scope="module")
def native() -> dict[str, np.ndarray]:
    return load(FIXTURE)


def test_it_is_a_real_model(native: dict[str, np.ndarray]) -> None:
    assert (FIXTURE / "model.safetensors").stat().st_size < 4_000_000
    assert native["pos_embed"].shape == (1, 50, 128)
    assert accuracy(native, 28) > 0.75


@pytest.mark.parametrize("side", [16, 44])
def test_resampled_positions_keep_more_than_scrambled_or_truncated_ones(
    native: dict[str, np.ndarray], side: int
) -> None:
    grid = side // 4
    rows = pi.adapt(native, side)["pos_embed"][0, 1:]
    kept = accuracy(with_rows(native, rows), side)
    scrambled = accuracy(with_rows(native, np.random.default_rng(0).permutation(rows)), side)
    truncated = accuracy(with_rows(native, np.resize(native["pos_embed"][0, 1:], (grid * grid, 128))), side)
    assert kept > scrambled + 0.15
    assert kept > truncated + 0.15
    assert kept > 0.4


def test_the_position_table_matters(native: dict[str, np.ndarray]) -> None:
    assert accuracy(native, 28) > accuracy(with_rows(native, np.zeros((49, 128), np.float32)), 28) + 0.3
