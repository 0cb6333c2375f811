"""Every console block and every script in the README and the docs, run as a reader would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CLIP, ROOT, clip, save, swin, table, timm_config, vit
from hub_server import HubServer
from PIL import Image

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"pip install [^&]+ && ")  # .ci/run runs these as they are


def blocks(kind: str) -> list[tuple[str, str]]:
    return [
        (page.name, body) for page in PAGES for name, body in BLOCK.findall(page.read_text("utf-8")) if name == kind
    ]


def commands(block: str) -> list[tuple[str, str]]:
    """Each command with the output that the page shows below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A reader's folder: the fixtures, a checkpoint or two, and a hub."""
    place = tmp_path_factory.mktemp("desk")
    shutil.copytree(
        ROOT / "fixtures", place / "fixtures", ignore=shutil.ignore_patterns("fashion-vit-*", "__pycache__")
    )
    save(place / "model.safetensors", vit())
    save(place / "swin", swin(), timm_config("swin_tiny_patch4_window7_224", (224, 224)))
    save(place / "clip", clip(), CLIP)
    private = {"net.places": table((14, 14), 8, 1), "net.stem.weight": np.ones((8, 3, 16, 16), np.float32)}
    save(place / "private.safetensors", private)
    (place / "images").mkdir()
    with np.load(ROOT / "fixtures" / "fashion-test.npz") as data:
        for i, pixels in enumerate(data["images"][:40]):
            Image.fromarray(pixels).save(place / "images" / f"{i:02}.png")
    weights = {name: torch.from_numpy(value) for name, value in vit().items()}
    torch.save({"model": weights, "model_ema": weights, "epoch": 3}, place / "train.pth")
    small = {name: torch.from_numpy(value) for name, value in vit((4, 4)).items()}
    moments = {"exp_avg": torch.ones(1, 17, 8), "exp_avg_sq": torch.ones(1, 17, 8), "step": torch.tensor(2.0)}
    groups = {"state": {0: moments}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    torch.save({"model": small, "optimizer": groups}, place / "run.pth")
    clip_config = {"model_type": "vivit", "image_size": 64, "num_frames": 4, "tubelet_size": [2, 16, 16]}
    clips = {
        "embeddings.position_embeddings": table((8, 4), 8, 1),
        "embeddings.cls_token": np.ones((1, 1, 8), np.float32),
        "embeddings.patch_embeddings.projection.weight": np.ones((8, 3, 2, 16, 16), np.float32),
    }
    save(place / "video", clips, clip_config)
    np.savez(
        place / "ViT.npz",
        **{
            "Transformer/posembed_input/pos_embedding": table((14, 14), 8, 1),
            "cls": np.ones((1, 1, 8), np.float32),
            "embedding/bias": np.ones(8, np.float32),
            "embedding/kernel": np.ones((16, 16, 3, 8), np.float32),
        },
    )
    shim = place / "bin" / "posinterp"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m posinterp "$@"\n')
    shim.chmod(0o755)
    upload = save(place / "upload", vit(), timm_config("vit_base_patch16_224", (224, 224)))
    files = {path.name: path.read_bytes() for path in upload.iterdir()}
    with HubServer({"timm/vit_base_patch16_224.augreg2_in21k_ft_in1k": {"main": files}}) as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(place / "cache"), "HF_HUB_DISABLE_XET": "1"}
        path = os.pathsep.join([str(shim.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        yield place, {**os.environ, **settings, "PATH": path}


def test_there_is_something_to_run() -> None:
    assert len(blocks("console")) >= 4
    assert len(blocks("python")) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_console_blocks(page: Path, desk: tuple[Path, dict[str, str]]) -> None:
    place, env = desk
    for name, block in blocks("console"):
        if name != page.name:
            continue
        for command, shown in commands(block):
            command = INSTALL.sub("", command)
            if command == "pytest":
                continue
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=place, env=env)
            expected = 1 if "exit code 1" in command else 0
            assert done.returncode == expected, f"$ {command}\n{done.stdout}{done.stderr}"
            if shown:
                assert done.stdout == shown, f"$ {command}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_complete_scripts(page: Path, desk: tuple[Path, dict[str, str]]) -> None:
    place, env = desk
    for name, script in blocks("python"):
        if name == page.name and "argparse" in script:
            command = [sys.executable, "-c", script, "--steps", "3"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=env)
            assert done.returncode == 0, done.stderr
            assert "resampled: pos_embed" in done.stdout or "PEG" in done.stdout
            assert "after 3 steps" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
