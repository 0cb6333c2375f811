"""What is fuzzed: each target takes any bytes, and raises only where there is a fault in the package.

`test_fuzz.py` calls them from hypothesis, `fuzz_atheris.py` from a fuzzer that is led by coverage; both replay
`seeds/`, where every input that once crashed stays.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from conftest import CLIP, clip, save, timm_config, vit
from safetensors import SafetensorError, deserialize

from posinterp.config import edited, source_sizes
from posinterp.errors import BadFile, PosinterpError
from posinterp.files import temporary_name
from posinterp.layout import Layout
from posinterp.planning import Wish, plan
from posinterp.rules import rule_of
from posinterp.size import Size, as_size
from posinterp.store import Checkpoint, open_checkpoint
from posinterp.store.pickle import read_pickle
from posinterp.store.safetensors import canonical, make_header, read_header
from posinterp.store.tensors import read_bytes
from posinterp.verification.claims import check_file, check_recipe
from posinterp.verification.preparation import NotUnderstood, prepare
from posinterp.verification.settings import check_config
from posinterp.writing import execute

PLACE = Path(tempfile.mkdtemp(prefix="posinterp-fuzz-"))
SEEDS = Path(__file__).parent / "seeds"


@contextlib.contextmanager
def _stored(data: bytes, suffix: str) -> Iterator[Path]:
    path = PLACE / (temporary_name() + suffix)
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink()


def header(data: bytes) -> None:
    """The bytes of a safetensors file: refused in a sentence, or read as the reference does, and written again."""
    with _stored(data, ".safetensors") as path:
        try:
            infos, metadata = read_header(path)
        except BadFile:
            return
        values = {info.name: bytes(read_bytes(info)) for info in infos}
        try:
            known = {name: bytes(entry["data"]) for name, entry in deserialize(data)}
        except SafetensorError as error:
            raise AssertionError(f"read, though the reference refuses it: {error}") from None
        assert values == known
        ordered = canonical(infos)
        again = make_header(ordered, metadata) + b"".join(values[info.name] for info in ordered)
        assert {name: bytes(entry["data"]) for name, entry in deserialize(again)} == known


def pickled(data: bytes) -> None:
    """The pickle of a .pth, in a zip and by itself: refused in a sentence, or read as plain data."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("x/data.pkl", data)
        file.writestr("x/data/0", bytes(64))
        file.writestr("x/version", "3\n")
    for raw in (stream.getvalue(), data):
        with _stored(raw, ".pth") as path:
            try:
                found = read_pickle(path)
            except PosinterpError:
                continue
            for info in found.tensors.values():
                read_bytes(info)


def layout(data: bytes) -> None:
    """A layout, a rule and a size as text: refused in a sentence, or a layout that takes apart what it puts together."""
    text = data.decode("utf-8", "replace")
    for parse in (rule_of, as_size, Size.parse):
        with contextlib.suppress(PosinterpError):
            parse(text)
    try:
        found = Layout(text)
    except PosinterpError:
        return
    assert Layout(str(found)) == found
    sides = dict.fromkeys(found.grid_axes, 2)
    shape = [int(np.prod([sides.get(letter, 4 if letter in "uv" else 3) for letter in axis])) for axis in found.axes]
    shape = [1 if axis == ("1",) else n for axis, n in zip(found.axes, shape, strict=True)]
    if len(shape) > 8 or np.prod(shape) > 1e6:
        return
    tensor = np.arange(np.prod(shape)).reshape(shape)
    try:
        parts = found.split(tensor, sides)
        assert (found.join(parts, shape, sides) == tensor).all()
    except PosinterpError:
        pass


def _folder(name: str, tensors: dict[str, np.ndarray], config: dict[str, Any]) -> Path:
    folder = PLACE / name
    return folder if folder.exists() else save(folder, tensors, config)


def config(data: bytes) -> None:
    """A config.json, an index, a preprocessor: refused in a sentence, or rewritten such that it says the new size."""
    for name, folder, other in _places():
        with _replaced(folder / name, data):
            try:
                source = open_checkpoint(folder)
            except PosinterpError:
                continue
            _planned(source)
            _checked(source, open_checkpoint(other))


def _places() -> list[tuple[str, Path, Path]]:
    """A file of a folder, the folder, and another one to hold it against."""
    timm = _folder("timm", vit((4, 4)), timm_config("vit_tiny_patch16_224", (64, 64)))
    hf = _folder("clip", clip(), CLIP)
    shards = PLACE / "shards"
    if not shards.exists():
        save(shards, vit((4, 4)), timm_config("vit_tiny_patch16_224", (64, 64)))
        (shards / "model.safetensors").rename(shards / "a.safetensors")
    return [
        ("config.json", timm, timm),
        ("config.json", hf, hf),
        ("preprocessor_config.json", hf, hf),
        ("model.safetensors.index.json", shards, timm),
    ]


def _planned(source: Checkpoint) -> None:
    try:
        made = plan(source, 96)
        if source.index is not None:
            execute(made, PLACE / "out", sync=False)
            shutil.rmtree(PLACE / "out")
    except PosinterpError:
        return
    if source.config is not None:
        after = edited(source.config, made.config)
        said = {edit.path: edit.after for edit in made.config}
        assert json.loads(json.dumps(after)) == after
        assert "model_args.img_size" not in said or after["model_args"]["img_size"] == said["model_args.img_size"]
        list(source_sizes(type(source.config)(source.config.path, after)))


def _checked(out: Checkpoint, other: Checkpoint) -> None:
    """What verify says of configs, before any library is asked."""
    for source in (None, other):
        for asked in (None, Size((96, 96))):
            with contextlib.suppress(PosinterpError, NotUnderstood):
                case = prepare(out, source, asked, Wish(), None, None)
                for check in (check_file, check_recipe, check_config):
                    check(case)


@contextlib.contextmanager
def _replaced(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "pickled": pickled,
    "layout": layout,
    "config": config,
}


def clean() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
