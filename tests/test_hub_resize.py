"""From a name to a resized checkpoint: the whole way, against a hub on 127.0.0.1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import load, save, timm_config, vit
from hub_server import HubServer

import posinterp as pi

TAGGED = "vit_base_patch16_224.augreg_in21k"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    folder = save(tmp_path / "upload", vit(), timm_config("vit_base_patch16_224", (224, 224)))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with HubServer({f"timm/{TAGGED}": {"main": files}, "lab/vit": {"main": files, "v2": files}}) as server:
        yield server


def run(server: HubServer, tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1", **env}
    command = [sys.executable, "-m", "posinterp", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **settings})


def test_a_timm_name_is_downloaded_and_resized(hub: HubServer, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "resize", TAGGED, "--img", "384")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"wrote {TAGGED}-384/ (model.safetensors, config.json)" in done.stdout
    out = tmp_path / f"{TAGGED}-384"
    np.testing.assert_array_equal(load(out)["pos_embed"], pi.adapt(vit(), 384)["pos_embed"])
    assert json.loads((out / "config.json").read_text())["model_args"]["img_size"] == 384


def test_a_hub_name_at_a_revision_offline_afterwards(hub: HubServer, tmp_path: Path) -> None:
    assert run(hub, tmp_path, "resize", "hf-hub:lab/vit@v2", "--img", "384", "-q").stdout == "vit-384\n"
    again = run(hub, tmp_path, "resize", "hf-hub:lab/vit@v2", "--img", "256", HF_HUB_OFFLINE="1")
    assert again.returncode == 0
    assert (tmp_path / "vit-256" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("hf-hub:lab/nothing", {}, ("lab/nothing",)),
        ("hf-hub:lab/vit@v9", {}, ("v9",)),
        ("hf-hub:lab/vit", {"HF_HUB_OFFLINE": "1"}, ("not in the local cache",)),
        ("vit_bse_patch16_224", {}, ("vit_bse_patch16_224", "vit_base_patch16_224")),
    ],
)
def test_what_is_not_to_be_had(
    hub: HubServer, tmp_path: Path, name: str, env: dict[str, str], words: tuple[str, ...]
) -> None:
    done = run(hub, tmp_path, "resize", name, "--img", "384", **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) <= 2
    assert done.stderr.startswith("error: ")
    assert all(word in done.stderr for word in words)
