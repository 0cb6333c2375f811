"""Windows: kept, scaled or named; what becomes of tables, config and the model that timm builds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from conftest import load, save, swin
from safetensors.torch import save_file

import posinterp as pi
from posinterp.models import find_models
from posinterp.planning import plan
from posinterp.torch import load_resized
from posinterp.verification import verify

SWIN = "swin_tiny_patch4_window7_224"
SHALLOW: dict[str, Any] = {"depths": (1, 1, 1, 1), "num_classes": 3}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def saved(path: Path, name: str, size: tuple[int, int] | None = None, **args: Any) -> Path:
    """A model as timm saves it, with tables that no symmetry hides."""
    torch.manual_seed(1)
    more = {"img_size": size} if size else {}
    model = timm.create_model(name, **SHALLOW, **args, **more)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if "bias_table" in key or "biases" in key:
                value.copy_(torch.randn(value.shape))
            elif key.endswith("weight") and not value.any():
                value.fill_(0.5)
    size = size or tuple(model.pretrained_cfg["input_size"][1:])
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architecture": name,
        "num_classes": 3,
        "model_args": {**SHALLOW, **args, **more},
        "pretrained_cfg": {"input_size": [3, *size], "num_classes": 3},
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def windows(folder: Path) -> list[int]:
    """Rows of each stage's table."""
    tables = load(folder)
    return [tables[f"layers.{stage}.blocks.0.attn.relative_position_bias_table"].shape[0] for stage in range(4)]


def rows(*sides: int | tuple[int, int]) -> list[int]:
    both = [(side, side) if isinstance(side, int) else side for side in sides]
    return [(2 * h - 1) * (2 * w - 1) for h, w in both]


@pytest.mark.parametrize(
    ("img", "window", "wanted", "said"),
    [
        (384, "keep", (7, 7, 7, 7), None),
        (384, "scale", (12, 12, 12, 12), 12),
        (256, 8, (8, 8, 8, 8), 8),
        ((256, 384), "8x12", ((8, 12), (8, 12), (8, 12), (8, 12)), [8, 12]),
        ((256, 384), "8,12", ((8, 12), (8, 12), (8, 12), (8, 12)), [8, 12]),  # two numbers are (height, width) in timm
        (256, "8,8,16,8", (8, 8, 16, 8), [8, 8, 16, 8]),
        (112, "keep", (7, 7, 7, 4), None),
        ((112, 448), "keep", (7, 7, 7, (4, 7)), None),
        (112, 8, (8, 8, 7, 4), 8),
    ],
)
def test_swin(img: Any, window: Any, wanted: Any, said: Any, tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN)
    made = pi.resize(source, img, tmp_path / "out", window=window)
    assert windows(tmp_path / "out") == rows(*wanted)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_args"].get("window_size") == said
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    for name, value in load(tmp_path / "out").items():
        assert torch.equal(loaded.state_dict()[name], torch.from_numpy(value))
    assert verify(tmp_path / "out", against=source).ok
    assert bool(made.edits) == (windows(source) != windows(tmp_path / "out"))


@pytest.mark.parametrize("window", [12, (8, 10)])
def test_equals_timms_set_input_size(window: Any, tmp_path: Path) -> None:
    img = (384, 384) if window == 12 else (256, 320)
    source = saved(tmp_path / "swin", SWIN)
    model = timm.create_model(f"local-dir:{source}", pretrained=True)
    model.set_input_size(img_size=img, window_size=window)
    pi.resize(source, img, tmp_path / "out", window=window)
    for name, value in load(tmp_path / "out").items():
        torch.testing.assert_close(torch.from_numpy(value), model.state_dict()[name], rtol=0, atol=2e-5)


def test_a_window_that_a_small_map_hid_comes_back(tmp_path: Path) -> None:
    """At 112 the last stage shows 4 of its 7; what timm builds at 224 again is 7."""
    source = saved(tmp_path / "swin", SWIN)
    pi.resize(source, 112, tmp_path / "small")
    pi.resize(tmp_path / "small", 224, tmp_path / "again")
    assert windows(tmp_path / "again") == rows(7, 7, 7, 7)


def test_published_windows_differ_from_stage_to_stage(tmp_path: Path) -> None:
    source = saved(tmp_path / "s3", "swin_s3_tiny_224")
    pi.resize(source, 112, tmp_path / "small")
    assert windows(tmp_path / "small") == rows(7, 7, 7, 4)
    pi.resize(tmp_path / "small", 224, tmp_path / "again")
    assert windows(tmp_path / "again") == rows(7, 7, 14, 7)


@pytest.mark.parametrize("config", [True, False])
def test_a_source_whose_windows_are_not_square(config: bool, tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN, (256, 384), window_size=(8, 12))
    if not config:
        (source / "config.json").unlink()
    made = plan(source, (384, 576), src_img=None if config else (256, 384), window="12x18")
    assert {tuple(edit.before.values()) for edit in made.edits} == {(15, 23)}
    assert {tuple(edit.after.values()) for edit in made.edits} == {(23, 35)}


def test_a_window_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN, (256, 384), window_size=(8, 12))
    with pytest.raises(pi.PosinterpError, match="345×3 is no square window's") as caught:
        plan(shutil.copy(source / "model.safetensors", tmp_path / "bare.safetensors"), 512)
    assert "--src-img" in str(caught.value.hint)
    (source / "config.json").write_text(
        (source / "config.json").read_text().replace('"window_size": [8, 12]', '"window_size": [8, 16]')
    )
    with pytest.raises(pi.PosinterpError, match="disagrees|says 256x384"):
        plan(source, (384, 576))


def test_swinv2_keeps_the_window_that_it_was_trained_with(tmp_path: Path) -> None:
    source = saved(tmp_path / "v2", "swinv2_tiny_window8_256")
    made = pi.resize(source, 384, tmp_path / "out", window="scale")
    assert not made.edits
    args = json.loads((tmp_path / "out" / "config.json").read_text())["model_args"]
    assert (args["window_size"], args["pretrained_window_sizes"]) == (12, [8, 8, 8, 8])
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    block = loaded.layers[0].blocks[0]
    assert (block.attn.window_size, block.attn.pretrained_window_size) == ((12, 12), (8, 8))


def test_tiny_vit(tmp_path: Path) -> None:
    source = saved(tmp_path / "tiny", "tiny_vit_5m_224")
    pi.resize(source, 384, tmp_path / "same")
    pi.resize(source, 384, tmp_path / "scaled", window="scale")
    sizes = [load(tmp_path / out)["stages.2.blocks.0.attn.attention_biases"].shape[1] for out in ("same", "scaled")]
    assert sizes == [14 * 14, 24 * 24]
    args = json.loads((tmp_path / "scaled" / "config.json").read_text())["model_args"]
    assert args["window_sizes"] == [12, 12, 24, 12]
    assert "img_size" not in args  # its constructor has none
    for out in ("same", "scaled"):
        assert timm.create_model(f"local-dir:{tmp_path / out}", pretrained=True)
        assert verify(tmp_path / out, against=source).ok


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("seven", "'seven' is no window"),
        ("8,8,8", "3 windows for 4 stages"),
        ("0", "'0' is no window"),
        ("8x", "'8x' is no window"),
    ],
)
def test_what_is_no_window(window: str, message: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN)
    with pytest.raises(pi.PosinterpError, match=message):
        plan(source, (256, 256), window=window)


def test_scaling_must_give_whole_windows(tmp_path: Path) -> None:
    with pytest.raises(pi.PosinterpError, match="a window of 7 at 224 is no whole window at 300"):
        plan(saved(tmp_path / "swin", SWIN), 300, window="scale")


def test_a_model_without_windows_says_so(tmp_path: Path) -> None:
    model = timm.create_model("test_vit")
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(pi.PosinterpError, match="vit has no windows: leave --window out"):
        plan(tmp_path / "vit.safetensors", 320, window=8)


@pytest.mark.parametrize("stale", ["relative_position_index", "attn_mask"])
def test_what_timm_computes_is_dropped(stale: str, tmp_path: Path) -> None:
    model = timm.create_model(SWIN, **SHALLOW)
    tensors = {**model.state_dict(), f"layers.0.blocks.0.attn.{stale}": torch.zeros(49, 49)}
    save_file(tensors, tmp_path / "swin.safetensors")
    made = pi.resize(tmp_path / "swin.safetensors", 384, tmp_path / "out.safetensors")
    assert made.drop == (f"layers.0.blocks.0.attn.{stale}",)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in load(tmp_path / "out.safetensors").items()}, strict=True)


def test_a_model_in_memory_says_its_windows(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN)
    model = timm.create_model(SWIN, **SHALLOW, img_size=384, window_size=12)
    assert len(load_resized(model, source)) == 4
    pi.resize(source, 384, tmp_path / "out", window=12)
    for name, value in load(tmp_path / "out").items():
        torch.testing.assert_close(model.state_dict()[name], torch.from_numpy(value), rtol=0, atol=1e-7)
    adapted = pi.adapt(timm.create_model(SWIN, **SHALLOW).state_dict(), like=model.state_dict())
    assert adapted["layers.0.blocks.0.attn.relative_position_bias_table"].shape[0] == 23 * 23


def test_a_window_beyond_every_map_is_a_slip(cli: Any, tmp_path: Path) -> None:
    save(tmp_path / "swin.safetensors", swin())
    done = cli("resize", "swin.safetensors", "--img", 384, "--window", "97")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "error: a window of 97×97 is larger than every map of an image of 384",
            "hint: its first map is 96×96",
        ],
    )
    said = cli("resize", "swin.safetensors", "--img", 384, "--window", "12,12,24,12").stdout
    assert "build the model with window_size=[12, 12, 24, 12]" in said  # there is no config that would say it
    said = cli("resize", "swin.safetensors", "--img", 384, "--window", "96", "--dry-run").stdout
    assert "build the model with window_size=96" in said


def test_a_window_that_has_as_many_offsets_as_a_square(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN)
    model = timm.create_model(SWIN, **SHALLOW)
    model.set_input_size((320, 832), window_size=[5, 13])
    load_resized(model, source)
    pi.resize(source, (320, 832), tmp_path / "out", window=[5, 13])
    for name, value in load(tmp_path / "out").items():
        torch.testing.assert_close(model.state_dict()[name], torch.from_numpy(value), rtol=0, atol=1e-6)


def test_a_window_that_every_map_hid_is_its_names(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", "swin_base_patch4_window12_384", (32, 32))
    pi.resize(source, 64, tmp_path / "out")
    assert windows(tmp_path / "out") == rows(12, 8, 4, 2)
    assert verify(tmp_path / "out", against=source).ok


def test_windows_may_be_larger_than_maps_where_the_model_says_so(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN, always_partition=True)
    pi.resize(source, 112, tmp_path / "out")
    assert windows(tmp_path / "out") == rows(7, 7, 7, 7)
    assert verify(tmp_path / "out", against=source).ok


@pytest.mark.parametrize("spoil", [{"pretrained_window_sizes": None}, {"window_size": 6}])
def test_swinv2s_config_is_verified(spoil: dict[str, Any], tmp_path: Path) -> None:
    source = saved(tmp_path / "v2", "swinv2_tiny_window8_256")
    pi.resize(source, 384, tmp_path / "out", window=12)
    assert verify(tmp_path / "out", against=source).ok
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["model_args"] = {k: v for k, v in {**config["model_args"], **spoil}.items() if v is not None}
    path.write_text(json.dumps(config))
    failed = [check.name for check in verify(tmp_path / "out", against=source).checks if check.status == "fail"]
    assert "config" in failed


def test_a_constructor_of_one_side_gets_no_two(tmp_path: Path) -> None:
    source = saved(tmp_path / "tiny", "tiny_vit_5m_224")
    for img, window in (((256, 384), "scale"), ((256, 384), "8x12")):
        with pytest.raises(pi.PosinterpError, match="tiny-vit takes square windows only"):
            plan(source, img, window=window)


def test_a_bare_output_says_its_windows_itself(tmp_path: Path) -> None:
    source = shutil.copy(saved(tmp_path / "swin", SWIN) / "model.safetensors", tmp_path / "bare.safetensors")
    pi.resize(source, 384, tmp_path / "out.safetensors", src_img=224, window="12,12,24,12")
    assert verify(tmp_path / "out.safetensors", against=source, src_img=224).ok
    again = plan(tmp_path / "out.safetensors", 512)
    assert [tuple(grid.values()) for grid in again.windows.values()] == [(12, 12), (12, 12), (24, 24), (12, 12)]


def test_a_table_of_one_place_grows_into_a_constant_one(tmp_path: Path) -> None:
    source = saved(tmp_path / "swin", SWIN, (32, 32))
    pi.resize(source, 64, tmp_path / "out")
    assert verify(tmp_path / "out", against=source).ok


def test_a_gcvit_of_other_windows_is_refused(tmp_path: Path) -> None:
    config = {"architecture": "gcvit_xxtiny", "model_args": {"window_size": [7, 7, 14, 7]}}
    model = timm.create_model("gcvit_xxtiny")
    (tmp_path / "in").mkdir()
    save_file(model.state_dict(), tmp_path / "in" / "model.safetensors")
    config["pretrained_cfg"] = {"input_size": [3, 224, 224]}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    with pytest.raises(pi.PosinterpError, match="built with window_size"):
        plan(tmp_path / "in", 448)


@pytest.mark.parametrize(
    ("name", "size", "given", "wanted"),
    [
        ("efficientvit_m0", (224, 224), None, [7, 7, 7]),  # at 224 its last stage shows 4
        (SWIN, (112, 112), None, [7, 7, 7, 7]),
        (SWIN, (384, 384), [12, 12, 24, 12], [12, 12, 24, 12]),  # no map hides a window of an earlier stage
    ],
)
def test_windows_of_a_bare_file(name: str, size: tuple[int, int], given: Any, wanted: list[int]) -> None:
    args = {"window_size": given} if given else {}
    more = {} if name.startswith("eff") else SHALLOW
    state = timm.create_model(name, img_size=size, **args, **more).state_dict()
    (found,) = find_models(state)
    assert [grid["h"] for grid in found.windows.values()] == wanted
