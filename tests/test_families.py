"""Every family against its oracle: what the home library itself makes of the same weights at the new size.

Where the home library cannot, a short torch reference of our own, which takes the geometry from the home library's
modules (tests/test_geometry.py holds the relative tables against what those modules compute).
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
from timm.layers import resize_rel_pos_bias_table, resize_rel_pos_bias_table_levit
from timm.models.nest import blockify, deblockify
from timm.models.vision_transformer import checkpoint_filter_fn

import posinterp as pi
import posinterp.torch  # timm knows the PEG names from here on
from posinterp.families import FAMILIES, family_named
from posinterp.models import find_models
from posinterp.planning import Wish, model_edits, plan
from posinterp.rules import Family
from posinterp.verification import verify

TIMM = [family for family in FAMILIES if family.home == "timm"]
FOLLOWING = [family for family in TIMM if family.rules]
STAYING = [family for family in TIMM if not family.rules and not family.refuses]
REFUSED = [family for family in TIMM if family.refuses]
RUNTIME = ("sam-base", "sam-large", "sam-huge", "clip-resnet")  # timm resizes these in forward, and nowhere else


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(family: Family, size: tuple[int, int] | None = None, **overlay: Any) -> Any:
    """The family's example, at its own size or another."""
    args = {**family.example, **({"img_size": size} if size and family.takes_img_size else {}), **overlay}
    name = args.pop("name")
    return timm.create_model(name, **args).eval()


def native(model: Any) -> tuple[int, int]:
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return tuple(size) if isinstance(size, (tuple, list)) else tuple(model.pretrained_cfg["input_size"][1:])


def randomised(model: Any) -> Any:
    """Values that no symmetry hides, in every tensor that has positions or was born zero."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point() or "running" in name:
                continue
            if any(word in name for word in ("pos", "token", "gamma", "_biases", "bias_table", "_rel")):
                value.copy_(torch.randn(value.shape) * 0.5)
            elif name.endswith("weight") and not value.any():  # a zero branch would be blind to its positions
                value.fill_(0.5)
    return model


def source(tmp_path: Path, family: Family, model: Any) -> Path:
    """The model as a folder that timm would have saved."""
    size = native(model)
    args = {k: v for k, v in family.example.items() if k not in ("name", "num_classes")}
    config = {
        "architecture": family.example["name"],
        "num_classes": model.num_classes,
        "model_args": args | ({"img_size": size} if family.takes_img_size else {}),
        "pretrained_cfg": {"input_size": [3, *size], "num_classes": model.num_classes},
    }
    folder = tmp_path / "src"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def targets(family: Family, model: Any) -> list[tuple[int, int]]:
    """Larger, smaller, not square: as far as the model divides its image."""
    step = family.unit or family.patch.cuts(model.state_dict())[0].stride[0]
    step = step if step > 8 else 32
    side = native(model)[0] // step
    less = max(side - 3, 1) if family.name not in ("maxvit-tf", "maxvit") else 5
    sizes = [(side + 3, side + 3), (less, less)]
    if not family.square:
        sizes.append((side + 2, max(side - 2, 1)))
    return [(n * step, m * step) for n, m in sizes if (n, m) != (side, side)]


# ------------------------------------------------------------------ what timm makes of it


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


# ------------------------------------------------------------------ where timm cannot


def bicubic(field: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    """(h, w, c) -> (*sides, c)."""
    image = field.double().permute(2, 0, 1)[None]
    return F.interpolate(image, sides, mode="bicubic", antialias=True)[0].permute(1, 2, 0)


def rows(value: torch.Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int = 0) -> torch.Tensor:
    """(..., prefix + h·w, c), as `flatten(2).transpose(1, 2)` of a map leaves it."""
    grid = bicubic(value[..., prefix:, :].reshape(*old, -1), new).flatten(0, 1)
    return torch.cat([value[..., :prefix, :], grid.reshape(*value.shape[:-2], -1, value.shape[-1])], -2)


def map_of(model: Any) -> tuple[int, int]:
    return tuple(model.patch_embed.grid_size)


def of_rows(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    return rows(value, map_of(old), map_of(new))


def of_hiera(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    return rows(value, tuple(old.tokens_spatial_shape), tuple(new.tokens_spatial_shape))


def of_crossvit(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    branch = int(name[-1])

    def grid(model: Any) -> tuple[int, int]:
        cut = model.patch_embed[branch]
        return cut.img_size[0] // cut.patch_size[0], cut.img_size[1] // cut.patch_size[1]

    return rows(value, grid(old), grid(new), prefix=1)


def of_channels_first(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    sides = getattr(new, name).shape[-2:]
    return F.interpolate(value.double(), tuple(sides), mode="bicubic", antialias=True)


def of_channels_last(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    return bicubic(value[0], tuple(new.pos_embed.shape[1:3]))[None]


def of_nest(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    level = int(name.split(".")[1])
    whole = deblockify(value, old.levels[level].block_size)[0]
    block = new.levels[level].block_size
    side = whole.shape[0] // old.levels[level].block_size * block
    return blockify(bicubic(whole, (side, side))[None], block)


def of_gcvit(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    window = new.get_submodule(name.removesuffix(".relative_position_bias_table")).window_size
    shape = ((2 * window[0] - 1) * (2 * window[1] - 1), value.shape[1])
    return resize_rel_pos_bias_table(value, window, shape)


def of_distances(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    """What timm has for TinyViT's tables and does not use for these, of any aspect."""
    before, after = (one.get_submodule(name.removesuffix(".attention_biases")).resolution for one in (old, new))
    found = bicubic(value.reshape(-1, *before).permute(1, 2, 0), after).permute(2, 0, 1).flatten(1)
    if before[0] == before[1] and after[0] == after[1]:
        timms = resize_rel_pos_bias_table_levit(value.T, found.T.shape).T
        torch.testing.assert_close(found.float(), timms, rtol=0, atol=1e-5)
    return found


def of_line(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    length = new.get_parameter(name).shape[0]
    return F.interpolate(value.double().T[None], length, mode="linear")[0].T


def of_lambda(name: str, value: torch.Tensor, old: Any, new: Any) -> torch.Tensor:
    return bicubic(value, tuple(new.get_parameter(name).shape[:2]))


REFERENCES: dict[str, Callable[[str, torch.Tensor, Any, Any], torch.Tensor]] = {
    "cait": of_rows,
    "convit": of_rows,
    "hiera": of_hiera,
    "crossvit-240": of_crossvit,
    "crossvit-408": of_crossvit,
    "pit": of_channels_first,
    "visformer": of_channels_first,
    "volo": of_channels_last,
    "nest": of_nest,
    "gcvit": of_gcvit,
    "levit": of_distances,
    "efficientformer-v2": of_distances,
    "botnet": of_line,
    "halobotnet": of_line,
    "lambda-resnet": of_lambda,
}


def referred(
    family: Family, folder: Path, model: Any, size: tuple[int, int], changed: set[str]
) -> dict[str, torch.Tensor]:
    if family.name not in REFERENCES:
        return timm_loads(family, folder, model, size)
    new, state = build(family, size), model.state_dict()
    assert changed >= {name for name, value in new.state_dict().items() if value.shape != state[name].shape}
    return {
        name: REFERENCES[family.name](name, value, model, new).to(value.dtype) if name in changed else value
        for name, value in state.items()
    }


def test_every_family_that_timm_cannot_convert_has_a_reference() -> None:
    assert {family.name for family in FOLLOWING if family.home_does.startswith("cannot")} == set(REFERENCES)


@pytest.mark.parametrize("family", FOLLOWING, ids=lambda family: family.name)
def test_equals_the_home_library(family: Family, tmp_path: Path) -> None:
    model = randomised(build(family))
    folder = source(tmp_path, family, model)
    windowed = all(rule.window for rule in family.rules)
    for size in targets(family, model):
        out = tmp_path / f"{size[0]}x{size[1]}"
        made = pi.resize(folder, size, out)
        assert made.family.name == family.name
        ours = {name: torch.from_numpy(value) for name, value in load(out).items()}
        assert made.edits or windowed
        loaded = load_folder(family, out, size)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, ours[name]), f"{name} changed while loading"
        image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(3))
        with torch.inference_mode():
            result = loaded(image)
            assert torch.as_tensor(result[0] if isinstance(result, tuple) else result).isfinite().all()
            if family.name in RUNTIME:
                torch.testing.assert_close(result, model(image), rtol=1e-4, atol=1e-5)
                continue
        for name, value in referred(family, folder, model, size, {edit.name for edit in made.edits}).items():
            scale = float(value.abs().max()) if value.is_floating_point() and value.numel() else 1.0
            scale *= max(1.0, max(value.shape, default=0) / 64) if family.name == "mvitv2" else 1.0  # float32 places
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


# What verify does for these it does for one that is quicker: crossvit-240, sam-large, peg-vit, and those without a PEG.
SLOW = ("crossvit-408", "sam-huge", "peg-hybrid-resnetv2", "peg-hybrid-resnet", "peg-hybrid-stem", "peg-radio")


@pytest.mark.parametrize("family", [one for one in FOLLOWING if one.name not in SLOW], ids=lambda family: family.name)
def test_verify_says_so(family: Family, tmp_path: Path) -> None:
    model = randomised(build(family))
    folder = source(tmp_path, family, model)
    size = targets(family, model)[-1]
    pi.resize(folder, size, tmp_path / "out")
    verdict = verify(tmp_path / "out", against=folder)
    assert verdict.ok, verdict.checks


@pytest.mark.parametrize("family", STAYING, ids=lambda family: family.name)
def test_what_does_not_follow_the_size_is_left_alone(family: Family) -> None:
    """timm's own shapes at another size, where its constructor takes one, are those of the source."""
    with torch.device("meta"):
        model = build(family)
    shapes = model.state_dict()
    (found,) = find_models(
        shapes, architecture=str(family.example["name"]), claims=[("config", pi.Size(native(model)))]
    )
    assert (found.family.name, dict(found.ruled)) == (family.name, {})
    for size in targets(family, model):
        assert model_edits(found, pi.Size(size), Wish()) == []
        with torch.device("meta"):
            other = build(family, size).state_dict()
        assert {name: value.shape for name, value in other.items()} == {n: v.shape for n, v in shapes.items()}


@pytest.mark.parametrize("name", ["twins", "xcit", "swinv2", "convnext", "naflexvit"])
def test_a_copy_says_the_new_size(name: str, tmp_path: Path) -> None:
    (family,) = family_named(name)
    model = build(family)
    folder = source(tmp_path, family, model)
    size = targets(family, model)[0]
    made = pi.resize(folder, size, tmp_path / "out")
    assert not made.edits
    loaded = load_folder(family, tmp_path / "out", size)
    assert tuple(loaded.pretrained_cfg["input_size"][-2:]) == size
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
    with torch.inference_mode():
        assert loaded(torch.zeros(1, 3, *size)).isfinite().all()
    assert verify(tmp_path / "out", against=folder).ok


@pytest.mark.parametrize(("pool", "wanted"), [([7, 7], [10, 12]), ([6, 6], [6, 6]), (None, None)])
def test_the_last_maps_size_follows_in_the_config(pool: Any, wanted: Any, tmp_path: Path) -> None:
    tensors = {f"{place}.weight": np.ones((2, 2, 1, 1), np.float32) for place in ("conv1", "bn1", "layer4.0.conv1")}
    config = {"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 224, 224], "pool_size": pool}}
    pi.resize(save(tmp_path / "in", tensors, config), (320, 384), tmp_path / "out")
    out = json.loads((tmp_path / "out" / "config.json").read_text())["pretrained_cfg"]
    assert (out["input_size"], out.get("pool_size")) == ([3, 320, 384], wanted)


@pytest.mark.parametrize("family", REFUSED, ids=lambda family: family.name)
def test_what_has_one_size_only_is_refused_by_name(family: Family) -> None:
    with torch.device("meta"):
        model = build(family)
    (found,) = find_models(model.state_dict(), claims=[("config", pi.Size(native(model)))])
    with pytest.raises(pi.PosinterpError, match=f"{family.name}: ") as caught:
        model_edits(found, pi.Size((288, 288)), Wish())
    assert caught.value.kind == "unsupported"
    assert model_edits(found, found.src_img, Wish()) == []


@pytest.mark.parametrize("family", [f for f in TIMM if f.unnamed is not None], ids=lambda family: family.name)
def test_known_without_a_config(family: Family) -> None:
    with torch.device("meta"):
        model = build(family)
    (found,) = find_models(model.state_dict(), src_img=pi.Size(native(model)))
    assert found.family.name == family.name
    if found.ruled and family.name != "sam-base":
        (proven,) = find_models(model.state_dict())
        assert dict(proven.extra) == dict(found.extra)
        assert proven.places == found.places
        assert proven.src_img in (found.src_img, None)


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
