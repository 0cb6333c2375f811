"""Opening checkpoints: a file is what its bytes are, a folder is what the home libraries would load from it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import save, table, timm_config, vit

from posinterp.errors import BadConfig, BadFile, NotFound
from posinterp.store import Checkpoint, open_checkpoint
from posinterp.store.tensors import read_bytes

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Cli = Callable[..., "subprocess.CompletedProcess[str]"]

FIRST = {"cls_token": table((0, 0), 4, 1), "pos_embed": table((2, 2), 4, 1)}
SECOND = {"norm.weight": np.ones(4, np.float32), "head.weight": np.ones((3, 4), np.float16)}


def holds(opened: Checkpoint, tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether a checkpoint has exactly these names and bytes."""
    return opened.tensors.keys() == tensors.keys() and all(
        bytes(read_bytes(opened.tensors[name])) == tensor.tobytes() for name, tensor in tensors.items()
    )


def sharded(folder: Path, index: object = None) -> Path:
    """A folder of two shards and their index; another index if one is given, as JSON or as text."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / ONE, FIRST)
    save(folder / TWO, SECOND)
    if index is None:
        index = {"metadata": {"total_size": 1}, "weight_map": MAP}
    (folder / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return folder


MAP = {**dict.fromkeys(FIRST, ONE), **dict.fromkeys(SECOND, TWO)}


def refused(path: Path, *, error: type[Exception] = BadFile) -> Any:
    """The error of opening it, which must name it."""
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.message  # type: ignore[attr-defined]
    return caught.value


# ------------------------------------------------------------------ files


def test_a_safetensors_file_is_opened_without_a_config(tmp_path: Path) -> None:
    path = save(tmp_path / "vit.safetensors", vit())
    opened = open_checkpoint(path)
    assert holds(opened, vit())
    assert (opened.path, opened.label, opened.folder, opened.config) == (path, "vit", None, None)
    assert opened.files[0].metadata == {"format": "pt"}
    assert not opened.files[0].pickled


def test_the_config_beside_a_file_is_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "vit", vit(), timm_config("test_vit", (224, 224)))
    opened = open_checkpoint(folder / "model.safetensors")
    assert opened.config is not None
    assert opened.config.data["architecture"] == "test_vit"
    assert opened.label == "vit"  # every model.safetensors is called alike: its folder's name says more
    (folder / "config.json").write_text("{")
    assert open_checkpoint(folder / "model.safetensors").config is None  # no evidence, and no fault of the file


@pytest.mark.parametrize("name", ["x.pth", "x.bin", "x.ckpt", "x", "x.weights"])
def test_safetensors_under_another_name_is_read(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "x.safetensors", FIRST).rename(tmp_path / name)
    assert holds(open_checkpoint(path), FIRST)


@pytest.mark.parametrize("name", ["x.pth", "x.bin", "x.tar", "x"])
def test_a_torch_zip_is_read_under_any_other_name(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(tensor) for name, tensor in FIRST.items()}, tmp_path / name)
    opened = open_checkpoint(tmp_path / name)
    assert holds(opened, FIRST)
    assert opened.files[0].pickled


def test_a_torch_zip_under_the_name_of_safetensors_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({}, tmp_path / "x.safetensors")
    error = refused(tmp_path / "x.safetensors")
    assert "zip archive under the name of a safetensors file" in error.message
    assert ".pth" in error.hint


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin", ""])
@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (POINTER, "a Git LFS pointer, not the file itself", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>404</html>", "a web page", "download the file itself"),
        (b"<!doctype html><html>404</html>", "a web page", "download the file itself"),
        (b"<html><body>login</body></html>", "a web page", "download the file itself"),
        (b"\x89PNG\r\n\x1a\n" + bytes(60), "a picture", ""),
        (b"\xff\xd8\xff\xe0" + bytes(60), "a picture", ""),
        (gzip.compress(b"weights", mtime=0), "a gzip archive", "unpack it first"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file", "convert it to safetensors"),
        (b"\x93NUMPY\x01\x00" + bytes(60), "a single numpy array", ""),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path: Path, content: bytes, what: str, hint: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    error = refused(path)
    assert f"{path} is {what}" in error.message
    assert error.message.endswith(", not a checkpoint")
    assert hint in (error.hint or "")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ""])
@pytest.mark.parametrize("content", [b"", b"abc"])
def test_next_to_nothing_is_truncated(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    message = refused(path).message
    assert f"{len(content)} bytes" in message
    assert "empty or truncated" in message


@pytest.mark.parametrize("name", ["missing.safetensors", "no/such/folder", "missing.pth"])
def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path / name, error=NotFound)
    assert error.message == f"there is no checkpoint at {tmp_path / name}"
    assert error.hint.startswith("a checkpoint is a file, a folder, hf-hub:ORG/NAME, or a timm model name")
    assert error.kind == "not_found"


def test_a_name_that_no_path_can_have_is_not_found() -> None:
    for name in ("/tmp/a\0b.pth", "/" + "x" * 5000 + ".pth"):
        with pytest.raises(NotFound, match="there is no checkpoint at"):
            open_checkpoint(name)


def test_a_dangling_link_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").symlink_to("nowhere")
    refused(tmp_path / "x.safetensors", error=NotFound)


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    save(tmp_path / "blob", FIRST)
    (tmp_path / "x.safetensors").symlink_to("blob")
    assert holds(open_checkpoint(tmp_path / "x.safetensors"), FIRST)


@pytest.mark.parametrize("command", [("inspect",), ("resize", "--img", "384", "-o", "out")])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, cli: Cli, command: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in ("pipe.safetensors", "/dev/null", "/dev/zero"):
        ran = cli(command[0], path, *command[1:], timeout=30)
        assert ran.returncode == 2
        assert f"{path} is not a regular file" in ran.stderr
        assert "Traceback" not in ran.stderr
    assert not (tmp_path / "out").exists()


def test_a_pipe_in_a_folder_is_no_weights(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "model.safetensors")
    ran = cli("inspect", "folder", timeout=30)
    assert ran.returncode == 2
    assert "folder has no weights" in ran.stderr


# ------------------------------------------------------------------ folders


def test_a_folder_is_its_weights_and_its_config(tmp_path: Path) -> None:
    folder = save(tmp_path / "vit", vit(), timm_config("test_vit", (224, 224)))
    opened = open_checkpoint(folder)
    assert holds(opened, vit())
    assert (opened.folder, opened.label, opened.index) == (folder, "vit", None)
    assert opened.config is not None
    assert opened.config.data["pretrained_cfg"]["input_size"] == [3, 224, 224]


def test_the_label_is_the_folders_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "vit", vit(), {})
    monkeypatch.chdir(folder)
    assert open_checkpoint(".").label == "vit"
    assert open_checkpoint("model.safetensors").label == "vit"


@pytest.mark.parametrize(
    "first", ["model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin"]
)
def test_the_weights_that_home_libraries_look_for_come_first(tmp_path: Path, first: str) -> None:
    order = ["model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin"]
    for name in [*order[order.index(first) :], "a.safetensors", "b.safetensors", "z.pth"]:
        save(tmp_path / "x.safetensors", FIRST if name == first else SECOND).rename(tmp_path / name)
    assert holds(open_checkpoint(tmp_path), FIRST)


@pytest.mark.parametrize("other", ["pytorch_model.bin", "b.pth", "optimizer.pt", "README.md", "tokenizer.json"])
def test_the_only_safetensors_file_is_taken_whatever_its_name(tmp_path: Path, other: str) -> None:
    name = "model.safetensors" if other == "pytorch_model.bin" else "vit_b.safetensors"
    save(tmp_path / name, FIRST)
    (tmp_path / other).write_bytes(b"never opened")
    assert holds(open_checkpoint(tmp_path), FIRST)


def test_the_only_pickle_is_taken(tmp_path: Path) -> None:
    save(tmp_path / "x.safetensors", FIRST).rename(tmp_path / "vit.pth")
    (tmp_path / "README.md").write_text("#")
    assert holds(open_checkpoint(tmp_path), FIRST)


def test_a_folder_of_several_files_asks_which(tmp_path: Path) -> None:
    for name in "edcba":
        save(tmp_path / f"{name}.safetensors", FIRST)
    error = refused(tmp_path)
    assert "holds 5 files of weights: a.safetensors, b.safetensors, c.safetensors, d.safetensors ..." in error.message
    assert error.hint == "name the one you mean"


@pytest.mark.parametrize(
    ("names", "held"), [([], "it is empty"), (["README.md", "a.txt"], "it holds README.md, a.txt")]
)
def test_a_folder_without_weights_says_what_it_holds(tmp_path: Path, names: list[str], held: str) -> None:
    for name in names:
        (tmp_path / name).write_text("x")
    (tmp_path / "checkpoint").mkdir()
    error = refused(tmp_path)
    assert f"has no weights: {held}" in error.message
    assert "looked for model.safetensors, model.safetensors.index.json" in error.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid config.json"),
        ("[]", "a JSON object was expected, not a list"),
        ('"vit"', "a JSON object was expected, not a str"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"image_size": ' + "1" * 5000 + "}", "invalid config.json"),
        ("[" * 100_000, "nested too deeply"),
        ("\ufeff{}", "invalid config.json"),
    ],
)
def test_a_folders_config_that_cannot_be_read_is_said(tmp_path: Path, text: str, message: str) -> None:
    save(tmp_path / "model.safetensors", FIRST)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadConfig) as caught:
        open_checkpoint(tmp_path)
    assert f"{tmp_path / 'config.json'}: " in caught.value.message
    assert message in caught.value.message


# ------------------------------------------------------------------ shards


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    opened = open_checkpoint(sharded(tmp_path / "vit"))
    assert holds(opened, FIRST | SECOND)
    assert opened.index == tmp_path / "vit" / INDEX
    assert [file.path.name for file in opened.files] == [ONE, TWO]
    assert opened.label == "vit"


def test_shards_that_are_links_out_of_the_folder_are_read(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "snapshots" / "abc")
    (tmp_path / "blobs").mkdir()
    for name in (ONE, TWO, INDEX):
        (folder / name).rename(tmp_path / "blobs" / f"sha-{name}")
        (folder / name).symlink_to(f"../../blobs/sha-{name}")
    opened = open_checkpoint(folder)
    assert holds(opened, FIRST | SECOND)
    assert [file.path.name for file in opened.files] == [ONE, TWO]  # what an output's files are called after


def test_shards_of_pickles_are_read(tmp_path: Path) -> None:
    names = {ONE: "pytorch_model-00001-of-00002.bin", TWO: "pytorch_model-00002-of-00002.bin"}
    sharded(tmp_path, {"weight_map": {name: names[shard] for name, shard in MAP.items()}})
    for old, new in names.items():
        (tmp_path / old).rename(tmp_path / new)
    (tmp_path / INDEX).rename(tmp_path / "pytorch_model.bin.index.json")
    assert holds(open_checkpoint(tmp_path), FIRST | SECOND)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).unlink()
    with pytest.raises(BadFile) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.message == f"{tmp_path / INDEX}: shard {TWO!r} is missing from the folder"


def index_error(folder: Path, index: object) -> str:
    with pytest.raises(BadFile) as caught:
        open_checkpoint(sharded(folder, index))
    assert str(folder / INDEX) in caught.value.message
    assert len(caught.value.message) < len(str(folder)) + 300
    return str(caught.value.message)


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "sub/x.safetensors", "/etc/hostname", "..", ".", "", "a\\b", "a\0b"]
)
def test_a_shard_is_a_plain_file_name(tmp_path: Path, shard: str) -> None:
    save(tmp_path / "outside.safetensors", FIRST)
    (tmp_path / "vit" / "sub").mkdir(parents=True)
    save(tmp_path / "vit" / "sub" / "x.safetensors", FIRST)
    message = index_error(tmp_path / "vit", {"weight_map": MAP | dict.fromkeys(FIRST, shard)})
    assert f"shard {shard!r} lies outside the folder" in message


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (MAP | {"nobody.weight": TWO}, "tensor 'nobody.weight' is not in that shard"),
        (MAP | {"pos_embed": TWO}, "tensor 'pos_embed' is in that shard but not listed there"),
        ({k: v for k, v in MAP.items() if k != "head.weight"}, "'head.weight' is in that shard but not listed there"),
    ],
)
def test_index_and_shards_must_agree(tmp_path: Path, mapping: dict[str, str], message: str) -> None:
    assert message in index_error(tmp_path, {"weight_map": mapping})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": {"a', "invalid index"),
        ("", "invalid index"),
        ("[1, 2]", "a JSON object was expected, not a list"),
        ("3", "a JSON object was expected, not a int"),
        ("{}", "weight_map should name a file for each tensor"),
        ({"weight_map": {}}, "weight_map should name a file for each tensor"),
        ({"weight_map": [ONE]}, "weight_map should name a file for each tensor"),
        ({"weight_map": {"pos_embed": 3}}, "weight_map should name a file for each tensor"),
        ({"weight_map": {"pos_embed": None}}, "weight_map should name a file for each tensor"),
        ('{"weight_map": ' + "[" * 100_000, "nested too deeply"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "duplicate key 'a'"),
    ],
)
def test_a_bad_index_is_said(tmp_path: Path, index: object, message: str) -> None:
    assert message in index_error(tmp_path, index)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / TWO).write_bytes((folder / TWO).read_bytes()[:-1])
    with pytest.raises(BadFile, match=f"{TWO} is truncated"):
        open_checkpoint(folder)
