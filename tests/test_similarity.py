"""Cosine similarities and principal components of position tables, against what is known of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURE, save, table, vit

import posinterp
from posinterp.errors import BadUsage, BadValues, Unsupported
from posinterp.similarity import cosine_maps, principal_components


def test_a_place_is_most_similar_to_itself() -> None:
    grid = table((5, 7), 16).reshape(5, 7, 16)
    maps = cosine_maps(grid)
    assert maps.shape == (5, 7, 5, 7)
    for row, column in np.ndindex(5, 7):
        assert np.unravel_index(maps[row, column].argmax(), (5, 7)) == (row, column)
        assert maps[row, column, row, column] == pytest.approx(1)
    flat = maps.reshape(35, 35)
    np.testing.assert_allclose(flat, flat.T)


def test_cosines_are_the_textbooks() -> None:
    grid = np.array([[[1.0, 0.0], [0.0, 2.0]], [[-3.0, 0.0], [5.0, 5.0]]])
    np.testing.assert_allclose(cosine_maps(grid, [(0, 0)])[0], [[1, 0], [-1, 0.5**0.5]], atol=1e-15)


def test_scaling_vectors_changes_nothing() -> None:
    grid = table((4, 4), 8).reshape(4, 4, 8)
    lengths = np.linspace(1e-3, 1e3, 16).reshape(4, 4, 1)
    np.testing.assert_allclose(cosine_maps(grid * lengths), cosine_maps(grid), atol=1e-6)


def test_a_zero_vector_is_similar_to_nothing() -> None:
    grid = table((2, 2), 8).reshape(2, 2, 8).copy()
    grid[0, 1] = 0
    assert np.isnan(cosine_maps(grid)[0, 1]).all()
    assert np.isnan(cosine_maps(grid)[:, :, 0, 1]).all()
    assert np.isfinite(cosine_maps(grid, [(0, 0)])[0, 1, 1])


@pytest.mark.parametrize("place", [(2, 0), (0, 3), (-1, 0), (0,), (0, 0, 0)])
def test_a_place_outside_is_said(place: tuple[int, ...]) -> None:
    with pytest.raises(BadUsage, match="in a grid of 2×3"):
        cosine_maps(np.ones((2, 3, 4)), [place])


def test_of_a_checkpoint() -> None:
    from safetensors.numpy import load_file

    rows = load_file(FIXTURE / "model.safetensors")["pos_embed"][0, 1:].astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    maps = posinterp.position_similarity(FIXTURE)
    np.testing.assert_allclose(maps, (unit @ unit.T).reshape(7, 7, 7, 7), atol=1e-12)
    np.testing.assert_allclose(posinterp.position_similarity(FIXTURE, (2, 5)), maps[2, 5], atol=1e-12)


def test_the_class_row_is_no_place(tmp_path: Path) -> None:
    tensors = vit((4, 4))
    held = save(tmp_path / "a.safetensors", tensors)
    moved = {**tensors, "pos_embed": tensors["pos_embed"].copy()}
    moved["pos_embed"][:, 0] += 100
    other = save(tmp_path / "b.safetensors", moved)
    np.testing.assert_array_equal(posinterp.position_similarity(held), posinterp.position_similarity(other))


def test_what_has_none_is_said(tmp_path: Path) -> None:
    tensors = vit((4, 4))
    tensors["pos_embed"][0, 3, 2] = np.nan
    with pytest.raises(BadValues, match="not finite"):
        posinterp.position_similarity(save(tmp_path / "nan.safetensors", tensors))
    with pytest.raises(BadUsage, match=r"'pos' is no position tensor .*there is pos_embed"):
        posinterp.position_similarity(FIXTURE, tensor="pos")
    free = {"pos_block.0.proj.weight": np.ones((8, 1, 3, 3), np.float32)}
    free |= {name: value for name, value in vit((4, 4)).items() if name != "pos_embed"}
    with pytest.raises(Unsupported, match="no position tensor in this cpvt .*zero padding"):
        posinterp.position_similarity(save(tmp_path / "cpvt.safetensors", free))


def test_components_of_a_known_cloud() -> None:
    rows, columns = np.mgrid[:4, :6]
    grid = np.zeros((4, 6, 5))
    grid[..., 3] = 10 * (columns - columns.mean())
    grid[..., 1] = -1.0 * (rows - rows.mean())
    found = principal_components(grid + 7.0)
    np.testing.assert_allclose(np.abs(found.directions[:2]), np.eye(5)[[3, 1]], atol=1e-9)
    assert found.directions[0, 3] > 0
    assert found.directions[1, 1] > 0
    np.testing.assert_allclose(found.mean, 7.0)
    assert found.shares[:2] == pytest.approx([100 * 35 / 12 / (100 * 35 / 12 + 15 / 12), 1 - 3500 / 3515], abs=1e-9)
    np.testing.assert_allclose(found.of(grid + 7.0)[..., 0], grid[..., 3], atol=1e-9)


@pytest.mark.parametrize("channels", [3, 20, 200])
def test_components_are_those_of_a_singular_value_decomposition(channels: int) -> None:
    grid = np.random.default_rng(0).standard_normal((6, 7, channels))
    flat = grid.reshape(42, channels) - grid.mean((0, 1))
    _, strengths, directions = np.linalg.svd(flat, full_matrices=False)
    found = principal_components(grid)
    np.testing.assert_allclose(np.abs((found.directions * directions[:3]).sum(1)), 1, atol=1e-9)
    np.testing.assert_allclose(found.shares, (strengths**2 / (strengths**2).sum())[:3], atol=1e-12)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(3), atol=1e-9)
