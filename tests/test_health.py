"""What `inspect` says of a table's values, and what a guess of its grid owes to them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import FIXTURE, load, save, timm_config, vit

import posinterp as pi
from posinterp import health as looked
from posinterp.errors import Ambiguous
from posinterp.health import Health, health, kept, of_grid, other_grid
from posinterp.models import models_of
from posinterp.planning import plan
from posinterp.store import open_checkpoint
from posinterp.store.tensors import read_float

Run = Callable[..., subprocess.CompletedProcess[str]]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def smooth(height: int, width: int, channels: int = 32, *, seed: int = 0) -> np.ndarray:
    """A trained table's like: low frequencies of both axes, other ones in each channel, and a tenth of noise."""
    coarse = torch.from_numpy(noise(1, channels, 3, 4, seed=seed))
    grid = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
    fine = grid[0].permute(1, 2, 0).numpy()
    return fine + 0.1 * fine.std() * noise(height, width, channels, seed=seed + 1)


def checked(tensors: dict[str, np.ndarray], tmp_path: Path) -> Health:
    source = open_checkpoint(save(tmp_path / "health.safetensors", tensors))
    (model,) = models_of(source)
    found = health(model, "pos_embed", source.tensors["pos_embed"])
    assert found is not None
    return found


# ------------------------------------------------------------------ the numbers


def test_noise_has_no_structure() -> None:
    found = of_grid(noise(14, 14, 64))
    assert all(abs(like) < 0.05 for like in found.alike)
    assert found.structure == pytest.approx(0, abs=0.05)
    assert found.looks_like is None
    mean, spread, least, largest = found.norm or (0.0,) * 4
    norms = np.linalg.norm(noise(14, 14, 64), axis=-1)
    assert (mean, spread) == pytest.approx((norms.mean(), norms.std()))
    assert (least, largest) == pytest.approx((norms.min(), norms.max()))


def test_a_sum_of_rows_and_columns_is_all_structure() -> None:
    found = of_grid(noise(9, 1, 16) + noise(1, 5, 16, seed=1))
    assert found.structure == pytest.approx(1)
    assert found.rank is not None
    assert 1 < found.rank <= 9 + 5 - 2


def test_the_share_of_structure_is_that_of_least_squares() -> None:
    grid = smooth(6, 7)
    rows = grid.reshape(42, -1)
    places = np.array([(y, x) for y in range(6) for x in range(7)])
    design = np.hstack([np.ones((42, 1)), np.eye(6)[places[:, 0], 1:], np.eye(7)[places[:, 1], 1:]])
    left = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    total = np.square(rows - rows.mean(axis=0)).sum()
    adjusted = 1 - (np.square(left).sum() / (42 - 12)) / (total / 41)
    assert of_grid(grid).structure == pytest.approx(adjusted)


def test_neighbours_alike_are_told_by_axis() -> None:
    lines = np.repeat(noise(8, 1, 16), 8, axis=1)  # the same across, new in every row
    down, across = of_grid(lines).alike
    assert (across, abs(down) < 0.3) == (pytest.approx(1), True)
    assert of_grid(lines.transpose(1, 0, 2)).alike == pytest.approx((across, down))
    clip = np.broadcast_to(noise(9, 1, 1, 4), (9, 5, 6, 4))  # new in every frame, the same within one
    assert of_grid(clip).alike[1:] == pytest.approx((1, 1))


def test_the_effective_rank_counts_directions() -> None:
    directions = np.linalg.qr(noise(32, 32))[0][:, :5]
    along = np.linalg.qr(noise(64, 6, seed=1) - noise(64, 6, seed=1).mean(axis=0))[0][:, :5]
    assert of_grid((along @ directions.T).reshape(8, 8, 32)).rank == pytest.approx(5)
    assert of_grid(noise(2, 3, 64)).rank == pytest.approx(5, rel=0.2)  # places less one, if that is less


def test_a_table_that_does_not_vary_has_only_norms(tmp_path: Path) -> None:
    tensors = vit((4, 4), width=8)
    tensors["pos_embed"][:] = 0.5
    tensors["pos_embed"][0, 3] = 0
    assert checked(tensors, tmp_path).zero_rows == 1
    tensors["pos_embed"][:] = 0.5
    found = checked(tensors, tmp_path)
    assert (found.structure, found.rank, found.alike) == (None, None, ())
    assert found.norm == pytest.approx((2**0.5, 0, 2**0.5, 2**0.5), abs=1e-6)


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    tensors = vit((4, 4))
    tensors["pos_embed"][0, 5, :3] = [np.nan, np.inf, -np.inf]
    assert checked(tensors, tmp_path) == Health(16, nonfinite=3)


def test_a_very_large_table_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked, "LARGEST", 16)
    source = open_checkpoint(save(tmp_path / "large.safetensors", vit()))
    (model,) = models_of(source)
    assert health(model, "pos_embed", source.tensors["pos_embed"]) is None
    assert kept(plan(source, 384).edits[0], source.tensors["pos_embed"]) is None


@pytest.mark.parametrize("size", [16, 20, 56])
def test_what_a_trip_keeps_is_what_resampling_there_and_back_keeps(size: int) -> None:
    source = open_checkpoint(FIXTURE)
    (edit,) = plan(source, size).edits
    grid = edit.split(read_float(source.tensors["pos_embed"])).grid
    back = pi.resample(pi.resample(grid, (size // 4, size // 4)), (7, 7))
    total = np.square(grid - grid.mean(axis=(0, 1))).sum()
    share = kept(edit, source.tensors["pos_embed"])
    # the mean over places is not quite kept by a trip through a coarser grid: it is left out of `kept`
    assert share == pytest.approx(1 - np.square(back - grid).sum() / total, abs=0.02)
    assert share is not None
    assert 0 < share < 1


def test_less_is_kept_by_a_coarser_grid() -> None:
    source = open_checkpoint(FIXTURE)
    shares = [kept(plan(source, size).edits[0], source.tensors["pos_embed"]) for size in (8, 12, 16, 20, 24)]
    assert shares == sorted(shares, key=lambda share: share or 0)
    assert (shares[0] or 0) < 0.3
    assert (shares[-1] or 0) > 0.7


# ------------------------------------------------------------------ a grid that is read wrongly


@pytest.mark.parametrize("sides", [(4, 16), (7, 28), (5, 20), (8, 8), (14, 14), (16, 9), (12, 24)])
def test_rows_tell_the_grid_that_they_were_made_on(sides: tuple[int, int]) -> None:
    count = sides[0] * sides[1]
    for seed in range(4):
        grid = smooth(*sides, seed=seed)
        assert other_grid(grid) is None
        side = round(count**0.5)
        if side * side == count and sides != (side, side):
            assert other_grid(grid.reshape(side, side, -1)) == sides


def test_noise_looks_like_no_grid() -> None:
    for seed in range(200):
        draw = np.random.default_rng(seed)
        height, width = draw.integers(2, 30, 2)
        assert other_grid(draw.standard_normal((height, width, draw.choice([1, 4, 8, 64])))) is None


@pytest.fixture
def oblong(tmp_path: Path) -> Path:
    """A file without a config: 64 rows of a 4×16 grid, which could be 8×8."""
    tensors = vit((4, 16), width=32)
    tensors["pos_embed"][0, 1:] = smooth(4, 16).reshape(64, 32)
    return save(tmp_path / "oblong.safetensors", tensors)


def test_a_square_that_the_values_deny_is_not_guessed(oblong: Path, cli: Run) -> None:
    with pytest.raises(Ambiguous, match="8×8 places by its number of rows, but its values are those of a grid of 4×16"):
        plan(oblong, 256)
    done = cli("resize", oblong.name, "--img", 256)
    assert done.returncode == 2
    assert "say the size it is for: 64x256, or 128 if it is a square (--src-img, src_img=)" in done.stderr
    assert cli("resize", oblong.name, "--img", 256, "--dry-run").returncode == 2
    for out in ("out.safetensors", "out.pth", "out", "new/out"):
        with pytest.raises(Ambiguous):
            pi.resize(oblong, 256, oblong.parent / out)
    assert [path.name for path in oblong.parent.iterdir()] == [oblong.name]
    assert cli("resize", oblong.name, "--img", 256, "--src-img", "64x256").returncode == 0
    assert cli("resize", oblong.name, "--img", 256, "--src-img", "128", "-o", "insisted").returncode == 0


@pytest.mark.parametrize("torch_too", [False, True])
def test_a_state_dict_is_not_guessed_either(oblong: Path, torch_too: bool) -> None:
    tensors = load(oblong)
    state = {name: torch.from_numpy(value) for name, value in tensors.items()} if torch_too else tensors
    with pytest.raises(Ambiguous, match="its values are those of a grid of 4×16"):
        pi.adapt(state, 256)
    assert pi.adapt(state, 256, src_img=(64, 256))["pos_embed"].shape == (1, 257, 32)


def test_no_other_way_guesses_it(oblong: Path, cli: Run) -> None:
    words = ["--against", oblong.name]
    cli("resize", oblong.name, "--img", 256, "--src-img", 128, "-o", "scrambled")
    assert "its values are those of a grid of 4×16" in cli("verify", "scrambled", *words).stderr
    cli("resize", oblong.name, "--img", 256, "--src-img", "64x256", "-o", "right")
    assert cli("verify", "right", *words, "--src-img", "64x256").returncode == 0
    scrambled = cli("verify", "scrambled", *words, "--src-img", "64x256")
    assert (scrambled.returncode, "FAIL  resampled" in scrambled.stdout) == (1, True)


def test_a_model_in_memory_is_not_loaded_from_a_guess(tmp_path: Path) -> None:
    from posinterp.torch import load_resized

    made = timm.create_model("test_vit", img_size=(64, 256)).state_dict()
    width = made["pos_embed"].shape[-1]
    made["pos_embed"][0, 1:] = torch.from_numpy(smooth(4, 16, width).reshape(64, width)).float()
    torch.save(made, tmp_path / "oblong.pth")
    model = timm.create_model("test_vit", img_size=256)
    with pytest.raises(Ambiguous, match="its values are those of a grid of 4×16"):
        load_resized(model, tmp_path / "oblong.pth")
    with pytest.raises(Ambiguous, match="its values are those of a grid of 4×16"):
        pi.peg(tmp_path / "oblong.pth", tmp_path / "peg", family="test_vit")
    load_resized(model, tmp_path / "oblong.pth", src_img=(64, 256))
    expected = pi.resample(made["pos_embed"][0, 1:].reshape(4, 16, width), (16, 16)).reshape(256, width)
    torch.testing.assert_close(model.pos_embed[0, 1:], expected)


def test_inspect_says_what_grid_the_values_are_of(oblong: Path, cli: Run) -> None:
    said = cli("inspect", oblong.name).stdout
    assert "read as 8×8, but the values are those of a grid of 4×16" in said
    assert "next:" not in said


def test_a_config_is_believed(tmp_path: Path, cli: Run) -> None:
    tensors = vit((8, 8), width=32)
    tensors["pos_embed"][0, 1:] = smooth(4, 16).reshape(64, 32)
    folder = save(tmp_path / "said", tensors, timm_config("vit_tiny_patch16_224", (128, 128)))
    assert plan(folder, 256).src_img == (128, 128)
    assert "the values are those of a grid of 4×16" in cli("inspect", "said").stdout  # somebody scrambled them


# ------------------------------------------------------------------ the answer of `inspect`


def test_inspect_says_how_the_table_fares(cli: Run, tmp_path: Path) -> None:
    said = cli("inspect", FIXTURE, "--img", 56, "--json")
    answer = json.loads(said.stdout)
    (table,) = answer["checkpoint"]["models"][0]["tensors"]
    assert set(table["health"]) == {
        "places", "nonfinite", "zero_rows", "norm", "alike", "structure", "rank", "looks_like",
    }  # fmt: skip
    assert table["health"]["places"] == 49
    assert answer["checkpoint"]["models"][0]["sizes"] == ["20", "24", "32", "36", "56"]
    assert 0.9 < answer["kept"]["pos_embed"] < 1
    assert answer["next"] == f"posinterp resize {FIXTURE} --img 56"
    for size in answer["checkpoint"]["models"][0]["sizes"]:
        plan(FIXTURE, size)


def test_tables_of_one_kind_are_one_line(cli: Run, tmp_path: Path) -> None:
    tensors = vit()
    for block in range(3):
        tensors[f"blocks.{block}.attn.rel_pos_h"] = noise(27, 4).astype(np.float32)
        tensors[f"blocks.{block}.attn.rel_pos_w"] = noise(27, 4).astype(np.float32)
    tensors["blocks.1.attn.rel_pos_w"][0] = 0
    tensors["blocks.1.attn.rel_pos_w"][3] = np.nan
    save(tmp_path / "rel.safetensors", tensors)
    rules = ["--rule", "blocks.*.attn.rel_pos_h = h c", "--rule", "blocks.*.attn.rel_pos_w = w c"]
    said = cli("inspect", "rel.safetensors", "--src-img", 224, *rules).stdout
    assert "  blocks.*.attn.rel_pos_h (3)   27×4 F32   h c\n" in said
    assert "blocks.1.attn.rel_pos_w: 4 values are not finite (NaN or Inf)" in said
    assert "blocks.1.attn.rel_pos_w   27×4" in cli("inspect", "rel.safetensors", "--src-img", 224, "-v", *rules).stdout
