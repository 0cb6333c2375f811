"""Figures of positions: what is in them, what is on the page, and what a terminal shows."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from conftest import FIXTURE, ROOT, load, save, swin, table, timm_config, vit
from matplotlib.figure import Figure as Canvas
from PIL import Image

import posinterp
from posinterp.errors import BadUsage, BadValues, Mismatch, OutputExists, Unsupported
from posinterp.plotting import NAMES, Figure, make_figure, save_figure, terminal_lines
from posinterp.plotting.colours import NAMES as MAPS
from posinterp.plotting.colours import coloured
from posinterp.plotting.image import DPI, WIDTH, _draw, rendered
from posinterp.plotting.panels import Axis, Panel, Scale
from posinterp.similarity import cosine_maps

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def drawn(figure: Figure) -> list[tuple[Any, Any]]:
    """Each panel's axes and image, as matplotlib holds them."""
    canvas = Canvas(layout="constrained")
    _draw(canvas, figure)
    return [(axes, axes.images[0]) for axes in canvas.axes if axes.images]


def pixels(figure: Figure) -> np.ndarray:
    with Image.open(io.BytesIO(rendered(figure, "png"))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def share_of(image: np.ndarray, colour: tuple[int, ...]) -> float:
    """Of the pixels, those that have that colour."""
    return float((np.abs(image - np.array(colour)).max(-1) <= 2).mean())


# ------------------------------------------------------------------ tiles


def test_a_tile_is_lightest_at_its_own_place() -> None:
    (panel,) = make_figure(FIXTURE).panels[0]
    assert panel.values.shape == (7, 7, 7, 7)
    for row, column in np.ndindex(7, 7):
        assert np.unravel_index(panel.values[row, column].argmax(), (7, 7)) == (row, column)
    assert make_figure(FIXTURE).scales["similarity"].high == 1


def test_a_mosaic_has_every_tile_where_it_belongs() -> None:
    values = np.arange(2 * 3 * 4 * 5, dtype=np.float64).reshape(2, 3, 4, 5)
    line = Axis("patch row", (0, 1, 2))
    mosaic = Panel("", values, line, line, "x").mosaic
    assert mosaic.shape == (2 * 5 - 1, 3 * 6 - 1)
    for row, column in np.ndindex(2, 3):
        np.testing.assert_array_equal(mosaic[row * 5 : row * 5 + 4, column * 6 : column * 6 + 5], values[row, column])
    assert np.isnan(mosaic[4]).all()
    assert np.isnan(mosaic[:, 5]).all()


def test_tiles_on_the_page() -> None:
    figure = make_figure(FIXTURE)
    image = pixels(figure)
    assert image.shape[1] == WIDTH * DPI
    assert 0.8 < image.shape[0] / image.shape[1] < 1.25
    (axes, shown) = drawn(figure)[0]
    assert shown.get_clim() == (figure.scales["similarity"].low, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("patch column", "patch row")
    assert [label.get_text() for label in axes.get_xticklabels()] == list("0123456")
    assert list(axes.get_xticks()) == [3 + 8 * n for n in range(7)]
    (right, top) = axes.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["2", "6", "10", "14", "18", "22", "26"]
    assert (top.get_xlabel(), right.get_ylabel()) == ("pixels", "pixels")
    # 49 places of the largest value, each 1/55² of the mosaic, which is most of the page
    assert 0.6 * 49 / 55**2 < share_of(image, (253, 231, 37)) < 1.3 * 49 / 55**2


def test_a_large_grid_has_fewer_tiles_and_says_so(tmp_path: Path) -> None:
    figure = make_figure(save(tmp_path / "a.safetensors", vit((24, 24))))
    (panel,) = figure.panels[0]
    assert panel.values.shape == (12, 12, 24, 24)
    assert panel.rows.names == tuple(range(0, 24, 2))
    assert "12×12 of its 24×24 places have a tile" in figure.caption
    for row, column in np.ndindex(12, 12):
        assert np.unravel_index(panel.values[row, column].argmax(), (24, 24)) == (2 * row, 2 * column)


def test_a_grid_that_is_not_square(tmp_path: Path) -> None:
    held = save(tmp_path / "a", vit((4, 9)), timm_config("vit_tiny_patch16_224", (64, 144)))
    (panel,) = make_figure(held).panels[0]
    assert panel.values.shape == (4, 9, 4, 9)
    assert (len(panel.rows.names), len(panel.columns.names)) == (4, 9)


def test_chosen_places_have_a_panel_each() -> None:
    figure = make_figure(FIXTURE, at=[(3, 1), (5, 2)])
    assert [panel.mark for panel in figure.panels[0]] == [(3, 1), (5, 2)]
    for panel in figure.panels[0]:
        np.testing.assert_allclose(panel.values, posinterp.position_similarity(FIXTURE, panel.mark), atol=1e-12)
    resized = make_figure(FIXTURE, "tiles", img=56, at=[(3, 1)])
    assert resized.panels[0][0].mark == (7, 3)
    assert "Resized 28 → 56" in resized.caption


# ------------------------------------------------------------------ before and after


def test_before_and_after_are_what_resize_writes(tmp_path: Path) -> None:
    posinterp.resize(FIXTURE, 56, tmp_path / "out")
    planned = make_figure(FIXTURE, img=56, at=[(3, 3)])
    written = make_figure(tmp_path / "out", against=FIXTURE, at=[(3, 3)])
    rows = load(tmp_path / "out")["pos_embed"][0, 1:].reshape(14, 14, -1)
    for figure in (planned, written):
        (before,), (after,) = figure.panels
        assert (before.mark, after.mark) == ((3, 3), (7, 7))
        np.testing.assert_allclose(after.values, cosine_maps(rows, [(7, 7)])[0], atol=1e-12)
        assert before.values[3, 3] == pytest.approx(1)
        assert after.values[7, 7] == pytest.approx(1)
    assert "Resized 28 → 56 by bicubic, antialias" in planned.caption
    assert "made by posinterp, bicubic, antialias" in written.caption


def test_before_and_after_share_one_scale() -> None:
    figure = make_figure(FIXTURE, img=56)
    found = [image.get_clim() for _, image in drawn(figure)]
    assert len(found) == 6
    low = min(panel.values.min() for row in figure.panels for panel in row)
    assert set(found) == {(low, 1.0)}


def test_a_place_is_the_same_spot_of_the_image() -> None:
    figure = make_figure(FIXTURE, img=(40, 56), at=[(6, 0)])
    assert figure.panels[1][0].mark == (9, 1)
    (before, _), (after, _) = drawn(figure)
    (mark,) = after.lines
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([1], [9])
    assert before.child_axes[-1].get_xlabel() == "pixels"


def test_the_method_is_the_one_that_is_asked_for() -> None:
    plain = make_figure(FIXTURE, img=56, at=[(3, 3)], method="nearest")
    assert "by nearest" in plain.caption
    values = plain.panels[1][0].values
    np.testing.assert_array_equal(values, values[::2, ::2].repeat(2, 0).repeat(2, 1))


def test_another_model_is_no_resize(tmp_path: Path) -> None:
    wider = save(tmp_path / "wide.safetensors", vit((14, 14), width=16))
    held = save(tmp_path / "vit.safetensors", vit((14, 14)))
    with pytest.raises(Mismatch, match="vectors of 16 numbers .* and of 8"):
        make_figure(wider, against=held)
    with pytest.raises(Mismatch, match="no position tensor layers"):
        make_figure(held, against=save(tmp_path / "swin.safetensors", swin()))


# ------------------------------------------------------------------ bias


def test_bias_is_one_image_for_each_head(tmp_path: Path) -> None:
    tensors = swin()
    figure = make_figure(save(tmp_path / "swin.safetensors", tensors))
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    assert (figure.show, figure.tensor, len(figure.panels[0])) == ("bias", name, 2)
    for head, panel in enumerate(figure.panels[0]):
        np.testing.assert_array_equal(panel.values, tensors[name].reshape(13, 13, 2)[..., head])
        assert (panel.rows.label, panel.rows.names) == ("offset in rows", tuple(range(-6, 7)))
    scale = figure.scales["bias"]
    assert scale.signed
    assert scale.high == -scale.low == pytest.approx(np.abs(tensors[name]).max())
    axes, image = drawn(figure)[0]
    assert image.get_cmap().name == "RdBu_r"
    assert "0" in [label.get_text() for label in axes.get_xticklabels()]


def test_bias_of_another_stage_before_and_after(tmp_path: Path) -> None:
    held = save(tmp_path / "swin.safetensors", swin())
    name = "layers.2.blocks.0.attn.relative_position_bias_table"
    figure = make_figure(held, img=384, window="12", tensor=name)
    before, after = figure.panels
    assert (len(before), before[0].values.shape, after[0].values.shape) == (6, (13, 13), (23, 23))
    assert "2 more heads are not drawn" in figure.caption
    assert "by geometric" in figure.caption
    with pytest.raises(BadUsage, match="is the same at 384") as failure:
        make_figure(held, img=384, tensor=name)
    assert "--window" in str(failure.value.hint)


def test_bias_of_one_axis_shows_channels(tmp_path: Path) -> None:
    tensors = {
        "pos_embed": table((4, 4), 8).reshape(1, 4, 4, 8),
        "patch_embed.proj.weight": np.ones((768, 3, 16, 16), np.float32),
        "blocks.0.attn.rel_pos_h": np.ones((5, 4), np.float32),
        "blocks.2.attn.rel_pos_h": table((7, 1), 4)[0],
        "blocks.2.attn.rel_pos_w": table((7, 1), 4, seed=1)[0],
    }
    held = save(tmp_path / "sam.safetensors", tensors)
    panels = make_figure(held, tensor="blocks.2.attn.rel_pos_w").panels[0]
    assert [panel.title for panel in panels] == ["rel_pos_w", "rel_pos_h"]
    for panel in panels:
        np.testing.assert_array_equal(panel.values, tensors[f"blocks.2.attn.{panel.title}"].T)
        assert panel.columns.names == (-3, -2, -1, 0, 1, 2, 3)
    before, after = make_figure(held, "bias", img=(64, 96)).panels
    assert [panel.values.shape for panel in (*before, *after)] == [(4, 7), (4, 7), (4, 11), (4, 7)]
    assert after[0].title == "after, 64x96 pixels: rel_pos_w"  # what changes is first
    assert make_figure(held).tensor == "pos_embed"
    assert make_figure(held, "bias").tensor == "blocks.2.attn.rel_pos_h"


# ------------------------------------------------------------------ methods, components


def test_methods_are_each_its_own_resize(tmp_path: Path) -> None:
    figure = make_figure(FIXTURE, "methods", img=56, at=[(3, 3)])
    above, apart = figure.panels
    names = ["bicubic, antialias", "nearest", "bilinear", "bicubic", "lanczos3, antialias"]
    assert [panel.title for panel in above] == names == figure.facts["methods"]
    rows = load(FIXTURE)["pos_embed"][0, 1:].reshape(7, 7, -1).astype(np.float64)
    grids = [posinterp.resample(rows, (14, 14), method=name.split(",")[0], antialias="anti" in name) for name in names]
    length = np.sqrt((grids[0] ** 2).sum(-1).mean())
    for panel, difference, grid in zip(above, apart, grids, strict=True):
        np.testing.assert_allclose(panel.values, cosine_maps(grid, [(7, 7)])[0], atol=1e-6)
        np.testing.assert_allclose(
            difference.values, 100 * np.linalg.norm(grid - grids[0], axis=-1) / length, atol=1e-3
        )
    assert not apart[0].values.any()
    assert figure.facts["mean_distance"][1] > figure.facts["mean_distance"][3] > 0
    assert "56; the first column is what resize writes" in figure.caption


def test_methods_of_a_bias_have_the_familys_first(tmp_path: Path) -> None:
    held = save(tmp_path / "swin.safetensors", swin())
    figure = make_figure(held, "methods", img=384, window="12")
    assert [panel.title for panel in figure.panels[0]][:2] == ["geometric", "nearest"]
    assert len(figure.panels[0]) == 6
    assert figure.scales["above"].signed
    with pytest.raises(BadUsage, match="say to which size|resamples a table"):
        make_figure(held, "methods")


def test_methods_draw_one_place() -> None:
    with pytest.raises(BadUsage, match="draws one place"):
        make_figure(FIXTURE, "methods", img=56, at=[(0, 0), (1, 1)])


def test_components_share_basis_and_colours() -> None:
    rows = load(FIXTURE)["pos_embed"][0, 1:].astype(np.float64)
    figure = make_figure(FIXTURE, "components", img=56)
    before, after = figure.panels
    flat = before[1].values.ravel()
    values, _ = np.linalg.eigh(np.cov(rows.T, bias=True))
    assert (flat**2).mean() == pytest.approx(values[-1])
    assert figure.facts["shares"][0] == pytest.approx(values[-1] / values.sum())
    assert before[0].values.shape == (7, 7, 3)
    assert after[0].values.shape == (14, 14, 3)
    both = np.concatenate([before[0].values.reshape(-1, 3), after[0].values.reshape(-1, 3)])
    np.testing.assert_allclose([both.min(0), both.max(0)], [[0, 0, 0], [1, 1, 1]], atol=1e-12)
    # resampling is linear, and its weights sum to one: components of the resampled are the resampled components
    again = posinterp.resample(before[1].values[..., None], (14, 14))[..., 0]
    np.testing.assert_allclose(after[1].values, again, atol=1e-5)
    assert figure.scales["component"].low == -figure.scales["component"].high
    image = pixels(figure)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 200


def test_components_of_few_channels(tmp_path: Path) -> None:
    figure = make_figure(save(tmp_path / "two.safetensors", vit((4, 4), width=2)), "components")
    (row,) = figure.panels
    assert len(row) == 3
    assert (row[0].values[..., 2] == 0.5).all()


# ------------------------------------------------------------------ PEGs


def pegged(path: Path, kernels: np.ndarray) -> Path:
    held = {name: value for name, value in vit((4, 4), width=len(kernels)).items() if name != "pos_embed"}
    return save(path, {**held, "pos_block.0.proj.weight": kernels.astype(np.float32)})


@pytest.mark.parametrize("side", [3, 5])
def test_the_answer_of_a_peg_is_torchs(tmp_path: Path, side: int) -> None:
    import torch

    kernels = np.random.default_rng(0).standard_normal((8, 1, side, side)).astype(np.float32)
    figure = make_figure(pegged(tmp_path / "peg.safetensors", kernels))
    assert (figure.show, figure.tensor) == ("peg", "pos_block.0.proj.weight")
    tiles, answer = figure.panels[0]
    weight = torch.from_numpy(kernels).double()
    ones = torch.ones(1, 8, *answer.values.shape, dtype=torch.float64)
    found = torch.nn.functional.conv2d(ones, weight, padding=side // 2, groups=8)[0].permute(1, 2, 0)
    middle = found[answer.values.shape[0] // 2, answer.values.shape[1] // 2]
    np.testing.assert_allclose(answer.values, ((found - middle).norm(dim=-1) / weight.norm()).numpy(), atol=1e-9)
    border = side // 2
    assert not answer.values[border:-border, border:-border].any()
    assert (answer.values[0] > 0).all()
    strongest = figure.facts["channels"]
    assert strongest == sorted(range(8), key=lambda n: -np.linalg.norm(kernels[n]))
    np.testing.assert_allclose(tiles.values[1, 2], kernels[strongest[7], 0])
    assert np.isnan(tiles.values[1, 3:]).all()
    assert pixels(figure).shape[1] == WIDTH * DPI


def test_a_peg_that_is_zero_has_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(BadValues, match="this PEG is the identity"):
        make_figure(pegged(tmp_path / "peg.safetensors", np.zeros((8, 1, 3, 3))))
    with pytest.raises(Unsupported, match="there is no PEG in this vit"):
        make_figure(FIXTURE, "peg")
    ones = pegged(tmp_path / "ones.safetensors", np.ones((8, 1, 3, 3)))
    with pytest.raises(BadUsage, match="which no size changes"):
        make_figure(ones, "peg", img=56)
    with pytest.raises(BadUsage, match="is no kernel of a PEG"):
        make_figure(ones, "peg", tensor="norm.weight")


# ------------------------------------------------------------------ every family


def test_every_kind_of_table_is_drawn(tmp_path: Path) -> None:
    """Layouts that differ from a ViT's: heads first, distances, blocks, rows behind the grid, one axis."""
    import timm

    sizes = {
        "nest_tiny": "levels.0.pos_embed",
        "visformer_tiny": "pos_embed1",
        "levit_128s": "stages.0.blocks.0.attn.attention_biases",
        "beit_base_patch16_224": "blocks.0.attn.relative_position_bias_table",
        "mvitv2_tiny": "stages.0.blocks.0.attn.rel_pos_h",
    }
    for name, tensor in sizes.items():
        options = {"depth": 1} if name.startswith("beit") else {}
        state = timm.create_model(name, num_classes=2, **options).state_dict()
        held = save(tmp_path / f"{name}.safetensors", {key: value.numpy() for key, value in state.items()})
        figure = make_figure(held, family=name)
        assert rendered(figure, "png")
        assert all(terminal_lines(figure, colour=colour) for colour in (False, True))
        assert tensor in {figure.tensor, make_figure(held, family=name, tensor=tensor).tensor}


# ------------------------------------------------------------------ files


def test_a_figure_is_the_same_bytes_again() -> None:
    figure = make_figure(FIXTURE)
    for kind in ("png", "svg", "pdf"):
        assert rendered(figure, kind) == rendered(figure, kind)
    assert rendered(figure, "svg").startswith(b"<?xml")
    assert rendered(figure, "pdf").startswith(b"%PDF")


def test_a_png_says_what_it_shows() -> None:
    figure = make_figure(FIXTURE)
    with Image.open(io.BytesIO(rendered(figure, "png"))) as image:
        assert image.info["Description"] == figure.caption


def test_writing(tmp_path: Path) -> None:
    figure = make_figure(FIXTURE)
    out = tmp_path / "figure.svg"
    save_figure(figure, out)
    with pytest.raises(OutputExists):
        save_figure(figure, out)
    save_figure(figure, out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]
    with pytest.raises(BadUsage, match="no format of figures"):
        save_figure(figure, tmp_path / "figure.jpg")


HOSTILE = ["$\\frac{a}$", "<script>alert(1)</script>&", "a\nb\x00\x1b[31m", "$x$" * 40, "層", "\ud800"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_only(name: str) -> None:
    line = Axis(name, (0, 1))
    panel = Panel(name, np.eye(2), line, line, "x")
    figure = Figure("tiles", name, name, name, ((panel,),), {"x": Scale(0, 1, name)})
    for kind in ("png", "svg", "pdf"):
        assert rendered(figure, kind)
    import xml.etree.ElementTree as ElementTree

    text = rendered(figure, "svg")
    assert b"<script" not in text
    ElementTree.fromstring(text)
    assert not any("\x1b" in line for line in terminal_lines(figure, colour=False))


def test_settings_of_the_user_do_not_show(tmp_path: Path) -> None:
    figure = make_figure(FIXTURE)
    plain = rendered(figure, "png")
    with matplotlib.rc_context({"image.cmap": "jet", "font.size": 30, "figure.dpi": 20, "savefig.dpi": 20}):
        assert rendered(figure, "png") == plain
        assert matplotlib.rcParams["font.size"] == 30


# ------------------------------------------------------------------ the terminal


@pytest.mark.parametrize("signed", [False, True])
def test_colours_are_matplotlibs(signed: bool) -> None:
    values = np.linspace(-2, 3, 301)
    ours = coloured(values, Scale(-2, 3, "", signed)).astype(int)
    theirs = 255 * matplotlib.colormaps[MAPS[signed]](np.linspace(0, 1, 301))[:, :3]
    assert np.abs(ours - theirs).max() <= 8


def test_half_blocks_carry_two_rows() -> None:
    values = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    line = Axis("patch row", (0, 1, 2))
    figure = Figure(
        "tiles", "t", "Title", "Words.", ((Panel("", values[None, None], line, line, "x"),),), {"x": Scale(0, 1, "y")}
    )
    lines = terminal_lines(figure)
    dark, light = "68;1;84", "253;231;37"
    assert lines[2] == f"\033[38;2;{dark};48;2;{light}m▀\033[38;2;{light};48;2;{dark}m▀\033[0m"
    assert lines[3] == f"\033[0;38;2;{dark}m▀\033[0;38;2;{light}m▀\033[0m"
    assert lines[-1] == "Words."


def test_shades_without_colour() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 0.5]])
    line = Axis("patch row", (0, 1))
    figure = Figure(
        "tiles", "t", "T", "W", ((Panel("", values[None, None], line, line, "x"),),), {"x": Scale(0, 1, "y")}
    )
    assert terminal_lines(figure, colour=False)[2:4] == ["..@@", "  ++"]


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_it_fits_the_terminal(columns: int, colour: bool) -> None:
    import re

    for options in ({}, {"img": 56}):
        figure = make_figure(FIXTURE, **options)
        for line in terminal_lines(figure, columns=columns, colour=colour)[2:]:
            if not any(word in line for word in ("similarity", "pixels", "no room")):
                assert len(re.sub("\033\\[[0-9;]*m", "", line)) <= columns


# ------------------------------------------------------------------ the command


def test_the_command_writes_and_says(cli: Run) -> None:
    done = cli("plot", FIXTURE, "-o", "a.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "pos_embed: how similar each place is to all others"
    assert done.stdout.endswith("wrote a.png\n")
    again = cli("plot", FIXTURE, "-o", "a.png")
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    assert cli("plot", FIXTURE, "-o", "a.png", "--force", "-q").stdout == "a.png\n"


def test_json_has_the_numbers(cli: Run) -> None:
    answer = json.loads(cli("plot", FIXTURE, "--img", "56", "--at", "3,3", "--json").stdout)
    figure = answer["figure"]
    assert (answer["command"], answer["output"], figure["show"]) == ("plot", None, "resize")
    assert figure["scales"]["similarity"]["high"] == 1
    before, after = (row[0] for row in figure["panels"])
    assert (before["mark"], after["mark"], after["rows"]["pixels"]) == ([3, 3], [7, 7], 4)
    np.testing.assert_allclose(before["values"], posinterp.position_similarity(FIXTURE, (3, 3)), atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no figure was asked for"),
        (["-o", "a.jpg"], "a.jpg ends in no format of figures"),
        (["--term", "--show", "pie"], "--show 'pie' is no figure"),
        (["--term", "--show", "resize"], "--show resize compares two sizes"),
        (["--term", "--show", "bias"], "no bias of attention"),
        (["--term", "--at", "3;4"], "--at '3;4' is no place"),
        (["--term", "--at", "7,0"], "there is no place 7,0 in a grid of 7×7"),
        (["--term", "--tensor", "head.weight"], "'head.weight' is no position tensor of this checkpoint"),
        (["--term", "--img", "56", "--against", "x"], "--img and --against both say"),
        (["--term", "--img", "28"], "pos_embed is the same at 28"),
        (["--term", "--img", "30"], "30 is not a multiple of the patch size 4"),
    ],
)
def test_mistakes_are_sentences(cli: Run, words: list[str], message: str) -> None:
    done = cli("plot", FIXTURE, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")
    words = [sys.executable, "-m", "posinterp", "plot", str(FIXTURE)]
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*words, "-o", "a.png"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (done.returncode, "pip install matplotlib" in done.stderr) == (2, True)
    assert not (tmp_path / "a.png").exists()
    shown = subprocess.run([*words, "--term"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_what_has_no_table_is_refused(tmp_path: Path) -> None:
    free = {"pos_block.0.proj.weight": np.ones((8, 1, 3, 3), np.float32)}
    free |= {name: value for name, value in vit((4, 4)).items() if name != "pos_embed"}
    held = save(tmp_path / "cpvt.safetensors", free)
    with pytest.raises(Unsupported, match="zero padding"):
        make_figure(held, "tiles")
    with pytest.raises(Unsupported) as refusal:
        make_figure(held, "tiles")
    assert "--show peg" in str(refusal.value.hint)
    zero = vit((4, 4))
    zero["pos_embed"][:] = 0
    with pytest.raises(BadValues, match="zero at every place"):
        make_figure(save(tmp_path / "zero.safetensors", zero))


def test_a_pickle_and_half_precision(tmp_path: Path) -> None:
    import torch

    tensors = {name: torch.from_numpy(value).bfloat16() for name, value in vit((4, 4)).items()}
    torch.save({"model": tensors}, tmp_path / "a.pth")
    (panel,) = make_figure(tmp_path / "a.pth").panels[0]
    assert panel.values.shape == (4, 4, 4, 4)
    assert make_figure(tmp_path / "a.pth", img=96).show == "resize"


def test_a_figure_is_drawn_without_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from posinterp.plotting import make_figure, save_figure\n"
        f"for show in ('tiles', 'resize', 'methods', 'components'):\n"
        f"    save_figure(make_figure({str(FIXTURE)!r}, show, img=56), show + '.svg')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
        "assert not {'torch', 'timm', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_that_changes_is_preferred(tmp_path: Path) -> None:
    """At a smaller size Swin's last map is smaller than its window; the tables of the first stages stay."""
    held = save(tmp_path / "swin.safetensors", swin())
    assert make_figure(held, img=160).tensor == "layers.3.blocks.0.attn.relative_position_bias_table"


def test_tiles_that_a_terminal_has_no_room_for(tmp_path: Path) -> None:
    figure = make_figure(save(tmp_path / "a.safetensors", vit((14, 14))))
    lines = terminal_lines(figure, columns=80, colour=False)
    assert "2×2 of 14×14 tiles: there is no room for more" in lines[2]
    assert len(lines[3]) == 2 * (14 + 1 + 14)
    assert "no room" not in "".join(terminal_lines(figure, columns=210, colour=True))


def test_every_figure_is_reachable(cli: Run) -> None:
    help_text = " ".join(cli("plot", "--help").stdout.split())
    assert len(NAMES) == 6
    assert ", ".join(NAMES) in help_text


# ------------------------------------------------------------------ docs/figures


def test_the_figures_of_the_docs_are_what_their_script_makes(tmp_path: Path) -> None:
    script = ROOT / "docs" / "figures.py"
    subprocess.run([sys.executable, str(script), "-o", str(tmp_path)], check=True, cwd=tmp_path)
    committed = sorted((ROOT / "docs" / "figures").glob("*.png"))
    assert [path.name for path in committed] == sorted(path.name for path in tmp_path.iterdir())
    for path in committed:
        assert path.stat().st_size < 150_000
        with Image.open(path) as old, Image.open(tmp_path / path.name) as new:
            assert old.info["Description"] == new.info["Description"]
            assert np.allclose(old.size, new.size, rtol=0.03)
            shrunk = [np.asarray(one.convert("RGB").resize((80, 80)), dtype=float) for one in (old, new)]
            assert np.abs(shrunk[0] - shrunk[1]).mean() < 10  # another matplotlib moves words by a pixel
            assert np.asarray(old.convert("L")).std() > 20
