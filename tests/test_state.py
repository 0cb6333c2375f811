"""A state dict in memory, whatever a training script holds it as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import vit

import posinterp as pi


def state() -> dict[str, Any]:
    return {name: torch.from_numpy(value) for name, value in vit().items()}


@pytest.mark.parametrize(
    "size", [np.int64(384), torch.tensor(384), (np.int32(384), 384), np.array([384, 384]), [384, 384], "384"], ids=repr
)
def test_a_size_is_any_whole_number(size: Any) -> None:
    assert pi.adapt(state(), size)["pos_embed"].shape == (1, 577, 8)


@pytest.mark.parametrize(
    "size", [384.0, (384.0, 384), True, None, (384, 384, 384, 384), np.float32(384), ...], ids=repr
)
def test_what_is_no_size_is_said(size: Any) -> None:
    with pytest.raises(pi.PosinterpError, match="is no image size|says the target size"):
        pi.adapt(state(), size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.to(torch.float8_e4m3fn), "holds torch.float8_e4m3fn"),
        (lambda table: table.to(torch.int8), "holds torch.int8"),
        (lambda table: table.to(torch.complex64), "holds torch.complex64"),
        (lambda table: table.to("meta"), "is on the meta device"),
        (lambda table: table.to_sparse(), "is sparse or quantised"),
        (lambda table: table.numpy().astype(np.int64), "holds int64"),
        (lambda table: table * float("nan"), "not finite"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_table_that_cannot_be_resampled_is_said(change: Any, message: str) -> None:
    held = state()
    held["pos_embed"] = change(held["pos_embed"])
    with pytest.raises(pi.PosinterpError, match=f"pos_embed .*{message}"):
        pi.adapt(held, 384)


def test_what_is_no_tensor_stays() -> None:
    held = {**state(), "note": "text", 7: torch.ones(2)}
    out = pi.adapt(held, 384)
    assert (out["note"], out[7]) == ("text", held[7])
