"""vit-pytorch's files, by a short reference; the library's own models where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import load, save, table

import posinterp as pi


def tensors(grid: tuple[int, int], *, prefix: int, batched: bool, patch: int = 16) -> dict[str, np.ndarray]:
    rows = table(grid, 8, prefix)
    token = np.ones((1, 1, 8) if batched else (prefix, 8), np.float32)
    return {
        "pos_embedding": rows if batched else rows[0],
        "cls_token": token,
        "to_patch_embedding.1.weight": np.ones(patch * patch * 3, np.float32),
        "to_patch_embedding.2.weight": np.ones((8, patch * patch * 3), np.float32),
        "transformer.layers.0.0.to_qkv.weight": np.ones((24, 8), np.float32),
    }


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(("img", "grid"), [((96, 96), (6, 6)), ((64, 128), (4, 8)), ((32, 32), (2, 2))])
def test_the_table(batched: bool, prefix: int, img: tuple[int, int], grid: tuple[int, int], tmp_path: Path) -> None:
    own = tensors((4, 4), prefix=prefix, batched=batched)
    source = save(tmp_path / "own.safetensors", own)
    made = pi.resize(source, img, tmp_path / "out.safetensors")
    assert (made.family.home, made.src_img) == ("vit-pytorch", (64, 64))
    out = load(tmp_path / "out.safetensors")["pos_embedding"].reshape(-1, 8)
    rows = own["pos_embedding"].reshape(-1, 8)
    image = torch.from_numpy(rows[prefix:]).double().reshape(1, 4, 4, 8).permute(0, 3, 1, 2)
    wanted = F.interpolate(image, grid, mode="bicubic", antialias=True)[0].flatten(1).T
    np.testing.assert_array_equal(out[:prefix], rows[:prefix])
    np.testing.assert_allclose(out[prefix:], wanted, atol=1e-6)


def test_a_patch_that_a_linear_layer_reads(tmp_path: Path) -> None:
    source = save(tmp_path / "own.safetensors", tensors((4, 4), prefix=1, batched=True))
    with pytest.raises(pi.PosinterpError, match="a linear layer reads the pixels of a patch"):
        pi.plan(source, 96, patch=8)


def test_patches_that_overlap(tmp_path: Path) -> None:
    """A patch of 14 every 7 pixels: 7×7 places at 56, 11×11 at 84."""
    own = {
        "pos_embedding": table((7, 7), 8, 1),
        "cls_token": np.ones((1, 1, 8), np.float32),
        "to_patch_embedding.2.weight": np.ones((8, 14 * 14 * 3), np.float32),
    }
    made = pi.resize(save(tmp_path / "pit.safetensors", own), 84, tmp_path / "out.safetensors")
    assert (made.family.name, made.src_img) == ("vp-pit", (56, 56))
    image = torch.from_numpy(own["pos_embedding"][0, 1:]).double().reshape(1, 7, 7, 8).permute(0, 3, 1, 2)
    wanted = F.interpolate(image, (11, 11), mode="bicubic", antialias=True)[0].flatten(1).T
    np.testing.assert_allclose(load(tmp_path / "out.safetensors")["pos_embedding"][0, 1:], wanted, atol=1e-6)


def test_rows_and_columns_apart(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    own = {f"pos_embed_{side}": draw.standard_normal((4, 8)).astype(np.float32) for side in ("height", "width")}
    own["to_patch_embedding.1.weight"] = np.ones((8, 768), np.float32)
    pi.resize(save(tmp_path / "navit.safetensors", own), (96, 128), tmp_path / "out.safetensors")
    out = load(tmp_path / "out.safetensors")
    for name, length in (("pos_embed_height", 6), ("pos_embed_width", 8)):
        wanted = F.interpolate(torch.from_numpy(own[name]).double().T[None], length, mode="linear")[0].T
        np.testing.assert_allclose(out[name], wanted, atol=1e-6)


def test_the_decoders_unused_row_stays_last(tmp_path: Path) -> None:
    own = {f"encoder.{name}": value for name, value in tensors((4, 4), prefix=1, batched=False).items()}
    own["decoder_pos_emb.weight"] = table((4, 4), 4, 1, seed=2)[0]
    pi.resize(save(tmp_path / "mae.safetensors", own), 96, tmp_path / "out.safetensors")
    out, rows = load(tmp_path / "out.safetensors"), own["decoder_pos_emb.weight"]
    image = torch.from_numpy(rows[:16]).double().reshape(1, 4, 4, 4).permute(0, 3, 1, 2)
    wanted = F.interpolate(image, (6, 6), mode="bicubic", antialias=True)[0].flatten(1).T
    np.testing.assert_allclose(out["decoder_pos_emb.weight"][:36], wanted, atol=1e-6)
    np.testing.assert_array_equal(out["decoder_pos_emb.weight"][36:], rows[16:])
    assert out["encoder.pos_embedding"].shape == (37, 8)


def test_a_patch_that_is_no_square_of_any_channels(tmp_path: Path) -> None:
    own = tensors((4, 4), prefix=1, batched=False) | {"to_patch_embedding.1.weight": np.ones(500, np.float32)}
    with pytest.raises(pi.PosinterpError, match="takes 500 values, which is no square patch of 1, 3 or 4 channels"):
        pi.plan(save(tmp_path / "own.safetensors", own), 96)


def test_one_channel_or_four_is_asked_about(tmp_path: Path) -> None:
    own = tensors((4, 4), prefix=1, batched=False) | {"to_patch_embedding.1.weight": np.ones((8, 256), np.float32)}
    source = save(tmp_path / "own.safetensors", own)
    with pytest.raises(pi.PosinterpError, match="could hold 4×4 of 16 pixels or 4×4 of 8 pixels"):
        pi.plan(source, 96)
    assert [pi.plan(source, 96, src_img=size).edits[0].new_shape for size in (64, 32)] == [(37, 8), (145, 8)]


def test_a_table_without_a_square_is_asked_about(tmp_path: Path) -> None:
    own = tensors((2, 16), prefix=1, batched=False)
    with pytest.raises(pi.PosinterpError, match="holds no square grid beside 0 or 1 prefix rows"):
        pi.plan(save(tmp_path / "own.safetensors", own), 96)
    made = pi.plan(tmp_path / "own.safetensors", (64, 512), src_img=(32, 256))
    assert made.edits[0].new_shape == (1 + 4 * 32, 8)


@pytest.mark.parametrize(("img", "fits"), [(96, True), (90, False)])
def test_computed_positions_have_no_table(img: int, fits: bool, tmp_path: Path) -> None:
    own = tensors((4, 4), prefix=0, batched=False)
    del own["pos_embedding"], own["cls_token"]
    source = save(tmp_path / "own.safetensors", own)
    if fits:
        assert (pi.plan(source, img).family.name, pi.plan(source, img).edits) == ("vp-simple", ())
        return
    with pytest.raises(pi.PosinterpError, match="90 is not a multiple"):
        pi.plan(source, img)


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "volume": {"pos_embedding": (1, 33, 8), "cls_token": (1, 1, 8), "to_patch_embedding.1.weight": (1536,)},
    "vivit": {"pos_embedding": (1, 2, 16, 8), "to_patch_embedding.1.weight": (1536,)},
    "t2t": {
        "pos_embedding": (1, 17, 8),
        "cls_token": (1, 1, 8),
        "to_patch_embedding.3.layers.0.0.to_qkv.weight": (24, 147),
    },
    "nest": {
        "layers.0.0.pos_emb": (16,),
        "layers.1.0.pos_emb": (16,),
        "to_patch_embedding.2.weight": (8, 192, 1, 1),
    },
    "cct": {"classifier.positional_emb": (1, 16, 8), "tokenizer.conv_layers.0.0.weight": (8, 3, 7, 7)},
    "grey": {"pos_embedding": (17, 8), "cls_token": (1, 8), "to_patch_embedding.1.weight": (8, 256)},
    "volume, grey": {"pos_embedding": (1, 33, 8), "cls_token": (1, 1, 8), "to_patch_embedding.1.weight": (512,)},
    "window biases beside": {
        "pos_embedding": (16, 8),
        "to_patch_embedding.1.weight": (8, 768),
        "transformer.layers.0.0.options.WA.rel_pos_bias.weight": (169, 2),
    },
    "nvit": {
        "abs_pos_emb.linear.parametrizations.weight.original": (16, 8),
        "to_patch_embedding.1.linear.parametrizations.weight.original": (8, 768),
    },
    "look": {"pos_embedding": (64, 8), "to_patches.1.weight": (8, 192, 7, 7)},
    "registers": {
        "pos_embedding": (21, 8),
        "cls_token": (1, 8),
        "register_tokens": (4, 8),
        "to_patch_embedding.1.weight": (8, 768),
    },
}


@pytest.mark.parametrize(
    ("kind", "asked", "name", "prefix", "old", "new"),
    [
        ("volume", {"img": 96, "src_img": 64}, "pos_embedding", 1, (2, 4, 4), (2, 6, 6)),
        ("volume", {"img": "8x64x96", "src_img": "4x64x64"}, "pos_embedding", 1, (2, 4, 4), (4, 4, 6)),
        ("vivit", {"img": 96, "src_img": 64}, "pos_embedding", 0, (2, 4, 4), (2, 6, 6)),
        ("t2t", {"img": 96}, "pos_embedding", 1, (4, 4), (6, 6)),
        ("nest", {"img": (96, 128)}, "layers.1.0.pos_emb", 0, (4, 4), (6, 8)),
        ("cct", {"img": (96, 64), "src_img": 64}, "classifier.positional_emb", 0, (4, 4), (6, 4)),
        ("registers", {"img": 96}, "pos_embedding", 5, (4, 4), (6, 6)),
        ("grey", {"img": 96, "src_img": 64}, "pos_embedding", 1, (4, 4), (6, 6)),
        ("volume, grey", {"img": "8x64x96", "src_img": "4x64x64"}, "pos_embedding", 1, (2, 4, 4), (4, 4, 6)),
        ("window biases beside", {"img": 96}, "pos_embedding", 0, (4, 4), (6, 6)),
        ("nvit", {"img": (96, 64)}, "abs_pos_emb.linear.parametrizations.weight.original", 0, (4, 4), (6, 4)),
        ("look", {"img": 96, "src_img": 64}, "pos_embedding", 0, (8, 8), (12, 12)),
    ],
)
def test_other_models(
    kind: str, asked: Any, name: str, prefix: int, old: tuple[int, ...], new: tuple[int, ...], tmp_path: Path
) -> None:
    draw = np.random.default_rng(4)
    own = {key: draw.standard_normal(shape).astype(np.float32) for key, shape in SHAPES[kind].items()}
    pi.resize(save(tmp_path / "own.safetensors", own), out=tmp_path / "out.safetensors", **asked)
    width = 1 if kind == "nest" else 8
    before, after = own[name].reshape(-1, width), load(tmp_path / "out.safetensors")[name].reshape(-1, width)
    np.testing.assert_array_equal(after[:prefix], before[:prefix])
    frames = torch.from_numpy(before[prefix:]).double().reshape(-1, *old[-2:], width).permute(0, 3, 1, 2)
    wanted = F.interpolate(frames, new[-2:], mode="bicubic", antialias=True)
    if len(new) == 3 and new[0] != old[0]:
        flat = wanted.reshape(1, 1, old[0], -1)
        wanted = F.interpolate(flat, (new[0], flat.shape[-1]), mode="bicubic", antialias=True)
        wanted = wanted.reshape(new[0], width, *new[-2:])
    np.testing.assert_allclose(after[prefix:], wanted.permute(0, 2, 3, 1).reshape(-1, width), atol=1e-6)


def test_what_the_shapes_do_not_say_is_asked(tmp_path: Path) -> None:
    for kind, message in (
        ("volume", "could be a grid of|could hold"),
        ("vivit", "could hold 2×4×4 of 16 pixels or 2×4×4 of 8 pixels"),
        ("cct", "do not show how many pixels a place of classifier.positional_emb spans"),
    ):
        own = {key: np.ones(shape, np.float32) for key, shape in SHAPES[kind].items()}
        with pytest.raises(pi.PosinterpError, match=message) as caught:
            pi.plan(save(tmp_path / f"{kind}.safetensors", own), 96)
        assert "--src-img" in (caught.value.hint or "")


def test_a_wrong_size_makes_no_volume_of_an_image(tmp_path: Path) -> None:
    """A table of 8×8 places is no clip of four times 4×4, whatever size is said."""
    own = tensors((8, 8), prefix=1, batched=True)
    with pytest.raises(pi.PosinterpError, match="--src-img says 64"):
        pi.plan(save(tmp_path / "own.safetensors", own), 96, src_img=64)


@pytest.mark.parametrize(
    "name",
    [
        "jumbo_cls_token",
        "layers.0.2.layers.0.0.to_q.net.0.weight",
        "layers.0.1.layers.0.0.fn.to_q.weight",
        "transformer.pos_emb.scales",
        "layers.0.2.fn.rel_pos_bias.weight",
    ],
)
def test_what_has_no_table_is_copied(name: str, tmp_path: Path) -> None:
    made = pi.plan(save(tmp_path / "own.safetensors", {name: np.ones((4, 4), np.float32)}), 96)
    assert (made.family.home, made.edits) == ("vit-pytorch", ())


# ------------------------------------------------------------------ LeViT: tables of distances, and indices into them


def levit(size: int) -> Any:
    kind = pytest.importorskip("vit_pytorch.levit").LeViT
    torch.manual_seed(0)
    stages = {"stages": 3, "dim": (16, 24, 32), "depth": (2, 1, 1), "heads": (2, 3, 4)}
    return kind(image_size=size, num_classes=5, mlp_mult=2, dim_key=8, dim_value=8, **stages).eval()


@pytest.mark.parametrize("size", [320, 128, 256, 272])
@torch.no_grad()
def test_levits_indices_are_computed_anew(size: int, tmp_path: Path) -> None:
    old, new = levit(224), levit(size)
    torch.save(old.state_dict(), tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", size, tmp_path / "out.pth")
    native = {name: value.clone() for name, value in new.named_buffers() if name.endswith("pos_indices")}
    assert len(native) == 6
    new.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True), strict=True)
    for name, index in native.items():
        assert torch.equal(new.get_buffer(name), index)
        table = name.replace("pos_indices", "pos_bias.weight")
        rows = old.get_parameter(table).double()
        before, after = (round(len(one.get_parameter(table)) ** 0.5) for one in (old, new))
        image = rows.T.reshape(1, -1, before, before)
        wanted = F.interpolate(image, (after, after), mode="bicubic", antialias=True).flatten(2)[0].T
        torch.testing.assert_close(new.get_parameter(table).double(), wanted, rtol=0, atol=1e-6)
    assert new(torch.randn(1, 3, size, size)).isfinite().all()
    verdict = pi.verify(tmp_path / "out.pth", against=tmp_path / "in.pth")
    assert verdict.ok, verdict.checks
    adapted = pi.adapt(old.state_dict(), size)
    assert all(torch.equal(adapted[name], value) for name, value in new.state_dict().items())


def test_a_wrong_index_is_found(tmp_path: Path) -> None:
    state = levit(224).state_dict()
    torch.save(state, tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 320, tmp_path / "out.pth")
    out = torch.load(tmp_path / "out.pth", weights_only=True)
    out["backbone.1.layers.0.0.pos_indices"] = out["backbone.1.layers.0.0.pos_indices"].flip(0)
    torch.save(out, tmp_path / "out.pth")
    verdict = pi.verify(tmp_path / "out.pth", against=tmp_path / "in.pth")
    assert [check.name for check in verdict.failed] == ["resampled"]
    assert "backbone.1.layers.0.0.pos_indices is not the index of its table" in verdict.failed[0].detail
    state["backbone.2.layers.0.0.pos_indices"][0, 0] = 7
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(pi.PosinterpError, match=r"backbone.2.layers.0.0.pos_indices is not the index of distances"):
        pi.resize(tmp_path / "bad.pth", 320, tmp_path / "none.pth")
    assert not (tmp_path / "none.pth").exists()
    with pytest.raises(pi.PosinterpError, match="is not the index of distances"):
        pi.adapt(state, 320)
