"""What people have reported of other tools, as inputs with the right answer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import load, save, table, timm_config, vit

import posinterp as pi
from posinterp.models import find_models
from posinterp.torch import load_resized


def resized(tmp_path: Path, tensors: dict[str, np.ndarray], img: Any, **wishes: Any) -> dict[str, np.ndarray]:
    config = wishes.pop("config", None)
    path = save(tmp_path / ("in" if config else "in.safetensors"), tensors, config)
    pi.resize(path, img, tmp_path / "out.safetensors", **wishes)
    out = load(tmp_path / "out.safetensors")
    for name in tensors:
        if name not in ("pos_embed", "patch_embed.proj.weight"):
            np.testing.assert_array_equal(out[name], tensors[name])
    return out


def ramp(grid: tuple[int, int], prefix: int) -> np.ndarray:
    """Row k of the grid is k / N in every channel; special rows are -1, -2, ..., so that any mixing shows."""
    count = grid[0] * grid[1]
    rows = [-1.0 - k for k in range(prefix)] + [k / count for k in range(count)]
    return np.repeat(np.array(rows, np.float32)[None, :, None], 8, axis=2)


# ------------------------------------------------------------------ grids that are not square


@pytest.mark.parametrize("where", ["flag", "config"])
def test_a_4x16_table_is_not_an_8x8_one(where: str, tmp_path: Path) -> None:
    tensors = vit((4, 16)) | {"pos_embed": ramp((4, 16), 1)}
    config = timm_config("vit_tiny_patch16_224", (64, 256)) if where == "config" else None
    source = {} if config else {"src_img": (64, 256)}
    out = resized(tmp_path, tensors, 128, config=config, **source)["pos_embed"]
    assert out.shape == tensors["pos_embed"].shape  # the same shape, and not the same table
    assert (out[0, 0] == -1).all()
    grid = out[0, 1:, 0].reshape(8, 8)
    np.testing.assert_allclose(
        [grid[0, 0], grid[1, 2], grid[4, 4], grid[-1, -1]], [-0.013560, 0.112283, 0.570312, 0.997935], atol=2e-5
    )


def test_the_same_grid_is_the_same_bytes(tmp_path: Path) -> None:
    tensors = vit((4, 16))
    out = resized(tmp_path, tensors, (64, 256), src_img="64x256")
    np.testing.assert_array_equal(out["pos_embed"], tensors["pos_embed"])


def test_a_wide_source_shrinks_along_its_width(tmp_path: Path) -> None:
    out = resized(tmp_path, vit((8, 64)), (128, 512), src_img=(128, 1024))
    assert out["pos_embed"].shape == (1, 257, 8)


def test_source_256x128_without_a_config_is_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit((16, 8)))
    with pytest.raises(pi.PosinterpError, match="holds no square grid beside 0 or 1 prefix rows") as caught:
        pi.plan(path, (384, 128))
    assert caught.value.kind == "ambiguous_grid"
    assert pi.plan(path, (384, 128), src_img=(256, 128)).edits[0].new_shape == (1, 193, 8)


def test_rows_and_columns_keep_their_places(tmp_path: Path) -> None:
    rows, columns = np.meshgrid(np.arange(14.0), np.arange(14.0), indexing="ij")
    tensors = vit()
    tensors["pos_embed"][0, 1:, 0], tensors["pos_embed"][0, 1:, 1] = rows.ravel(), columns.ravel()
    grid = resized(tmp_path, tensors, (384, 512))["pos_embed"][0, 1:].reshape(24, 32, 8)
    assert np.ptp(grid[..., 0], axis=1).max() < 1e-5
    assert np.ptp(grid[..., 1], axis=0).max() < 1e-5
    np.testing.assert_allclose(grid[12, 16, :2], (6.791667, 6.718750), atol=2e-5)


def test_tall_and_wide_are_transposes(tmp_path: Path) -> None:
    tensors = vit()
    grid = tensors["pos_embed"][0, 1:].reshape(14, 14, 8)
    tensors["pos_embed"][0, 1:] = (grid + grid.transpose(1, 0, 2)).reshape(196, 8)
    tall = resized(tmp_path, tensors, (448, 224))["pos_embed"][0, 1:].reshape(28, 14, 8)
    (tmp_path / "out.safetensors").unlink()
    wide = resized(tmp_path, tensors, (224, 448))["pos_embed"][0, 1:].reshape(14, 28, 8)
    np.testing.assert_allclose(tall, wide.transpose(1, 0, 2), atol=1e-6)


def test_a_row_that_no_token_explains_needs_the_size(tmp_path: Path) -> None:
    """ViTPose: 16×12 places and one row, with no class token in the file."""
    tensors = vit((16, 12), prefix=1)
    del tensors["cls_token"]
    path = save(tmp_path / "in.safetensors", tensors)
    with pytest.raises(pi.PosinterpError, match="holds no square grid beside 0 prefix rows"):
        pi.plan(path, 224)
    made = pi.resize(path, 224, tmp_path / "out.safetensors", src_img=(256, 192))
    assert made.notes == ("pos_embed has 1 prefix row that no token in the file explains; kept",)
    out = load(tmp_path / "out.safetensors")["pos_embed"]
    assert out.shape == (1, 197, 8)
    np.testing.assert_array_equal(out[0, 0], tensors["pos_embed"][0, 0])


# ------------------------------------------------------------------ special tokens


def test_distilled_at_512x608_keeps_two_rows(tmp_path: Path) -> None:
    tensors = vit((24, 24), prefix=2, cls_token=1, dist_token=1)
    out = resized(tmp_path, tensors, (512, 608))["pos_embed"]
    assert out.shape == (1, 32 * 38 + 2, 8)
    np.testing.assert_array_equal(out[0, :2], tensors["pos_embed"][0, :2])


def test_a_class_token_without_a_row_gets_none(tmp_path: Path) -> None:
    assert resized(tmp_path, vit(prefix=0, cls_token=1), 384)["pos_embed"].shape == (1, 576, 8)


def test_a_classless_table_gets_no_class_row(tmp_path: Path) -> None:
    assert resized(tmp_path, vit((27, 27), patch=14, prefix=0), 756)["pos_embed"].shape == (1, 2916, 8)


def test_200_rows_are_never_guessed(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit() | {"pos_embed": table((14, 14), 8, 4)})
    with pytest.raises(pi.PosinterpError, match="1×200×8 holds no square grid beside 0 or 1 prefix rows"):
        pi.plan(path, 384)


def test_one_row_is_a_class_tokens_or_a_places(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit((1, 1), prefix=0, cls_token=1))
    with pytest.raises(pi.PosinterpError, match="holds no square grid"):
        pi.plan(path, 32)


@pytest.mark.parametrize("rows", [197, 577, 1370, 257, 1025])
def test_a_2x2_table_and_published_counts(rows: int, tmp_path: Path) -> None:
    side = int((rows - 1) ** 0.5)
    path = save(tmp_path / "in.safetensors", vit((side, side)))
    assert pi.plan(path, 32).edits[0].before == {"h": side, "w": side}


def test_a_2x2_table_grows(tmp_path: Path) -> None:
    assert resized(tmp_path, vit((2, 2)), 224)["pos_embed"].shape == (1, 197, 8)


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("asked", "near"), [("500", "490 and 504"), ("512", "504 and 518"), ("768", "756 and 770"), ("8", "14")]
)
def test_patch_14_sizes_get_advice(asked: str, near: str, tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit((16, 16), patch=14))
    with pytest.raises(pi.PosinterpError, match=f"{asked} is not a multiple of the patch size 14") as caught:
        pi.plan(path, asked)
    assert near in str(caught.value.hint)


def test_a_518_table_at_224(tmp_path: Path) -> None:
    tensors = vit((37, 37), patch=14)
    out = resized(tmp_path, tensors, 224)["pos_embed"]
    assert out.shape == (1, 257, 8)
    np.testing.assert_array_equal(out[0, 0], tensors["pos_embed"][0, 0])


def test_a_stale_config_is_said(tmp_path: Path) -> None:
    path = save(tmp_path / "in", vit((24, 24)), timm_config("vit_tiny_patch16_224", (224, 224)))
    with pytest.raises(pi.PosinterpError, match=r"says 224, a grid of 14×14; .* is for 384 \(24×24\)") as caught:
        pi.plan(path, 512)
    assert caught.value.hint == "--src-img 384 overrides that"
    assert pi.plan(path, 512, src_img=384).src_img == (384, 384)


def test_one_stale_field_of_two_does_no_harm(tmp_path: Path) -> None:
    config = timm_config("vit_tiny_patch16_224", (384, 384))
    config["pretrained_cfg"]["input_size"] = [3, 224, 224]
    made = pi.plan(save(tmp_path / "in", vit((24, 24)), config), 512)
    assert made.src_img == (384, 384)
    assert {edit.path: edit.after for edit in made.config} == {
        "model_args.img_size": 512,
        "pretrained_cfg.input_size": [3, 512, 512],
    }


def test_a_resized_file_says_its_own_size(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit())
    pi.resize(path, (256, 384), tmp_path / "wide.safetensors")
    made = pi.plan(tmp_path / "wide.safetensors", 512)
    assert (made.src_img, made.models[0].origin) == ((256, 384), "its recipe")


def test_widths_that_do_not_belong_together(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit() | {"pos_embed": table((14, 14), 6, 1)})
    with pytest.raises(pi.PosinterpError, match="pos_embed is 6 wide, cls_token of shape 1×1×8 is not"):
        pi.plan(path, 384)


def test_a_table_of_partitioned_training_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit() | {"pos_embed": np.zeros((1, 0, 8), np.float32)})
    with pytest.raises(pi.PosinterpError, match="has no elements: a shard of partitioned training"):
        pi.plan(path, 384)


# ------------------------------------------------------------------ patches


def test_patch_14_to_16_changes_kernel_and_table(tmp_path: Path) -> None:
    tensors = vit((37, 37), patch=14)
    out = resized(tmp_path, tensors, 512, patch=16)
    assert out["patch_embed.proj.weight"].shape == (8, 3, 16, 16)
    assert out["pos_embed"].shape == (1, 32 * 32 + 1, 8)


def test_a_resized_patch_gives_the_same_embedding() -> None:
    """Resizing images and kernel together by two changes nothing, up to what the resize can represent."""
    tensors = vit(patch=8)
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    larger = torch.nn.functional.interpolate(
        image.reshape(3 * 64, 1, 8, 8), scale_factor=2, mode="bicubic", antialias=True
    )
    kernel = torch.from_numpy(tensors["patch_embed.proj.weight"])
    new = pi.adapt(tensors, 448, patch=16, src_img=112)["patch_embed.proj.weight"]
    before = torch.einsum("nchw,ochw->no", image.reshape(64, 3, 8, 8), kernel)
    after = torch.einsum("nchw,ochw->no", larger.reshape(64, 3, 16, 16), torch.from_numpy(new))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)  # of values up to 40


# ------------------------------------------------------------------ containers


def as_torch(tensors: dict[str, np.ndarray], prefix: str = "") -> dict[str, torch.Tensor]:
    return {prefix + name: torch.from_numpy(value.copy()) for name, value in tensors.items()}


def test_teacher_and_student_are_both_resized(tmp_path: Path) -> None:
    one, two = vit(), vit() | {"pos_embed": table((14, 14), 8, 1, seed=5)}
    saved = {
        "teacher": as_torch(one, "module.backbone."),
        "student": as_torch(two, "module.backbone."),
        "epoch": 7,
        "args": argparse.Namespace(arch="vit_small", lr=1e-3),
    }
    torch.save(saved, tmp_path / "dino.pth")
    made = pi.resize(tmp_path / "dino.pth", 384, tmp_path / "out.pth")
    assert [model.root for model in made.models] == ["teacher/module.backbone.", "student/module.backbone."]
    with torch.serialization.safe_globals([argparse.Namespace]):
        out = torch.load(tmp_path / "out.pth", weights_only=True)
    assert (out["epoch"], out["args"].lr) == (7, 1e-3)
    for branch, tensors in (("teacher", one), ("student", two)):
        wanted = pi.adapt(tensors, 384)
        assert out[branch].keys() == saved[branch].keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(out[branch]["module.backbone." + name].numpy(), value)


def test_optimizer_moments_never_keep_the_old_shape(tmp_path: Path) -> None:
    optimizer = {"state": {0: {"exp_avg": torch.zeros(1, 197, 8)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    torch.save({"model": as_torch(vit()), "optimizer": optimizer}, tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 384, tmp_path / "out.pth")
    assert torch.load(tmp_path / "out.pth", weights_only=True).keys() == {"model", "posinterp"}


@pytest.mark.parametrize("key", ["model", "module", "state_dict", "model_ema", "state_dict_ema"])
def test_nested_weights_are_found(key: str, tmp_path: Path) -> None:
    torch.save({key: as_torch(vit((2, 2)), "backbone.")}, tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 224, tmp_path / "out.safetensors")
    assert load(tmp_path / "out.safetensors")["backbone.pos_embed"].shape == (1, 197, 8)


def test_arguments_in_the_file_are_data(tmp_path: Path) -> None:
    """MAE and DeiT files carry an argparse.Namespace, which torch refuses to read safely."""
    torch.save(
        {"model": as_torch(vit()), "args": argparse.Namespace(model="deit_tiny_patch16_224")}, tmp_path / "in.pth"
    )
    made = pi.plan(tmp_path / "in.pth", 384)
    assert made.source.architecture == "deit_tiny_patch16_224"


# ------------------------------------------------------------------ load paths


def test_every_way_in_gives_the_same_table(tmp_path: Path) -> None:
    """create_model(img_size=..., checkpoint_path=...) raises in timm; its pretrained path resamples. Here all ways agree."""
    source = timm.create_model("test_vit")
    torch.save(source.state_dict(), tmp_path / "in.pth")
    state = source.state_dict()
    pi.resize(tmp_path / "in.pth", 64, tmp_path / "file.safetensors")
    pi.resize(tmp_path / "in.pth", 64, tmp_path / "folder")
    model = timm.create_model("test_vit", img_size=64)
    load_resized(model, tmp_path / "in.pth")
    tables = [
        load(tmp_path / "file.safetensors")["pos_embed"],
        load(tmp_path / "folder")["pos_embed"],
        pi.adapt(state, 64)["pos_embed"].numpy(),
        pi.adapt(state, like=model.state_dict())["pos_embed"].numpy(),
        pi.adapt({name: value.numpy() for name, value in state.items()}, 64)["pos_embed"],
        model.pos_embed.detach().numpy(),
    ]
    for other in tables[1:]:
        np.testing.assert_array_equal(other, tables[0])
    source.set_input_size(img_size=64)
    np.testing.assert_allclose(tables[0], source.pos_embed.detach().numpy(), atol=1e-6)


def test_adapt_checks_what_it_made_against_the_model() -> None:
    source = timm.create_model("test_vit").state_dict()
    other = timm.create_model("vit_tiny_patch16_224", img_size=160, depth=1).state_dict()
    with pytest.raises(pi.PosinterpError, match="becomes"):
        pi.adapt(source, like=other)


def test_load_resized_leaves_nothing_random(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", img_size=64)
    state = timm.create_model("test_vit").state_dict()
    torch.save({name: value for name, value in state.items() if name != "norm.weight"}, tmp_path / "less.pth")
    with pytest.raises(pi.PosinterpError, match="the checkpoint lacks norm.weight"):
        load_resized(model, tmp_path / "less.pth")
    torch.save({**state, "extra.weight": torch.ones(1)}, tmp_path / "more.pth")
    with pytest.raises(pi.PosinterpError, match="has extra.weight, which the model lacks"):
        load_resized(model, tmp_path / "more.pth")


def test_load_resized_keeps_another_head(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "in.pth")
    model = timm.create_model("test_vit", img_size=64, num_classes=3)
    with pytest.raises(pi.PosinterpError, match=r"head.weight is \(1000, 64\) in the checkpoint and \(3, 64\)"):
        load_resized(model, tmp_path / "in.pth")
    head = model.head.weight.detach().clone()
    for skip in (["head.*"], "head.*"):
        assert load_resized(model, tmp_path / "in.pth", skip=skip) == ["pos_embed"]
        assert torch.equal(model.head.weight, head)
    state = torch.load(tmp_path / "in.pth")
    assert torch.equal(model.cls_token, state["cls_token"]) if "cls_token" in state else True
    with pytest.raises(pi.PosinterpError, match="skip='haed.*' names no parameter of the model"):
        load_resized(model, tmp_path / "in.pth", skip=["haed.*"])


def test_a_rotary_model_without_a_table_needs_nothing(tmp_path: Path) -> None:
    tensors = {k: v for k, v in vit().items() if k != "pos_embed"} | {"blocks.0.gamma_1": np.ones(8, np.float32)}
    config = timm_config("vit_small_patch16_dinov3", (256, 256))
    made = pi.resize(save(tmp_path / "in", tensors, config), 512, tmp_path / "out")
    assert (made.family.name, made.edits) == ("rope", ())
    assert [edit.path for edit in made.config] == ["model_args.img_size", "pretrained_cfg.input_size"]


def test_look_alikes_stay(tmp_path: Path) -> None:
    extra = {"sie_embed": table((160, 1), 8), "organ_embedding": np.ones((32, 8), np.float32)}
    out = resized(tmp_path, vit() | extra, 384)
    assert out["pos_embed"].shape == (1, 577, 8)


def test_a_half_precision_table_is_rounded_once(tmp_path: Path) -> None:
    tensors = {
        name: value.astype(np.float16) for name, value in (vit((24, 24)) | {"pos_embed": ramp((24, 24), 1)}).items()
    }
    out = resized(tmp_path, tensors, 560)["pos_embed"]
    exact = pi.adapt({name: value.astype(np.float64) for name, value in tensors.items()}, 560)["pos_embed"]
    np.testing.assert_array_equal(out, exact.astype(np.float16))


# ------------------------------------------------------------------ what must be said, or refused


def test_a_square_of_rows_with_a_class_token_is_said(tmp_path: Path) -> None:
    """14×16 places and a class row are 225 rows, and so are 15×15 places."""
    path = save(tmp_path / "in.safetensors", vit((14, 16)))
    (note,) = pi.plan(path, 448).notes
    assert "read as 15×15 without a row for the class token; if it is 14×16" in note
    assert pi.plan(path, 448, src_img=(224, 256)).notes == ()


def test_tables_outside_the_model_are_said(tmp_path: Path) -> None:
    state = {f"encoder.{name}": value for name, value in vit().items()}
    path = save(tmp_path / "in.safetensors", state | {"decoder.pos_embed": np.zeros((1, 197, 4), np.float32)})
    assert pi.plan(path, 384).notes == ("left as they are, outside the model: decoder.pos_embed 1×197×4",)


@pytest.mark.parametrize("name", ["det_token", "layers.0.mixer.in_proj.weight"])
def test_rows_in_another_order_are_refused(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "in.safetensors", vit() | {name: np.zeros((1, 8), np.float32)})
    with pytest.raises(pi.PosinterpError, match="of no family known here"):
        pi.plan(path, 384)


def test_weights_that_would_win_are_not_left_beside_the_new_ones(tmp_path: Path) -> None:
    path = save(tmp_path / "in.safetensors", vit())
    out = tmp_path / "out"
    out.mkdir()
    (out / "pytorch_model.bin").write_bytes(b"old")
    with pytest.raises(pi.PosinterpError, match="holds pytorch_model.bin"):
        pi.resize(path, 384, out, overwrite=True)
    assert [child.name for child in out.iterdir()] == ["pytorch_model.bin"]


def test_an_old_flat_config_still_loads(tmp_path: Path) -> None:
    model = timm.create_model("test_vit")
    config = {"architecture": "test_vit", "num_features": 64, "input_size": [3, 160, 160], "num_classes": 1000}
    src = save(tmp_path / "in", {name: value.numpy() for name, value in model.state_dict().items()}, config)
    pi.resize(src, 96, tmp_path / "out")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert loaded.patch_embed.grid_size == (6, 6)
    np.testing.assert_array_equal(loaded.pos_embed.detach().numpy(), load(tmp_path / "out")["pos_embed"])


def test_load_resized_refuses_what_it_cannot_fill(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "in.pth")
    with torch.device("meta"):
        empty = timm.create_model("test_vit", img_size=64)
    with pytest.raises(pi.PosinterpError, match="meta device"):
        load_resized(empty, tmp_path / "in.pth")
    wrapped = torch.nn.DataParallel(timm.create_model("test_vit", img_size=64))
    with pytest.raises(pi.PosinterpError, match="is it wrapped"):
        load_resized(wrapped, tmp_path / "in.pth")


def test_load_resized_at_a_size_that_the_patch_does_not_divide(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "in.pth")
    model = timm.create_model("test_vit", img_size=70)  # 4×4 places, and six pixels over
    assert load_resized(model, tmp_path / "in.pth") == ["pos_embed"]


def test_a_recipe_that_names_another_family_is_not_obeyed(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(vit(), tmp_path / "in.safetensors", metadata={"posinterp": '{"family":"siglip","to":[224,224]}'})
    assert pi.plan(tmp_path / "in.safetensors", 384).family.name == "vit"


def test_a_config_of_another_kind_is_not_left_stale(tmp_path: Path) -> None:
    path = save(tmp_path / "in", vit(), {"some_type": "other", "model_args": {"img_size": 224}})
    with pytest.raises(
        pi.PosinterpError, match="is not timm's nor transformers', and its model_args would go on saying the old size"
    ):
        pi.resize(path, 384, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    pi.resize(path, 384, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("name", "args", "img"),
    [
        ("tnt_s_patch16_224", {"depth": 1}, (112, 448)),  # as many rows as at 224
        ("pit_ti_224", {}, (256, 320)),
        ("levit_128s", {}, (512, 128)),
        ("efficientformerv2_s0", {}, (512, 128)),
        ("gcvit_xxtiny", {}, (256, 320)),
        ("hiera_tiny_224", {"stages": (1, 1, 1, 1)}, (256, 320)),
        ("crossvit_tiny_240", {}, (480, 240)),
        ("cait_xxs24_224", {"depth": 1}, (112, 448)),
    ],
)
def test_a_model_in_memory_is_filled_as_a_file_is_resized(name: str, args: Any, img: Any, tmp_path: Path) -> None:
    source = timm.create_model(name, num_classes=0, **args)
    with torch.no_grad():
        for key, value in source.state_dict().items():
            if any(word in key for word in ("pos", "_biases", "bias_table")) and "running" not in key:
                value.copy_(torch.randn(value.shape))
    torch.save(source.state_dict(), tmp_path / "in.pth")
    native = source.pretrained_cfg["input_size"][1:]
    model = timm.create_model(name, num_classes=0, img_size=img, **args)
    alone = name not in ("hiera_tiny_224", "tnt_s_patch16_224")  # these do not say their size
    assert load_resized(model, tmp_path / "in.pth", img=None if alone else img)
    wanted = pi.adapt(source.state_dict(), img, src_img=native, architecture=name)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-6)


def test_a_model_that_does_not_say_its_size_is_asked_for_it(tmp_path: Path) -> None:
    small = {"stages": (1, 1, 1, 1)}
    torch.save(timm.create_model("hiera_tiny_224", **small).state_dict(), tmp_path / "in.pth")
    model = timm.create_model("hiera_tiny_224", img_size=320, **small)
    with pytest.raises(pi.PosinterpError, match="Hiera does not say its image size") as caught:
        load_resized(model, tmp_path / "in.pth")
    assert "img=" in str(caught.value.hint)
    assert load_resized(model, tmp_path / "in.pth", img=320)


def test_a_target_that_is_read_as_a_square_is_said() -> None:
    """28×7 places are as many as 14×14: shapes alone cannot tell."""
    source = timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()
    target = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=(448, 112)).state_dict()
    with pytest.warns(UserWarning, match="read as a model for 224, by the number of its rows; say img="):
        pi.adapt(source, like=target, src_img=224)
    out = pi.adapt(source, (448, 112), like=target, src_img=224)
    assert not torch.equal(out["pos_embed"], source["pos_embed"])


@pytest.mark.parametrize(("old", "family"), [("vit_base_resnet50_384", "hybrid-resnetv2"), ("jx_nest_tiny", "nest")])
def test_names_that_timm_has_given_up_are_known(old: str, family: str) -> None:
    model = timm.create_model("vit_base_r50_s16_384" if "resnet50" in old else "nest_tiny")
    (found,) = find_models(model.state_dict(), architecture=old)
    assert (found.family.name, found.src_img) == (family, model.pretrained_cfg["input_size"][1:])
