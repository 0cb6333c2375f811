"""docs/adding-a-family.md, followed: without its family PiT is not known, with the page's it is converted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import ROOT, load
from safetensors.torch import save_file

import posinterp as pi
from posinterp import models
from posinterp.families import FAMILIES, family_named

PAGE = (ROOT / "docs" / "adding-a-family.md").read_text("utf-8")


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """What the page's python says."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PiT, and a package that does not know it."""
    torch.manual_seed(0)
    save_file(timm.create_model("pit_ti_224", num_classes=5).state_dict(), tmp_path / "pit.safetensors")
    monkeypatch.setattr(models, "FAMILIES", tuple(family for family in FAMILIES if family.name != "pit"))
    return tmp_path / "pit.safetensors"


def test_the_page_has_the_packages_own(written: dict[str, Any]) -> None:
    assert family_named("pit") == (written["PIT"],)


def test_a_rule_is_not_enough(checkpoint: Path) -> None:
    with pytest.raises(pi.PosinterpError, match="of no family known here"):
        pi.plan(checkpoint, 320)
    with pytest.raises(pi.PosinterpError, match="27 places for 224 pixels: 320 gives no whole number"):
        pi.plan(checkpoint, 320, src_img=224, rules=["pos_embed = 1 c h w"])


def test_the_family_is(checkpoint: Path, written: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FAMILIES", (written["PIT"], *models.FAMILIES))
    out = checkpoint.with_name("out.safetensors")
    pi.resize(checkpoint, (320, 256), out)
    old, new = load(checkpoint), timm.create_model("pit_ti_224", num_classes=5, img_size=(320, 256))
    new.load_state_dict({name: torch.from_numpy(value) for name, value in load(out).items()}, strict=True)
    table = torch.from_numpy(old["pos_embed"])
    wanted = written["of_channels_first"]("pos_embed", table, None, new)
    np.testing.assert_allclose(new.pos_embed.detach(), wanted, rtol=0, atol=1e-6)
    assert torch.as_tensor(new.eval()(torch.zeros(1, 3, 320, 256))).isfinite().all()
