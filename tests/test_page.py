"""The report on one page: what is on it, that nothing gets out of it or into it, and that a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURE, ROOT, load, save, vit
from PIL import Image
from safetensors.numpy import save_file

import posinterp
from posinterp.errors import BadFile, BadUsage, NotFound, Unsupported
from posinterp.page import Page, make_page
from posinterp.verification import verify
from posinterp.verification.accuracy import accuracies, read_labelled

Run = Callable[..., "subprocess.CompletedProcess[str]"]
VOID = {"meta", "link", "img"}


class Reader(HTMLParser):
    """Text, attributes and tags of a page; fails where a tag is left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += f"{data}\n"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 of the fixture's test images: as many of each class."""
    path = tmp_path_factory.mktemp("data") / "some.npz"
    with np.load(ROOT / "fixtures" / "fashion-test.npz") as held:
        np.savez(path, images=held["images"][::10], labels=held["labels"][::10])
    return path


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "fashion-vit-56"
    posinterp.resize(FIXTURE, 56, out)
    return out


@pytest.fixture(scope="module")
def page(resized: Path, labelled: Path) -> Page:
    return make_page(resized, FIXTURE, accuracy=labelled)


# ------------------------------------------------------------------ what is on it


def test_all_of_it_is_there(page: Page, resized: Path) -> None:
    read = Reader(page.html)
    for text in (
        "vit · 28 → 56 · patch 4 · bicubic, antialias",
        "verified",
        "1×50×128 → 1×197×128",
        "1 prefix + 7×7 → 14×14",
        "67 other tensors copied",
        "pretrained_cfg.input_size",
        "[1, 56, 56]",
        '"pos_embed": "bicubic, antialias"',
        "of 200 images",
    ):
        assert text in read.text.replace("Of 200", "of 200"), text
    for check in posinterp.verify(resized, against=FIXTURE).checks:
        assert check.detail in read.text
    assert page.verdict.ok
    assert page.figures == ("resize", "components")
    assert read.tags.count("img") == 2


def test_it_stands_alone(page: Page) -> None:
    read = Reader(page.html)
    assert all(link.startswith("data:") for link in read.links)
    assert not {"script", "iframe", "object", "form"} & set(read.tags)
    assert "url(" not in page.html
    assert "@import" not in page.html
    assert "default-src 'none'" in page.html
    assert "prefers-color-scheme: dark" in page.html
    assert "@media print" in page.html


def test_the_images_are_the_figures(page: Page) -> None:
    import base64
    import io

    for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page.html):
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            assert image.size[0] > 1000
            assert np.asarray(image.convert("L")).std() > 20
            assert image.info["Description"].startswith("pos_embed 1×50×128 of fashion-vit")


def test_a_failed_check_is_on_it(tmp_path: Path, resized: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(resized, broken)
    tensors = load(broken)
    tensors["pos_embed"][0, 5] += 1
    save_file(tensors, broken / "model.safetensors")
    page = make_page(broken, FIXTURE)
    assert not page.verdict.ok
    text = Reader(page.html).text
    assert "not verified" in text
    assert "FAIL" in text
    assert "The file does not say how it was made." in text


# ------------------------------------------------------------------ strangers' names


def hostile(folder: Path, address: str) -> tuple[Path, Path]:
    """A source and a result that say all that a stranger could."""
    script = f'<script src="{address}/a.js"></script>'
    image = f"\"'><img src={address}/b.png onerror=alert(1)>"
    tensors = vit((4, 4))
    source = save(folder / "source.safetensors", {**tensors, script: np.ones(2, np.float32)})
    made = {**tensors, "pos_embed": np.ones((1, 65, 8), np.float32), image: np.ones(2, np.float32)}
    recipe = {"version": "0.1.0", "family": "vit", "from": [64, 64], "to": [128, 128], "tensors": {script: image}}
    recipe |= {"</pre>" + script: "\x1b]0;title\x07"}
    metadata = {"format": "pt", "posinterp": json.dumps(recipe)}
    out = folder / "<b onclick=x>&amp;"
    out.mkdir()
    save_file(made, out / "model.safetensors", metadata=metadata)
    return out, source


def test_names_are_text_only(tmp_path: Path) -> None:
    out, source = hostile(tmp_path, "http://127.0.0.1:9")
    page = make_page(out, source)
    read = Reader(page.html)
    assert not page.verdict.ok
    assert not {"script", "b"} & set(read.tags)
    assert read.tags.count("img") == len(page.figures)
    assert "<script" in read.text
    assert "\x1b" not in page.html


# ------------------------------------------------------------------ accuracy


def test_accuracy_is_the_fixtures_own(resized: Path, labelled: Path) -> None:
    import timm
    import torch

    case = verify(resized, against=FIXTURE).case
    assert case is not None
    before, after = accuracies(case, read_labelled(labelled))
    assert (before.of, str(before.size), str(after.size)) == (200, "28", "56")
    with np.load(labelled) as held:
        pixels = torch.from_numpy(held["images"].astype(np.float32))[:, None] / 255
        labels = torch.from_numpy(held["labels"].astype(np.int64))
    with torch.no_grad():
        model = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()
        logits = model((pixels - 0.286041) / 0.353024)
        assert before.right == int((logits.argmax(1) == labels).sum())
        larger = timm.create_model(f"local-dir:{resized}", pretrained=True).eval()
        squeezed = torch.nn.functional.interpolate(pixels, (56, 56), mode="bicubic").clamp(0, 1)
        right = int((larger((squeezed - 0.286041) / 0.353024).argmax(1) == labels).sum())
    assert abs(after.right - right) <= 6  # PIL rounds to bytes, and its cubic is another
    assert 0.5 < after.share < before.share
    assert before.error == pytest.approx((before.share * (1 - before.share) / 200) ** 0.5)


def test_folders_of_classes_are_the_same_images(tmp_path: Path, labelled: Path) -> None:
    with np.load(labelled) as held:
        images, labels = held["images"], held["labels"]
    for n, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        place = tmp_path / "data" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{n:03}.png")
    (tmp_path / "data" / "notes.txt").write_text("no class")
    found, own = read_labelled(tmp_path / "data"), read_labelled(labelled)
    assert sorted(found.labels) == sorted(own.labels)
    order = sorted(range(200), key=lambda n: (labels[n], n))
    how = (posinterp.Size((28, 28)), 1, (0.5,), (0.5,))
    for ours, n in zip(found.draw, order, strict=True):
        np.testing.assert_array_equal(ours(*how), own.draw[n](*how))


def test_what_is_no_labelled_data_is_said(tmp_path: Path, resized: Path) -> None:
    with pytest.raises(NotFound):
        read_labelled(tmp_path / "no.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadUsage, match="no folder of images"):
        read_labelled(tmp_path / "empty")
    for name, arrays in {
        "a": {"images": np.zeros((2, 4, 4), np.uint8)},
        "b": {"images": np.zeros((2, 4, 4), np.float32), "labels": np.zeros(2, np.int64)},
        "c": {"images": np.zeros((2, 4, 4), np.uint8), "labels": np.zeros(3, np.int64)},
        "d": {"images": np.array([{}], dtype=object), "labels": np.zeros(1, np.int64)},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(BadFile):
            read_labelled(tmp_path / f"{name}.npz")
    (tmp_path / "e.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(BadFile):
        read_labelled(tmp_path / "e.npz")
    np.savez(tmp_path / "many.npz", images=np.zeros((1, 28, 28), np.uint8), labels=np.array([10]))
    case = verify(resized, against=FIXTURE).case
    assert case is not None
    with pytest.raises(Unsupported, match="tells 10 classes apart, and many.npz has class 10"):
        accuracies(case, read_labelled(tmp_path / "many.npz"))


# ------------------------------------------------------------------ the command


def test_the_command(cli: Run, resized: Path) -> None:
    words = ("report", resized, "--against", FIXTURE, "-o", "page.html")
    done = cli(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("verified: 9 checks pass\nwrote page.html\n")
    assert (cli(*words).returncode, cli(*words[:-1], "page.pdf").returncode) == (2, 2)
    answer = json.loads(cli(*words, "--force", "--json").stdout)
    assert (answer["ok"], answer["output"], answer["figures"]) == (True, "page.html", ["resize", "components"])


def test_a_source_that_is_not_there_is_a_sentence(cli: Run, resized: Path) -> None:
    done = cli("report", resized, "--against", "nothing.safetensors", "-o", "page.html")
    assert (done.returncode, "there is no checkpoint at nothing.safetensors" in done.stderr) == (2, True)


# ------------------------------------------------------------------ a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OWN = re.compile(r"https?://([\w.-]+\.)?(google|googleapis|gstatic)\.com/")  # what it asks by itself
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


def shown(path: Path, place: Path) -> tuple[list[str], list[str], np.ndarray]:
    """What a page says on the console, what it asks of the network, and a picture of it."""
    log = place / "net.json"
    picture = place / "page.png"
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={place / 'profile'}", f"--log-net-log={log}"]
    command += ["--enable-logging=stderr", "--window-size=1000,3000", f"--screenshot={picture}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    asked = [url for url in re.findall(r'"url":"(\w+://[^"]*)', log.read_text("utf-8")) if not OWN.match(url)]
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return console, [url for url in asked if url.startswith(("http", "ws", "ftp"))], pixels


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_shows_it(tmp_path: Path, page: Page) -> None:
    (tmp_path / "page.html").write_text(page.html, "utf-8")
    console, asked, pixels = shown(tmp_path / "page.html", tmp_path)
    assert (console, asked) == ([], [])
    yellow = (np.abs(pixels - [253, 231, 37]).max(-1) < 8).mean()
    assert yellow > 1e-3, "the figure is not there"
    assert (pixels.reshape(-1, 3) == pixels[0, 0]).all(-1).mean() > 0.2  # the paper


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_asks_for_nothing_that_a_stranger_names(tmp_path: Path) -> None:
    out, source = hostile(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "page.html").write_text(make_page(out, source).html, "utf-8")
    console, asked, _ = shown(tmp_path / "page.html", tmp_path)
    assert (console, asked) == ([], [])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_the_browser_would_tell(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>nothing()</script>')
    console, asked, _ = shown(tmp_path / "page.html", tmp_path)
    assert any("nothing is not defined" in line for line in console)
    assert set(asked) == {"http://127.0.0.1:9/x.png"}
