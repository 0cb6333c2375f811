"""Every console block and every script in the README and the docs, run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, save, timm_config, vit
from desk import furnish
from hub_server import HubServer

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
    furnish(place)
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


def test_the_example_of_a_family(desk: tuple[Path, dict[str, str]]) -> None:
    place, env = desk
    page = ROOT / "docs" / "adding-a-family.md"
    (script,) = [script for name, script in blocks("python") if name == page.name]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=place, env=env)
    assert done.returncode == 0, done.stderr
    assert f"It prints `{done.stdout.strip()}`" in page.read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
