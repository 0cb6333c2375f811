"""A model that nobody knows: rules of the user's own, and their proposal from a model's shapes."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from conftest import load, save, table, vit

import posinterp as pi
from posinterp.families import FAMILIES
from posinterp.layout import Layout
from posinterp.proposal import propose
from posinterp.rules import Cut, Patch, Rule, Side, matches, rule_of


def bicubic(rows: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    image = torch.from_numpy(rows.astype(np.float64)).reshape(1, *old, -1).permute(0, 3, 1, 2)
    out = F.interpolate(image, new, mode="bicubic", antialias=True)
    return out.permute(0, 2, 3, 1).reshape(-1, rows.shape[-1]).numpy()


def private(grid: tuple[int, int] = (14, 14), prefix: int = 1) -> dict[str, np.ndarray]:
    return {"net.places": table(grid, 8, prefix), "net.conv.weight": np.ones((8, 3, 16, 16), np.float32)}


def test_a_rule_names_a_tensor_that_nobody_knows(tmp_path: Path) -> None:
    source = save(tmp_path / "own.safetensors", private())
    with pytest.raises(pi.PosinterpError, match="no known family"):
        pi.plan(source, 384)
    made = pi.resize(source, 384, tmp_path / "out.safetensors", src_img=224, rules=["net.places = 1 (p h w) c"])
    out, own = load(tmp_path / "out.safetensors"), private()
    assert made.edits[0].extra == 1
    np.testing.assert_array_equal(out["net.places"][0, 0], own["net.places"][0, 0])
    np.testing.assert_allclose(
        out["net.places"][0, 1:], bicubic(own["net.places"][0, 1:], (14, 14), (24, 24)), atol=1e-6
    )
    np.testing.assert_array_equal(out["net.conv.weight"], own["net.conv.weight"])


def test_the_images_aspect_tells_the_grid(tmp_path: Path) -> None:
    own = private((8, 18), prefix=0)
    source = save(tmp_path / "own.safetensors", own)
    pi.resize(source, (192, 384), tmp_path / "out.safetensors", src_img=(128, 288), rules=["net.places = 1 (p h w) c"])
    out = load(tmp_path / "out.safetensors")["net.places"]
    np.testing.assert_allclose(out[0], bicubic(own["net.places"][0], (8, 18), (12, 24)), atol=1e-6)


def test_a_rule_beside_a_family(tmp_path: Path) -> None:
    """A masked autoencoder's decoder, of which the family does not speak."""
    tensors = vit() | {"decoder_pos_embed": table((14, 14), 4, 1, seed=3)}
    source = save(tmp_path / "mae.safetensors", tensors)
    made = pi.resize(source, 384, tmp_path / "out.safetensors", rules=["decoder_pos_embed = 1 (p h w) c"])
    assert [edit.name for edit in made.edits] == ["decoder_pos_embed", "pos_embed"]
    assert made.family.name == "vit"
    assert load(tmp_path / "out.safetensors")["decoder_pos_embed"].shape == (1, 577, 4)


@pytest.mark.parametrize("root", ["net.", "net/model."])
def test_a_rule_names_tensors_as_the_file_does(root: str, tmp_path: Path) -> None:
    tensors = {root + name: value for name, value in vit().items()} | {"decoder.places": table((14, 14), 4, 1, seed=3)}
    rules = [f"{root}pos_embed = 1 (p h w) c, bilinear", "decoder.places = 1 (p h w) c"]
    made = pi.plan(save(tmp_path / "own.safetensors", tensors), 384, src_img=224, rules=rules)
    assert {edit.name: str(edit.method) for edit in made.edits} == {
        f"{root}pos_embed": "bilinear",
        "decoder.places": "bicubic, antialias",
    }


@pytest.mark.parametrize(
    ("layout", "shape", "wanted"),
    [
        ("1 h w c", (1, 8, 8, 3), (1, 12, 12, 3)),
        ("c h w", (3, 8, 8), (3, 12, 12)),
        ("(h w s) c, offsets, geometric", (15 * 15 + 3, 2), (23 * 23 + 3, 2)),
        ("h c, offsets, bilinear", (15, 4), (23, 4)),
        ("c (h w)", (2, 64), (2, 144)),
        ("1 (u v) (h w) c", (1, 4, 16, 3), (1, 4, 36, 3)),
    ],
)
def test_every_notation(layout: str, shape: tuple[int, ...], wanted: tuple[int, ...], tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source = save(tmp_path / "own.safetensors", {"x.weight": values})
    pi.resize(source, 192, tmp_path / "out.safetensors", src_img=128, rules=[f"x.* = {layout}"])
    assert load(tmp_path / "out.safetensors")["x.weight"].shape == wanted


@pytest.mark.parametrize(
    ("rule", "src_img", "message"),
    [
        ("net.places", 224, "is no rule"),
        ("net.places = 1 (q h w) c", 224, "another letter in parentheses"),
        ("net.places = 1 (p h w) c, cubic", 224, "cubic is no method"),
        ("net.place = 1 (p h w) c", 224, "names no tensor"),
        ("net.places = (p h w) c", 224, "has shape 1×197×8; the layout"),
        ("net.places = 1 (p h w) c", None, "do not show how many pixels a place of net.places spans"),
        ("net.places = 1 (p h w) c", (32, 224), "disagrees"),
    ],
)
def test_what_is_no_rule(rule: str, src_img: Any, message: str, tmp_path: Path) -> None:
    source = save(tmp_path / "own.safetensors", private())
    with pytest.raises(pi.PosinterpError, match=message):
        pi.plan(source, 384, src_img=src_img, rules=[rule])


def test_a_size_that_gives_no_whole_number_of_places(tmp_path: Path) -> None:
    source = save(tmp_path / "own.safetensors", private())
    with pytest.raises(pi.PosinterpError, match="14 places for 224 pixels: 390 gives no whole number") as caught:
        pi.plan(source, 390, src_img=224, rules=["net.places = 1 (p h w) c"])
    assert caught.value.hint == "the nearest sizes are 384 and 400"


def test_on_the_command_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "own.safetensors", private())
    words = ("--img", 384, "--src-img", 224, "--rule", "net.places = 1 (p h w) c")
    done = cli("resize", "own.safetensors", *words, "-o", "out.safetensors")
    assert done.returncode == 0, done.stderr
    assert "net.places   1×197×8 → 1×577×8   1 prefix + 14×14 → 24×24" in done.stdout
    assert cli("inspect", "own.safetensors", *words).returncode == 0
    proof = done.stdout.splitlines()[-1].removeprefix("next: posinterp ")
    checked = cli(*shlex.split(proof))
    assert checked.returncode == 0, checked.stdout
    assert "1 tensor as torch gives in float64 (bicubic, antialias)" in checked.stdout
    out = load(tmp_path / "out.safetensors")
    save(tmp_path / "out.safetensors", {**out, "net.places": out["net.places"][:, ::-1].copy()})
    assert cli(*shlex.split(proof), "--img", 384).returncode == 1


def test_in_memory() -> None:
    state = {name: torch.from_numpy(value) for name, value in private().items()}
    out = pi.adapt(state, 384, src_img=224, rules=["net.places = 1 (p h w) c"])
    assert out["net.places"].shape == (1, 577, 8)


# ------------------------------------------------------------------ proposals


@pytest.mark.parametrize(
    ("arch", "img", "rule", "family"),
    [
        ("vit_tiny_patch16_224", (384, 256), "pos_embed = 1 (p h w) c", "vit"),
        ("pit_ti_224", (320, 256), None, "pit"),
        ("visformer_tiny", (320, 256), "pos_embed* = 1 c h w", "visformer"),
        ("volo_d1_224", (320, 256), "pos_embed = 1 h w c", "volo"),
        ("test_coatnet", (320, 256), "stages.*.blocks.*.attn.rel_pos.relative_position_bias_table = "
                                     "(h w s) c, offsets, geometric", "coatnet"),
        ("resnet50_clip", (320, 256), "head.pos_embed = (p h w) c", "clip-resnet"),
    ],
)  # fmt: skip
def test_a_models_shapes_say_its_rules(arch: str, img: tuple[int, int], rule: str | None, family: str) -> None:
    found = propose(arch, img)
    assert found.family == family
    assert (rule is None) == (not found.tensors[0].rules)
    assert rule is None or found.tensors[0].rules[0] == rule


def test_a_proposal_is_a_rule_that_works(tmp_path: Path) -> None:
    """What is proposed for a model, said of its bare tensors, gives the shapes of timm's model at that size."""
    text = propose("volo_d1_224", (320, 256)).tensors[0].rules[0]
    state = timm.create_model("volo_d1_224", num_classes=3).state_dict()
    renamed = {f"net.{name.replace('pos_embed', 'places')}": value for name, value in state.items()}
    out = pi.adapt(renamed, (320, 256), src_img=224, rules=["net." + text.replace("pos_embed", "places")])
    wanted = timm.create_model("volo_d1_224", num_classes=3, img_size=(320, 256)).state_dict()
    assert out["net.places"].shape == wanted["pos_embed"].shape


def test_proposals_on_the_command_line(cli: Callable[..., Any]) -> None:
    done = cli("inspect", "--arch", "test_vit", "--img", "320x160")
    assert done.returncode == 0, done.stderr
    assert "--rule 'pos_embed = 1 (p h w) c'" in done.stdout
    assert "known: family vit says the same shapes" in done.stdout
    mixer = cli("inspect", "--arch", "gmixer_12_224", "--img", 288, "--json")
    assert mixer.returncode == 1
    assert json.loads(mixer.stdout)["family"] == ""
    for name, img, said in [
        ("no_such_model", 224, "timm has no model 'no_such_model'"),
        ("resnet18", 224, "takes no img_size"),
        ("nest_tiny", "224x256", "does not build nest_tiny for 224x256"),
    ]:
        with pytest.raises(pi.PosinterpError, match=said):
            propose(name, img)
    for words, message in [(("--arch", "test_vit"), "--arch goes with --img"), ((), "no checkpoint was given")]:
        failed = cli("inspect", *words)
        assert (failed.returncode, message in failed.stderr) == (2, True), failed.stderr


@pytest.mark.parametrize("name", ["", " ", "pos_embed.", "数"])
def test_a_tensor_of_an_odd_name_is_any_other(name: str, tmp_path: Path) -> None:
    odd = np.arange(3, dtype=np.int64)
    source = save(tmp_path / "in.safetensors", {**vit(), name: odd})
    pi.resize(source, 384, tmp_path / "out.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "out.safetensors")[name], odd)


# ------------------------------------------------------------------ the parts

# Places of a 32×64 image for a kernel of 16 pixels, at every step from 16 down to 1.
STEPPED = [((32 - 16) // step + 1, (64 - 16) // step + 1) for step in range(16, 0, -1)]


@pytest.mark.parametrize(
    ("side", "image", "stage", "wanted"),
    [
        (Side(), (224, 320), 0, (14, 20)),
        (Side(), (230, 320), 0, (14, 20)),  # a rest is let go, as timm does
        (Side(4), (112, 112), 3, (4, 4)),  # 28, 14, 7, and 3.5 rounded up
        (Side(4, before=True), (112, 112), 3, (7, 7)),
        (Side(16, scale=(224, 240)), (240, 480), 0, (14, 28)),
        (Side(16, shorter=True), (224, 320), 1, (7, 7)),
        (Side(), (8, 224), 0, None),
    ],
)
def test_places_of_an_image(side: Side, image: tuple[int, int], stage: int, wanted: Any) -> None:
    found = side.places(image, Cut((16, 16)), stage)
    assert (found and tuple(found.values())) == wanted


@pytest.mark.parametrize(
    ("patch", "arguments", "image", "wanted"),
    [
        (Patch("kernel", overlap=True), {}, (224, 320), [(27, 39)]),
        (Patch("kernel", steps=("up", "along")), {"up": 10, "along": 8}, (128, 1024), [(12, 127)]),
        (Patch("kernel", steps=("up", "along")), {}, (32, 64), [(n, m) for n, m in STEPPED]),
        (Patch(kernel=None, pixels="row"), {}, (224, 320), [(14, 20)]),
    ],
)
def test_cuts_of_an_image(patch: Patch, arguments: Any, image: tuple[int, int], wanted: Any) -> None:
    tensors = {"kernel": np.empty((8, 3, 16, 16)), "row": np.empty(16 * 16 * 3)}
    found = [Side().places(image, cut) for cut in patch.cuts(tensors, arguments)]
    assert [tuple(grid.values()) for grid in found if grid] == wanted


def test_cuts_of_a_volume() -> None:
    row = {"row": np.empty(2 * 16 * 16 * 3)}
    cuts = Patch(kernel=None, pixels="row", volume=True).cuts(row)
    found = [(cut.stride[0], cut.frames) for cut in cuts]
    assert found[:5] == [(16, 2), (8, 8), (4, 32), (2, 128), (1, 512)]  # of three channels
    assert found[5:10] == [(16, 6), (8, 24), (4, 96), (2, 384), (1, 1536)]  # of one
    assert found[10:] == [(8, 6), (4, 24), (2, 96), (1, 384)]  # of four
    kernel = {"kernel": np.empty((8, 3, 2, 14, 16))}
    assert Patch("kernel").cuts(kernel) == [Cut((14, 16), frames=2)]


def test_a_scaled_branch_must_have_whole_places() -> None:
    side = Side(16, scale=(224, 240))
    assert side.whole((240, 480), Cut((12, 12)))
    assert not side.whole((288, 240), Cut((12, 12)))


def test_the_number_of_a_stage() -> None:
    rule = Rule("stages.#.blocks.*.bias", Layout("c (h w)"))
    assert matches(rule.match, "stages.3.blocks.12.bias")
    assert rule.stage("stages.3.blocks.12.bias") == 3
    assert not matches(rule.match, "stages.x.blocks.1.bias")
    assert Rule("stages.*.bias", Layout("c (h w)")).stage("stages.3.bias") == 0


def test_a_patch_that_overlaps_is_not_resizable() -> None:
    assert Patch().resizable
    assert not Patch(overlap=True).resizable
    assert not Patch(stem=4).resizable
    assert not Patch(kernel=None).resizable


@pytest.mark.parametrize("shape", [(1, 65, 8), (1, 196, 8), (1, 4, 16, 8)])
def test_every_grid_that_a_shape_allows(shape: tuple[int, ...]) -> None:
    rule = rule_of("x = 1 (p h w) c" if len(shape) == 3 else "x = 1 (u v) (h w) c")
    found = [(grid["h"], extra) for grid, extra in rule.squares(shape)]
    if len(shape) == 4:
        assert found == [(8, 0)]
    else:
        assert found == [(g, shape[1] - g * g) for g in range(1, math.isqrt(shape[1]) + 1)]


def test_no_family_is_decided_by_code() -> None:
    """Names of architectures stand in families/ and nowhere else."""
    package = Path(pi.__file__).parent
    names = {family.name for family in FAMILIES if len(family.name) > 4} - {"resnet", "regnet", "dinov2"}
    for path in package.rglob("*.py"):
        if "families" in path.parts:
            continue
        said = [name for name in names if f'"{name}"' in path.read_text()]
        assert not said, (path.name, said)
