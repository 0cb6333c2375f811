"""numpy archives of JAX code: read without unpickling, resampled as their code does, written as they were."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import load, save, table, vit

import posinterp as pi
from posinterp.store import open_checkpoint
from posinterp.verification import verify


def arrays(prefix: str = "", **more: np.ndarray) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    own = {
        "Transformer/encoderblock_0/LayerNorm_0/scale": normal(8),
        "Transformer/posembed_input/pos_embedding": table((4, 4), 8, 1),
        "cls": normal(1, 1, 8),
        "embedding/bias": normal(8),
        "embedding/kernel": normal(16, 16, 3, 8),
        "head/kernel": normal(8, 10),
        **more,
    }
    return {prefix + name: value for name, value in own.items()}


def held(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def reference(rows: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    image = torch.from_numpy(rows).double().reshape(1, *old, -1).permute(0, 3, 1, 2)
    out = F.interpolate(image, new, mode="bilinear", align_corners=True)
    return out[0].flatten(1).T.float().numpy()


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_a_vision_transformer_of_jax(prefix: str, tmp_path: Path) -> None:
    own = arrays(prefix)
    np.savez(tmp_path / "ViT.npz", **own)
    made = pi.resize(tmp_path / "ViT.npz", (96, 64), tmp_path / "out.npz")
    assert (made.family.name, made.src_img) == ("jax-vit", (64, 64))
    out = held(tmp_path / "out.npz")
    name = f"{prefix}Transformer/posembed_input/pos_embedding"
    assert list(out) == list(own)
    np.testing.assert_array_equal(out[name][0, 0], own[name][0, 0])
    np.testing.assert_allclose(out[name][0, 1:], reference(own[name][0, 1:], (4, 4), (6, 4)), atol=1e-6)
    for other in set(own) - {name}:
        assert (out[other].dtype, out[other].tobytes()) == (own[other].dtype, own[other].tobytes())
    assert json.loads(open_checkpoint(tmp_path / "out.npz").recipe and zipfile.ZipFile(tmp_path / "out.npz").comment)
    assert open_checkpoint(tmp_path / "out.npz").recipe["to"] == [96, 64]
    verdict = verify(tmp_path / "out.npz", against=tmp_path / "ViT.npz")
    assert verdict.ok, verdict.checks


def test_the_text_tower_stays(tmp_path: Path) -> None:
    own = {
        "params/img/pos_embedding": table((4, 4), 8),
        "params/img/embedding/kernel": np.ones((16, 16, 3, 8), np.float32),
        "params/txt/pos_embedding": table((4, 4), 8),
    }
    np.savez(tmp_path / "siglip.npz", **own)
    made = pi.resize(tmp_path / "siglip.npz", 96, tmp_path / "out.npz")
    assert [edit.name for edit in made.edits] == ["params/img/pos_embedding"]
    assert verify(tmp_path / "out.npz", against=tmp_path / "siglip.npz").ok


def test_a_stem_of_convolutions_tells_its_stride(tmp_path: Path) -> None:
    stem = {"conv_root/kernel": np.ones((7, 7, 3, 4), np.float32)}
    stem |= {f"block{n}/unit1/conv1/kernel": np.ones((1, 1, 4, 4), np.float32) for n in (1, 2, 3)}
    np.savez(tmp_path / "r50.npz", **arrays(**stem) | {"embedding/kernel": np.ones((1, 1, 4, 8), np.float32)})
    made = pi.plan(tmp_path / "r50.npz", 96)
    assert (made.family.name, made.src_img, made.models[0].stride) == ("jax-hybrid", (64, 64), (16, 16))


def test_another_patch(tmp_path: Path) -> None:
    own = arrays()
    np.savez(tmp_path / "ViT.npz", **own)
    pi.resize(tmp_path / "ViT.npz", 64, tmp_path / "out.npz", patch=8)
    out = held(tmp_path / "out.npz")
    assert out["embedding/kernel"].shape == (8, 8, 3, 8)
    assert out["Transformer/posembed_input/pos_embedding"].shape == (1, 65, 8)
    assert verify(tmp_path / "out.npz", against=tmp_path / "ViT.npz").ok
    kernel = torch.from_numpy(own["embedding/kernel"]).permute(3, 2, 0, 1)
    same = {"cls_token": own["cls"], "patch_embed.proj.weight": kernel.contiguous().numpy()}
    same["pos_embed"] = own["Transformer/posembed_input/pos_embedding"]
    torched = pi.adapt(same, 64, patch=8, method="bilinear", antialias=False, align_corners=True)
    np.testing.assert_allclose(
        out["embedding/kernel"].transpose(3, 2, 0, 1), torched["patch_embed.proj.weight"], atol=1e-6
    )


def test_other_outputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "ViT.npz", **arrays())
    for name in ("out.safetensors", "out.pth", "out"):
        with pytest.raises(pi.PosinterpError, match="vision_transformer reads its weights from .npz files only"):
            pi.resize(tmp_path / "ViT.npz", 96, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["ViT.npz"]
    np.savez(tmp_path / "timm.npz", **vit((4, 4)))  # an archive of another library's names is as good as any file
    pi.resize(tmp_path / "timm.npz", 96, tmp_path / "out.safetensors")
    assert load(tmp_path / "out.safetensors")["pos_embed"].shape == (1, 37, 8)


def test_the_default_output_is_an_archive_again(cli: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "ViT.npz", **arrays())
    ran = cli("resize", "ViT.npz", "--img", "96")
    assert ran.returncode == 0, ran.stderr
    assert held(tmp_path / "ViT-96.npz")["Transformer/posembed_input/pos_embedding"].shape == (1, 37, 8)


def test_dtypes_and_orders(tmp_path: Path) -> None:
    own = arrays(**{"head/kernel": np.asfortranarray(np.arange(80, dtype=np.float32).reshape(8, 10))})
    own["Transformer/posembed_input/pos_embedding"] = table((4, 4), 8, 1).astype(np.float16)
    own["cls"] = np.frombuffer(np.arange(8, dtype=np.uint16).tobytes(), "V2").reshape(1, 1, 8)  # bfloat16
    own["step"] = np.array(7)
    np.savez(tmp_path / "ViT.npz", **own)
    pi.resize(tmp_path / "ViT.npz", 96, tmp_path / "out.npz")
    out = held(tmp_path / "out.npz")
    assert out["Transformer/posembed_input/pos_embedding"].dtype == np.float16
    for name in ("head/kernel", "cls", "step"):
        assert (out[name].dtype, out[name].tolist()) == (own[name].dtype, own[name].tolist())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("compressed", "has compressed arrays"),
        ("objects", "as Python objects, which are refused unread"),
        ("big-endian", "which is not read"),
        ("cut", "cannot be read|corrupt or truncated"),
        ("text", "is no array"),
        ("lying", "is corrupt or truncated: a has 8 bytes for 80"),
    ],
)
def test_what_is_refused(spoil: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    if spoil == "compressed":
        np.savez_compressed(path, **arrays())
    elif spoil == "objects":
        np.savez(path, a=np.array([{"a": 1}], dtype=object))
    elif spoil == "big-endian":
        np.savez(path, a=np.ones(3, ">f4"))
    elif spoil == "cut":
        np.savez(path, **arrays())
        path.write_bytes(path.read_bytes()[:-200])
    else:
        np.save(tmp_path / "a.npy", np.ones(2, np.float32))
        raw = (tmp_path / "a.npy").read_bytes()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", b"words" if spoil == "text" else raw.replace(b"(2,), }  ", b"(20,), } "))
    with pytest.raises(pi.PosinterpError, match=message):
        pi.plan(path, 96)


def test_an_archive_is_made_of_an_archive_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "ViT.npz", **arrays())
    save(tmp_path / "a.safetensors", arrays())
    pi.resize(tmp_path / "a.safetensors", 64, tmp_path / "b.npz")  # of the same names: that is one
    assert list(held(tmp_path / "b.npz"))
