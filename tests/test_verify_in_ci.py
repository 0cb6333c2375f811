"""verify as a step of CI: its files, annotations and exit codes; and `assert_resized` in the tests of other projects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURE
from PIL import Image

from posinterp.errors import BadFile, BadUsage, NotFound
from posinterp.size import Size
from posinterp.testing import assert_resized
from posinterp.verification import NAMES, verify
from posinterp.verification.images import PATTERNS, of_folder, patterns
from posinterp.verification.junit import junit
from posinterp.verification.verdict import Check, Verdict
from posinterp.writing import resize

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

Run = Callable[..., "subprocess.CompletedProcess[str]"]
IN_GITHUB = {**os.environ, "GITHUB_ACTIONS": "true"}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("good") / "out"
    resize(FIXTURE, 56, out)
    return out


@pytest.fixture(scope="module")
def bad(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table's grid turned by a quarter."""
    out = tmp_path_factory.mktemp("bad") / "out"
    shutil.copytree(good, out)
    tensors = load_file(out / "model.safetensors")
    table = tensors["pos_embed"]
    grid = table[:, 1:].reshape(1, 14, 14, -1).rot90(1, (1, 2)).reshape(1, 196, -1)
    save_file({**tensors, "pos_embed": torch.cat([table[:, :1], grid], 1)}, out / "model.safetensors")
    return out


# ------------------------------------------------------------------ files and annotations


def test_a_pass_as_junit_and_json(cli: Run, good: Path, tmp_path: Path) -> None:
    done = cli("verify", good, "--against", FIXTURE, "--junit", "checks.xml", "--json", env=IN_GITHUB)
    assert (done.returncode, done.stderr) == (0, "")
    checks = json.loads(done.stdout)["checks"]
    assert [check["name"] for check in checks] == [*NAMES]
    measured = {check["name"]: (check["compared"], check["difference"]) for check in checks}
    assert measured["untouched"] == (67, 0.0)
    assert measured["resampled"][0] == 1
    assert 0 < measured["resampled"][1] < 1e-6
    assert measured["forward"] == (1, 0.0)
    assert measured["similarity"][0] == PATTERNS
    (suite,) = ET.parse(tmp_path / "checks.xml").getroot()
    assert suite.attrib == {"name": "posinterp verify", "tests": "9", "failures": "0", "errors": "0", "skipped": "0"}
    assert [case.attrib["name"] for case in suite] == [*NAMES]
    assert "67 tensors byte-equal" in suite[2][0].text  # type: ignore[operator]


def test_a_failure_as_junit_and_annotations(cli: Run, bad: Path, tmp_path: Path) -> None:
    done = cli("verify", bad, "--against", FIXTURE, "--junit", "checks.xml", env=IN_GITHUB)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"::error title=posinterp verify%3A resampled::{bad}: pos_embed is not bicubic, antialias")
    (suite,) = ET.parse(tmp_path / "checks.xml").getroot()
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "1")  # no recipe in the metadata
    (failure,) = suite.findall("testcase/failure")
    assert failure.attrib["message"].startswith("pos_embed is not bicubic")


def test_no_annotations_elsewhere(cli: Run, bad: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"}
    assert cli("verify", bad, "--against", FIXTURE, env=env).stderr == ""


def test_a_mistake_as_junit_and_annotation(cli: Run, good: Path, tmp_path: Path) -> None:
    done = cli("verify", good, "--against", "none.safetensors", "--junit", "checks.xml", env=IN_GITHUB)
    assert done.returncode == 2
    assert "::error title=posinterp verify%3A verify::" in done.stderr
    (suite,) = ET.parse(tmp_path / "checks.xml").getroot()
    assert suite.attrib["errors"] == "1"
    assert "there is no checkpoint at none.safetensors" in suite[0][0].attrib["message"]


def test_damage_is_a_failed_check(cli: Run, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "out")
    os.truncate(tmp_path / "out" / "model.safetensors", 100_000)
    done = cli("verify", "out", "--against", FIXTURE)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL  file ")


def test_a_junit_file_that_cannot_be_written_is_said(cli: Run, good: Path) -> None:
    done = cli("verify", good, "--against", FIXTURE, "--junit", "none/checks.xml")
    assert done.returncode == 2
    assert "none/checks.xml cannot be written" in done.stderr


def test_junit_holds_any_text() -> None:
    """Names and messages come from files of strangers."""
    text = 'a"b<c>&d\x00\x1b[31m\ud800\U0001f600\n'
    verdict = Verdict((Check("file", "fail", text), Check("loads", "pass", text), Check("forward", "skip", text)))
    xml = junit(text, verdict)
    (suite,) = ET.fromstring(xml.encode("utf-8"))
    assert [case.attrib["name"] for case in suite] == ["file", "loads", "forward"]
    assert suite[0][0].attrib["message"].startswith('a"b<c>&d??[31m?\U0001f600')
    assert suite[1][0].text == 'a"b<c>&d??[31m?\U0001f600\n'


# ------------------------------------------------------------------ similarity


def test_fail_under(cli: Run, good: Path) -> None:
    words = ("verify", good, "--against", FIXTURE, "--fail-under")
    assert cli(*words, "0.5").returncode == 0
    done = cli(*words, "0.99")
    assert done.returncode == 1
    assert "FAIL  similarity  cosine 0.8" in done.stdout
    done = cli(*words, "95")
    assert (done.returncode, "between -1 and 1" in done.stderr) == (2, True)


def test_what_cannot_be_measured_fails_a_threshold(good: Path) -> None:
    by_name = {check.name: check for check in verify(good, fail_under=0.5).checks}
    assert by_name["similarity"].status == "fail"
    assert by_name["similarity"].detail == "not measured, so not 0.5 or more: no --against: nothing to compare with"


def test_a_broken_table_is_less_like_the_source(good: Path, bad: Path) -> None:
    """What the number is for: it falls where the positions are wrong."""
    right, wrong = (verify(out, against=FIXTURE).checks[-1].difference for out in (good, bad))
    assert right is not None
    assert wrong is not None
    assert wrong > right + 0.1


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number, (suffix, mode) in enumerate([("png", "RGB"), ("jpg", "L"), ("webp", "RGB")]):
        shape = (40, 60) if mode == "L" else (40, 60, 3)
        Image.fromarray(draw.integers(0, 255, shape, dtype=np.uint8)).save(folder / f"{number}.{suffix}")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_images_of_a_folder(good: Path, photos: Path) -> None:
    check = verify(good, against=FIXTURE, images=photos).checks[-1]
    assert (check.status, check.compared) == ("pass", 3)
    assert "3 images" in check.detail


def test_folders_that_hold_no_images(good: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verify(good, against=FIXTURE, images=tmp_path / "none")
    with pytest.raises(BadUsage, match="holds no image"):
        verify(good, against=FIXTURE, images=tmp_path)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    with pytest.raises(BadFile, match=r"a\.png cannot be read as an image"):
        verify(good, against=FIXTURE, images=tmp_path)


def test_an_image_is_normalised_and_squeezed(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), (255, 0, 51)).save(tmp_path / "a.png")
    (draw,) = of_folder(tmp_path).draw
    pixels = draw(Size((6, 2)), 3, (0.5, 0.25, 0.2), (0.5, 0.5, 0.1))
    assert pixels.shape == (3, 6, 2)
    np.testing.assert_allclose(pixels[:, 3, 1], [1.0, -0.5, 0.0], atol=1e-6)


def test_a_pattern_is_the_same_at_every_size() -> None:
    """A larger one, averaged, is the smaller one; and it is as strong as a normalised image."""
    for draw in patterns().draw:
        small, large = (draw(Size((n, n)), 3, (), ()) for n in (32, 96))
        np.testing.assert_allclose(large.reshape(3, 32, 3, 32, 3).mean((2, 4)), small, atol=0.05)
        assert 0.5 < small.std() < 1.5


# ------------------------------------------------------------------ in pytest


def test_assert_resized(good: Path, bad: Path) -> None:
    assert_resized(FIXTURE, good, 56)
    assert_resized(FIXTURE, good)
    with pytest.raises(AssertionError, match="fail  resampled: pos_embed is not bicubic, antialias"):
        assert_resized(FIXTURE, bad, 56)
    with pytest.raises(AssertionError, match="it says 56, --img 112"):
        assert_resized(FIXTURE, good, 112)
    with pytest.raises(AssertionError, match="under 0.99"):
        assert_resized(FIXTURE, good, 56, fail_under=0.99)
    with pytest.raises(NotFound):
        assert_resized(FIXTURE, good / "none", 56)
