"""Resuming a training run at another size: the optimizer's moments follow their parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import posinterp as pi
from posinterp.verification import verify

SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def net(size: int) -> Any:
    return timm.create_model("vit_tiny_patch16_224", img_size=size, **SMALL)


def trained(path: Path, kind: Callable[..., Any] = torch.optim.AdamW) -> Any:
    """A checkpoint after two steps, its parameters in two groups, so that their numbers are not the model's order."""
    torch.manual_seed(0)
    model = net(64)
    decay = [value for value in model.parameters() if value.ndim > 1]
    rest = [value for value in model.parameters() if value.ndim <= 1]
    optimizer = kind([{"params": rest, "weight_decay": 0.0}, {"params": decay}], lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 64, 64)).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, path)
    return model


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_training_goes_on_at_the_new_size(kind: Any, tmp_path: Path) -> None:
    trained(tmp_path / "in.pth", kind)
    made = pi.resize(tmp_path / "in.pth", 96, tmp_path / "out.pth", optimizer="keep")
    assert made.moments
    held = torch.load(tmp_path / "out.pth", weights_only=True)
    model = net(96)
    model.load_state_dict(held["model"])
    decay = [value for value in model.parameters() if value.ndim > 1]
    rest = [value for value in model.parameters() if value.ndim <= 1]
    optimizer = kind([{"params": rest}, {"params": decay}], lr=1e-3)
    optimizer.load_state_dict(held["optimizer"])
    for value, state in optimizer.state.items():
        assert all(moment.shape == value.shape for moment in state.values() if getattr(moment, "ndim", 0))
        assert all((state[name] >= 0).all() for name in ("exp_avg_sq", "sum", "square_avg") if name in state)
    model(torch.randn(2, 3, 96, 96)).square().mean().backward()
    optimizer.step()
    assert all(value.isfinite().all() for value in model.parameters())
    assert verify(tmp_path / "out.pth", against=tmp_path / "in.pth").ok


def test_a_moment_becomes_what_its_parameter_would(tmp_path: Path) -> None:
    trained(tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 96, tmp_path / "out.pth", optimizer="keep")
    before, after = (torch.load(tmp_path / name, weights_only=True) for name in ("in.pth", "out.pth"))
    number = next(n for n, state in before["optimizer"]["state"].items() if state["exp_avg"].shape == (1, 17, 32))
    for name in ("exp_avg", "exp_avg_sq"):
        old, new = (one["optimizer"]["state"][number][name] for one in (before, after))
        same = pi.adapt({**before["model"], "pos_embed": old}, 96)["pos_embed"]
        torch.testing.assert_close(new, same.clamp(min=0) if name.endswith("sq") else same)
    for other, state in before["optimizer"]["state"].items():
        if other != number:
            for name, value in state.items():
                torch.testing.assert_close(after["optimizer"]["state"][other][name], value, rtol=0, atol=0)
    assert after["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]


def tampered(path: Path, change: Callable[[Any], object]) -> Path:
    held = torch.load(path, weights_only=True)
    change(held["optimizer"]["state"])
    torch.save(held, path)
    return path


def of_shape(state: Any, shape: tuple[int, ...]) -> Any:
    return next(one for one in state.values() if tuple(one["exp_avg"].shape) == shape)


TABLE = (1, 37, 32)  # of 96 pixels


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (lambda state: of_shape(state, TABLE)["exp_avg"][:, 1:].add_(1e-3), "resampled", "exp_avg is not bicubic"),
        (lambda state: of_shape(state, TABLE)["exp_avg_sq"][:, 1:].mul_(1.1), "resampled", "exp_avg_sq is not bicubic"),
        (lambda state: of_shape(state, (32,))["exp_avg"].mul_(2), "untouched", "exp_avg differs from the source's"),
        (lambda state: of_shape(state, (32,)).pop("exp_avg_sq"), "untouched", "exp_avg_sq is missing"),
        (lambda state: state.update({99: {"exp_avg": torch.ones(3)}}), "untouched", "is extra"),
    ],
)
def test_a_wrong_moment_is_found(change: Any, check: str, words: str, tmp_path: Path) -> None:
    trained(tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 96, tmp_path / "out.pth", optimizer="keep")
    verdict = verify(tampered(tmp_path / "out.pth", change), against=tmp_path / "in.pth")
    (failed,) = [one for one in verdict.checks if one.status == "fail"]
    assert failed.name == check
    assert words in failed.detail


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_moments_are_held_against_their_parameters_method(method: str, tmp_path: Path) -> None:
    trained(tmp_path / "in.pth")
    pi.resize(tmp_path / "in.pth", 96, tmp_path / "out.pth", optimizer="keep", method=method)
    verdict = verify(tmp_path / "out.pth", against=tmp_path / "in.pth")
    assert verdict.ok, verdict.checks
    assert "3 tensors as torch gives" in next(one.detail for one in verdict.checks if one.name == "resampled")


def test_it_is_left_out_unless_asked_for(cli: Any, tmp_path: Path) -> None:
    trained(tmp_path / "in.pth")
    ran = cli("resize", "in.pth", "--img", "96", "-o", "out.pth")
    assert "left out: optimizer" in ran.stdout
    kept = cli("resize", "in.pth", "--img", "96", "-o", "kept.pth", "--optimizer", "keep")
    assert "2 moments of the optimizer resampled as their parameters" in kept.stdout
    assert "left out" not in kept.stdout


@pytest.mark.parametrize(
    ("out", "wishes", "message"),
    [
        ("out.safetensors", {}, "cannot hold the state of an optimizer"),
        ("out", {}, "cannot hold the state of an optimizer"),
        ("out.pth", {"patch": 8}, "moments of a patch kernel that is resized mean nothing"),
        ("out.pth", {"optimizer": "resume"}, "is no choice"),
    ],
)
def test_what_cannot_be_kept(out: str, wishes: dict[str, Any], message: str, tmp_path: Path) -> None:
    trained(tmp_path / "in.pth")
    with pytest.raises(pi.PosinterpError, match=message):
        pi.resize(tmp_path / "in.pth", 96, tmp_path / out, **{"optimizer": "keep", **wishes})
    assert not (tmp_path / out).exists()


def test_whose_a_moment_is_must_be_certain(tmp_path: Path) -> None:
    held = {"pos_embed": torch.ones(1, 17, 8), "cls_token": torch.ones(1, 1, 8), "other": torch.ones(1, 17, 8)}
    held["patch_embed.proj.weight"] = torch.ones(8, 3, 16, 16)
    held["blocks.0.attn.qkv.weight"] = torch.ones(24, 8)
    state = {"state": {0: {"exp_avg": torch.ones(1, 17, 8)}}, "param_groups": [{"params": [0]}]}
    torch.save({"model": held, "optimizer": state}, tmp_path / "in.pth")
    with pytest.raises(pi.PosinterpError, match="does not say whose it is"):
        pi.plan(tmp_path / "in.pth", 96, optimizer="keep")
    torch.save({"model": held}, tmp_path / "none.pth")
    with pytest.raises(pi.PosinterpError, match="holds no optimizer"):
        pi.plan(tmp_path / "none.pth", 96, optimizer="keep")


def test_factored_moments_follow_no_parameter(tmp_path: Path) -> None:
    weights = {"pos_embed": torch.ones(1, 17, 8), "cls_token": torch.ones(1, 1, 8)}
    weights |= {"patch_embed.proj.weight": torch.ones(8, 3, 16, 16), "blocks.0.attn.qkv.weight": torch.ones(24, 8)}
    state = {"state": {0: {"exp_avg_sq_row": torch.ones(1, 17)}}, "param_groups": [{"params": [0]}]}
    torch.save({"model": weights, "optimizer": state}, tmp_path / "in.pth")
    with pytest.raises(pi.PosinterpError, match="factored moments"):
        pi.plan(tmp_path / "in.pth", 96, optimizer="keep")
    np.testing.assert_equal(len(pi.plan(tmp_path / "in.pth", 96).edits), 1)
