"""Executing a plan: the right bytes, nothing else touched, and at any moment the old output or the new one."""

from __future__ import annotations

import argparse
import errno
import fcntl
import filecmp
import hashlib
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import save, timm_config, vit

from posinterp import files, writing
from posinterp.errors import BadFile, BadUsage, BadValues, OutputExists, PosinterpError, WriteFailed
from posinterp.files import linked
from posinterp.planning import plan
from posinterp.store import open_checkpoint
from posinterp.store.tensors import read_bytes
from posinterp.version import VERSION
from posinterp.writing import Written, default_out, execute, resize

torch = pytest.importorskip("torch")
reference = pytest.importorskip("safetensors.torch")

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Tensors = dict[str, Any]


def tensors(dtype: Any = torch.float32, **more: Any) -> Tensors:
    """A tiny ViT of 14 × 14 places, in torch."""
    return {name: torch.tensor(value).to(dtype) for name, value in vit().items()} | more


def source(tmp_path: Path, state: Mapping[str, Any] | None = None, metadata: dict[str, str] | None = None) -> Path:
    path = tmp_path / "in" / "vit.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(reference.save(dict(state or tensors()), metadata))
    return path


def run(ckpt: Path, out: Path, img: int | tuple[int, int] = 384, *, overwrite: bool = False, **wishes: Any) -> Written:
    return execute(plan(ckpt, img, **wishes), out, overwrite=overwrite, sync=False)


def oracle(table: Any, new: tuple[int, int] = (24, 24), prefix: int = 1) -> Any:
    """timm's way with a table, in float64 and with torch's own kernel."""
    rows = table.double()[:, prefix:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
    out = torch.nn.functional.interpolate(rows, size=new, mode="bicubic", antialias=True)
    return torch.cat([table.double()[:, :prefix], out.flatten(2).transpose(1, 2)], 1)


def raw(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def state(path: Path) -> Tensors:
    return dict(reference.load_file(path))


def metadata(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found: dict[str, str] = header.get("__metadata__", {})
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@contextmanager
def untouched(*paths: Path) -> Iterator[None]:
    """Whatever happens inside, these files stay what they are: bytes, time, mode and inode."""

    def seen(path: Path) -> tuple[object, ...]:
        info = path.stat()
        return path.read_bytes(), info.st_mtime_ns, info.st_mode, info.st_ino, info.st_size

    before = [seen(path) for path in paths]
    yield
    assert [seen(path) for path in paths] == before


# ------------------------------------------------------------------ the bytes

ODD = {
    "step": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 3),
    "scale.f8": torch.ones(5).to(torch.float8_e4m3fn),
    "running.nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    "名前 \n": torch.arange(3, dtype=torch.int16),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_file_is_what_the_reference_writes(tmp_path: Path, dtype: str) -> None:
    before = tensors(DTYPES[dtype], **ODD)
    path, out = source(tmp_path, before), tmp_path / "out.safetensors"
    with untouched(path):
        assert run(path, out) == Written(out, ("out.safetensors",))
    after = state(out)
    assert after["pos_embed"].shape == (1, 577, 8)
    assert out.read_bytes() == reference.save({**before, "pos_embed": after["pos_embed"]}, metadata(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(384, 384), (160, 256)])
def test_the_table_is_resampled_in_float64_and_rounded_once(tmp_path: Path, dtype: str, size: tuple[int, int]) -> None:
    before = tensors(DTYPES[dtype])
    run(source(tmp_path, before), tmp_path / "out.safetensors", size)
    table = state(tmp_path / "out.safetensors")["pos_embed"]
    assert table.dtype == DTYPES[dtype]
    exact = oracle(before["pos_embed"], (size[0] // 16, size[1] // 16))
    if dtype == "BF16":  # torch rounds float64 twice on its way there
        assert (table.double() - exact).abs().max() <= exact.abs().max() / 256
        assert (table != exact.to(torch.bfloat16)).sum() <= 2
    else:
        near = exact.numpy().astype({"F16": "f2", "F32": "f4", "F64": "f8"}[dtype])
        off = np.abs(table.double().numpy() - near.astype(float))
        assert off.max() <= {"F16": 0, "F32": 1e-7, "F64": 1e-13}[dtype]


def test_prefix_rows_keep_every_bit(tmp_path: Path) -> None:
    before = vit(prefix=5, cls_token=1, reg_token=4)
    before["pos_embed"].view(np.uint32)[0, 0, :4] = [0x80000000, 1, 0x007FFFFF, 0x00800001]  # -0, subnormals
    save(tmp_path / "vit.safetensors", before)
    run(tmp_path / "vit.safetensors", tmp_path / "out.safetensors")
    table = state(tmp_path / "out.safetensors")["pos_embed"].numpy()
    assert table.shape == (1, 581, 8)
    assert table[:, :5].tobytes() == before["pos_embed"][:, :5].tobytes()


def test_wide_tables_are_resampled_in_slices(tmp_path: Path) -> None:
    before = {name: torch.tensor(value) for name, value in vit(width=300).items()}
    run(source(tmp_path, before), tmp_path / "out.safetensors")
    table = state(tmp_path / "out.safetensors")["pos_embed"].double()
    assert (table - oracle(before["pos_embed"])).abs().max() < 1e-6


def test_an_overshoot_in_half_precision_is_no_inf(tmp_path: Path) -> None:
    before = tensors(torch.float16)
    before["pos_embed"] = before["pos_embed"].sign() * 65504
    run(source(tmp_path, before), tmp_path / "out.safetensors")
    table = state(tmp_path / "out.safetensors")["pos_embed"]
    assert table.isfinite().all()
    assert table.abs().max() == 65504


def test_the_size_it_has_already_is_a_copy(tmp_path: Path) -> None:
    before = tensors(torch.bfloat16)
    path = source(tmp_path, before)
    run(path, tmp_path / "out.safetensors", 224)
    after = state(tmp_path / "out.safetensors")
    assert {name: raw(tensor) for name, tensor in after.items()} == {n: raw(tensor) for n, tensor in before.items()}


def test_a_new_patch_size_changes_kernel_and_table(tmp_path: Path) -> None:
    run(source(tmp_path), tmp_path / "out.safetensors", 256, patch=8)
    after = state(tmp_path / "out.safetensors")
    assert after["patch_embed.proj.weight"].shape == (8, 3, 8, 8)
    assert after["pos_embed"].shape == (1, 1 + 32 * 32, 8)
    made = json.loads(metadata(tmp_path / "out.safetensors")["posinterp"])
    assert made["patch"] == [8, 8]
    assert set(made["tensors"]) == {"pos_embed", "patch_embed.proj.weight"}


def test_metadata_is_kept_and_the_recipe_added(tmp_path: Path) -> None:
    path = source(tmp_path, metadata={"format": "pt", "ü": '"q"\n', "posinterp": "of an earlier run"})
    run(path, tmp_path / "out.safetensors", (384, 320))
    found = metadata(tmp_path / "out.safetensors")
    made = json.loads(found.pop("posinterp"))
    assert found == {"format": "pt", "ü": '"q"\n'}
    assert made == {
        "version": VERSION,
        "family": "vit",
        "from": [224, 224],
        "to": [384, 320],
        "tensors": {"pos_embed": "bicubic, antialias"},
        "source": f"sha256:{hashlib.sha256(raw(state(path)['pos_embed'])).hexdigest()}",
    }


def test_buffers_that_the_model_computes_are_left_out(tmp_path: Path) -> None:
    path = source(tmp_path, tensors(**{"rope.pos_embed": torch.ones(196, 4)}))
    run(path, tmp_path / "out.safetensors")
    assert state(tmp_path / "out.safetensors").keys() == tensors().keys()
    run(path, tmp_path / "out.pth")
    assert loaded(tmp_path / "out.pth").keys() == tensors().keys()


def test_bytes_that_are_copied_are_told(tmp_path: Path) -> None:
    moved: list[int] = []
    execute(plan(source(tmp_path), 384), tmp_path / "out.safetensors", sync=False, tick=moved.append)
    copied = sum(tensor.nbytes for name, tensor in tensors().items() if name != "pos_embed")
    assert sum(moved) == copied
    assert len(moved) <= 2  # neighbours go in one piece


@pytest.mark.parametrize("kernel", [True, False])
def test_both_ways_to_copy_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    path = source(tmp_path, tensors(**ODD))
    run(path, tmp_path / "fast.safetensors")
    if kernel:  # whatever falls on whatever
        monkeypatch.setattr(files, "PAGE", 1)
    else:
        monkeypatch.setattr(files, "_copy_file_range", lambda *_: 0)
    monkeypatch.setattr(files, "CHUNK", 1000)
    run(path, tmp_path / "slow.safetensors")
    assert filecmp.cmp(tmp_path / "fast.safetensors", tmp_path / "slow.safetensors", shallow=False)


@pytest.mark.parametrize("row", [0, 1, 100], ids=["class row", "first place", "a place"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_tables_that_are_not_finite_are_refused(tmp_path: Path, dtype: str, value: float, row: int) -> None:
    before = tensors(DTYPES[dtype])
    before["pos_embed"][0, row, 3] = value
    path = source(tmp_path, before)
    for out in ("out.safetensors", "out.pth", "out", "new/out.safetensors"):
        with pytest.raises(BadValues, match="pos_embed holds values that are not finite") as caught:
            run(path, tmp_path / out)
        assert caught.value.kind == "bad_values"
    assert listing(tmp_path) == ["in"]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_tables_that_are_not_finite_are_kept_when_allowed_and_said(tmp_path: Path, dtype: str, value: float) -> None:
    """NaN where the value has a weight and nowhere else, whatever the rest of its row and column."""
    before = tensors(DTYPES[dtype])
    run(source(tmp_path, before), tmp_path / "clean.safetensors")
    before["pos_embed"][0, 0, 1] = value  # the class row keeps every bit
    before["pos_embed"][0, 1 + 14 * 7 + 7, 3] = value
    path = source(tmp_path, before)
    written = execute(plan(path, 384), tmp_path / "out.safetensors", allow_nonfinite=True)
    after = state(tmp_path / "out.safetensors")["pos_embed"]
    odd = ~after[:, 1:].isfinite()[0].reshape(24, 24, -1)
    assert torch.equal(after[0, 0, :3].view(torch.uint8), before["pos_embed"][0, 0, :3].view(torch.uint8))
    assert odd.any(-1).sum() == odd[..., 3].sum()  # no other channel
    rows, columns = (odd[..., 3].any(axis).nonzero().flatten() for axis in (1, 0))
    assert (len(rows), len(columns)) == (rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)
    assert 1 <= len(rows) <= 8  # as far as a cubic kernel reaches
    assert odd.sum() == len(rows) * len(columns)
    assert written.notes == (
        f"pos_embed holds 2 values that are not finite, kept: {odd.sum() + 1} of the new one's are not",
    )
    right = state(tmp_path / "clean.safetensors")["pos_embed"]
    assert torch.equal(after[:, 1:][~odd.reshape(1, 576, -1)], right[:, 1:][~odd.reshape(1, 576, -1)])


# ------------------------------------------------------------------ where it goes


@pytest.fixture(params=["unnamed", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With O_TMPFILE, and as on file systems that have none."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    return str(request.param)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path, way: str, mask: int) -> None:
    path = source(tmp_path)
    with umask(mask):
        run(path, tmp_path / "out.safetensors")
        run(path, tmp_path / "out")
        run(path, tmp_path / "out.pth")
    assert mode(tmp_path / "out.safetensors") == 0o666 & ~mask
    assert mode(tmp_path / "out.pth") == 0o666 & ~mask
    assert mode(tmp_path / "out") == 0o777 & ~mask
    assert {mode(path) for path in (tmp_path / "out").iterdir()} == {0o666 & ~mask}


def test_a_replaced_file_keeps_its_mode(tmp_path: Path, way: str) -> None:
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"old")
    out.chmod(0o604)
    run(source(tmp_path), out, overwrite=True)
    assert mode(out) == 0o604
    assert state(out)["pos_embed"].shape == (1, 577, 8)


@pytest.mark.parametrize("name", ["out.safetensors", "out.pth"])
def test_an_output_that_exists_is_refused_and_stays(tmp_path: Path, way: str, name: str) -> None:
    (tmp_path / name).write_bytes(b"old")
    path = source(tmp_path)
    with untouched(path, tmp_path / name), pytest.raises(OutputExists) as caught:
        run(path, tmp_path / name)
    assert caught.value.message == f"{tmp_path / name} exists"
    assert "--force" in caught.value.hint
    assert listing(tmp_path) == sorted(["in", name])


def test_an_output_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.safetensors"
    plain = files.check_target

    def check(path: Path, *, overwrite: bool) -> Path:
        real = plain(path, overwrite=overwrite)
        path.write_bytes(b"somebody else's")  # after the look, before the write
        return real

    monkeypatch.setattr(writing, "check_target", check)
    with pytest.raises(OutputExists, match="exists"):
        run(source(tmp_path), out)
    assert out.read_bytes() == b"somebody else's"
    assert listing(tmp_path) == ["in", "out.safetensors"]


def test_in_place(tmp_path: Path, way: str) -> None:
    path = source(tmp_path)
    run(path, tmp_path / "aside.safetensors")
    with pytest.raises(OutputExists):
        run(path, path)
    run(path, path, overwrite=True)
    assert filecmp.cmp(path, tmp_path / "aside.safetensors", shallow=False)
    assert listing(path.parent) == ["vit.safetensors"]


def test_a_hard_link_of_the_input_leaves_the_other_name_alone(tmp_path: Path) -> None:
    path = source(tmp_path)
    out = tmp_path / "out.safetensors"
    os.link(path, out)
    with untouched(path):
        run(path, out, overwrite=True)
    assert state(out)["pos_embed"].shape == (1, 577, 8)


def test_a_link_as_output_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, out = tmp_path / "far" / "real.safetensors", tmp_path / "out.safetensors"
    target.write_bytes(b"old")
    out.symlink_to("far/real.safetensors")
    path = source(tmp_path)
    with pytest.raises(OutputExists), untouched(target):
        run(path, out)
    run(path, out, overwrite=True)
    assert out.is_symlink()
    assert state(target)["pos_embed"].shape == (1, 577, 8)
    assert listing(tmp_path / "far") == ["real.safetensors"]


def test_a_dangling_link_as_output_gets_its_target(tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").symlink_to("real.safetensors")
    run(source(tmp_path), tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").is_symlink()
    assert state(tmp_path / "real.safetensors")["pos_embed"].shape == (1, 577, 8)


def test_a_link_to_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out.safetensors").symlink_to("folder")
    with pytest.raises(OutputExists, match="is a folder"):
        run(source(tmp_path), tmp_path / "out.safetensors", overwrite=True)
    assert listing(tmp_path / "folder") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_pipes_and_devices_are_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    os.mkfifo(tmp_path / "out.safetensors")
    (tmp_path / "null.safetensors").symlink_to("/dev/null")
    for name in ("out.safetensors", "null.safetensors"):
        with pytest.raises(OutputExists, match="is not a regular file"):
            run(source(tmp_path), tmp_path / name, overwrite=overwrite)
    assert stat.S_ISFIFO((tmp_path / "out.safetensors").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_folder_with_the_name_of_a_file_stays_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputExists, match="exists and is not empty"):
        run(source(tmp_path), out)
    assert listing(out) == ["notes.txt"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExists, match="is a file"):
        run(source(tmp_path), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("name", ["new/deep/out.safetensors", "new/deep/out.pth", "new/deep/out"])
def test_missing_folders_are_made(tmp_path: Path, name: str) -> None:
    run(source(tmp_path), tmp_path / name)
    assert (tmp_path / name).exists()
    assert listing(tmp_path / "new" / "deep") == [Path(name).name]


@pytest.mark.parametrize("name", ["out.safetensors", "out.pth", "out"])
def test_a_place_that_takes_no_files_is_said(tmp_path: Path, name: str) -> None:
    path = source(tmp_path)
    places = [Path("/proc/self"), path]  # a file system without files of ours; a file as the folder
    if os.geteuid():
        (tmp_path / "read-only").mkdir(mode=0o555)
        places.append(tmp_path / "read-only")
    for place in places:
        with untouched(path), pytest.raises(WriteFailed, match="cannot be written: ") as caught:
            run(path, place / name)
        assert caught.value.kind == "write_failed"
        assert str(place / name) in caught.value.message


def test_a_format_that_is_not_known_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"\.onnx files are not written"):
        run(source(tmp_path), tmp_path / "out.onnx")
    assert listing(tmp_path) == ["in"]


def test_another_file_system(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK) or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system to write to")
    path = source(tmp_path, tensors(**ODD))
    run(path, tmp_path / "near.safetensors")
    far = shm / f"posinterp-test-{os.getpid()}"
    try:
        run(path, far / "far.safetensors")
        run(path, far / "folder")
        assert filecmp.cmp(tmp_path / "near.safetensors", far / "far.safetensors", shallow=False)
        assert listing(far) == ["far.safetensors", "folder"]
    finally:
        subprocess.run(["rm", "-r", str(far)], check=True)


@pytest.mark.parametrize("name", ["x" * 243 + ".safetensors", "weird \n ü'\".safetensors", "-o.safetensors", "x" * 255])
def test_odd_names(tmp_path: Path, way: str, name: str) -> None:
    run(source(tmp_path), tmp_path / name)
    run(source(tmp_path), tmp_path / name, overwrite=True)
    assert listing(tmp_path) == sorted(["in", name])


def test_four_runs_to_one_output_leave_one_file(tmp_path: Path, way: str) -> None:
    made = plan(source(tmp_path), 384)
    out = tmp_path / "out.safetensors"
    run(made.source.path, tmp_path / "alone.safetensors")
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(5):
                execute(made, out, overwrite=True, sync=False)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert listing(tmp_path) == ["alone.safetensors", "in", "out.safetensors"]
    assert filecmp.cmp(out, tmp_path / "alone.safetensors", shallow=False)


@pytest.mark.parametrize("name", ["out.safetensors", "out", "out.pth"])
@pytest.mark.parametrize("cut", [10, 450], ids=["what is copied", "the table"])
def test_a_source_that_shrinks_meanwhile_is_said(tmp_path: Path, way: str, name: str, cut: int) -> None:
    path = source(tmp_path, tensors(zz=torch.ones(100)))  # the last tensor of the file, behind the table
    made = plan(path, 384)
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(BadFile, match="too early: truncated, or changed while it was read"):
        execute(made, tmp_path / name, sync=False)
    assert listing(tmp_path) == ["in"]


# ------------------------------------------------------------------ folders


def folder(tmp_path: Path, name: str = "vit") -> Path:
    """A timm folder with other files beside the weights."""
    path = save(tmp_path / name, vit(), timm_config("test_vit", (224, 224)))
    (path / "README.md").write_text("# read me")
    (path / "labels.json").write_text('["a"]')
    return path


def test_a_folder_is_made_whole(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with untouched(*path.iterdir()):
        written = run(path, tmp_path / "out")
    assert written == Written(tmp_path / "out", ("model.safetensors", "config.json", "README.md", "labels.json"))
    assert listing(tmp_path / "out") == sorted(written.files)
    assert listing(tmp_path) == ["out", "vit"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_args"]["img_size"] == 384
    assert config["pretrained_cfg"]["input_size"] == [3, 384, 384]
    assert config["architecture"] == "test_vit"
    assert (tmp_path / "out" / "labels.json").read_text() == '["a"]'
    alone = tmp_path / "alone.safetensors"
    run(path, alone)
    assert filecmp.cmp(alone, tmp_path / "out" / "model.safetensors", shallow=False)


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run(folder(tmp_path), tmp_path / "out")
    assert len(listing(tmp_path / "out")) == 4
    assert listing(tmp_path) == ["out", "vit"]


def test_a_filled_folder_is_refused_and_with_overwrite_keeps_what_is_not_ours(tmp_path: Path) -> None:
    path, out = folder(tmp_path), tmp_path / "out"
    out.mkdir()
    for name in ("notes.txt", "model.safetensors", "config.json"):
        (out / name).write_text("mine")
    with untouched(*out.iterdir()), pytest.raises(OutputExists, match="exists and is not empty"):
        run(path, out)
    assert len(listing(out)) == 3
    with untouched(out / "notes.txt"):
        run(path, out, overwrite=True)
    assert listing(out) == ["README.md", "config.json", "labels.json", "model.safetensors", "notes.txt"]
    assert state(out / "model.safetensors")["pos_embed"].shape == (1, 577, 8)
    assert json.loads((out / "config.json").read_text())["model_args"]["img_size"] == 384


def test_a_folder_in_place(tmp_path: Path) -> None:
    path = folder(tmp_path)
    run(path, tmp_path / "aside")
    with untouched(path / "README.md"):
        run(path, path, overwrite=True)
    assert listing(path) == listing(tmp_path / "aside")
    assert not any(filecmp.cmpfiles(path, tmp_path / "aside", listing(path), shallow=False)[1:])


def test_weights_of_other_formats_are_left_out_and_said(tmp_path: Path) -> None:
    path = folder(tmp_path)
    stale = ["flax_model.msgpack", "model.onnx", "pytorch_model.bin", "tf_model.h5", "weights.pth"]
    for name in stale:
        (path / name).write_bytes(b"for the old size")
    (path / "onnx").mkdir()
    (path / ".git").mkdir()
    written = run(path, tmp_path / "out")
    assert sorted(written.left_out) == sorted([*stale, "onnx/"])
    assert listing(tmp_path / "out") == ["README.md", "config.json", "labels.json", "model.safetensors"]


def test_a_file_becomes_a_folder_with_the_usual_name(tmp_path: Path) -> None:
    assert run(source(tmp_path), tmp_path / "out").files == ("model.safetensors",)
    assert listing(tmp_path / "out") == ["model.safetensors"]


def sharded(tmp_path: Path) -> Path:
    path = tmp_path / "vit"
    path.mkdir()
    everything = tensors()
    first = {name: everything[name] for name in ("cls_token", "pos_embed", "norm.weight")}
    second = {name: tensor for name, tensor in everything.items() if name not in first}
    index: dict[str, Any] = {"metadata": {"total_size": 1, "total_parameters": 2}, "weight_map": {}}
    for shard, held in zip(SHARDS, (first, second), strict=True):
        (path / shard).write_bytes(reference.save(held, {"format": "pt"}))
        index["weight_map"] |= dict.fromkeys(held, shard)
    (path / INDEX).write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(timm_config("test_vit", (224, 224))))
    return path


def test_shards_stay_shards(tmp_path: Path) -> None:
    path, out = sharded(tmp_path), tmp_path / "out"
    written = run(path, out)
    assert listing(out) == sorted([*SHARDS, INDEX, "config.json"]) == sorted(written.files)
    before, after = ({n: t for shard in SHARDS for n, t in state(at / shard).items()} for at in (path, out))
    assert after["pos_embed"].shape == (1, 577, 8)
    assert {n: raw(t) for n, t in after.items() if n != "pos_embed"} == {
        n: raw(t) for n, t in before.items() if n != "pos_embed"
    }
    index, old = (json.loads((at / INDEX).read_text()) for at in (out, path))
    assert index["weight_map"] == old["weight_map"]
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in after.values()), "total_parameters": 2}
    for shard in SHARDS:
        held = state(out / shard)
        assert held.keys() == state(path / shard).keys()
        kept = metadata(out / shard)
        assert kept["format"] == "pt"
        # the reference writes metadata in no order
        assert any((out / shard).read_bytes() == reference.save(held, kept) for _ in range(64))
    assert json.loads(metadata(out / SHARDS[0])["posinterp"])["to"] == [384, 384]
    assert (out / SHARDS[1]).read_bytes() == (path / SHARDS[1]).read_bytes()  # nothing in it changes
    assert open_checkpoint(out).recipe["to"] == [384, 384]
    assert open_checkpoint(out).tensors.keys() == open_checkpoint(path).tensors.keys()


@pytest.mark.parametrize("place", ["out", "vit"], ids=["over another folder", "in place"])
def test_a_bad_table_in_the_last_shard_leaves_all_files_as_they_were(tmp_path: Path, place: str) -> None:
    path = tmp_path / "vit"
    path.mkdir()
    biases = [f"blocks.{i}.attn.rel_pos.relative_position_bias_table" for i in range(2)]
    held: list[Tensors] = [
        {biases[0]: torch.randn(27 * 27, 2), "patch_embed.proj.weight": torch.randn(8, 3, 16, 16)},
        {biases[1]: torch.full((27 * 27, 2), float("nan"))},
    ]
    for shard, some in zip(SHARDS, held, strict=True):
        (path / shard).write_bytes(reference.save(some))
    mapping = {name: shard for shard, some in zip(SHARDS, held, strict=True) for name in some}
    (path / INDEX).write_text(json.dumps({"weight_map": mapping}))
    out = tmp_path / place
    out.mkdir(exist_ok=True)
    for name in [*SHARDS, INDEX]:
        if not (out / name).exists():
            (out / name).write_text("old")
    with untouched(*out.iterdir()), pytest.raises(BadValues, match="not finite"):
        run(path, out, overwrite=True)
    assert listing(out) == sorted([*SHARDS, INDEX])


def test_a_shard_that_stays_can_share_its_blocks(tmp_path: Path) -> None:
    path, out = sharded(tmp_path), tmp_path / "out"
    execute(plan(path, 384), out, link=True)
    assert (out / SHARDS[1]).read_bytes() == (path / SHARDS[1]).read_bytes()
    same = os.path.samefile(out / SHARDS[1], path / SHARDS[1])
    assert same or cloned(path / SHARDS[1], tmp_path / "probe")
    assert not os.path.samefile(out / SHARDS[0], path / SHARDS[0])
    before = (path / SHARDS[1]).read_bytes()
    execute(plan(out, 224), out, overwrite=True)  # in place: a new file under the name, the source's stays
    assert (path / SHARDS[1]).read_bytes() == before
    assert open_checkpoint(out).recipe["to"] == [224, 224]


def cloned(source: Path, target: Path) -> bool:
    """Whether the file system here clones."""
    return linked(source, target) and not os.path.samefile(source, target)


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "another file system")

    path = sharded(tmp_path)
    monkeypatch.setattr("posinterp.writing.linked", lambda *_: False)
    execute(plan(path, 384), tmp_path / "out", link=True)
    assert not os.path.samefile(tmp_path / "out" / SHARDS[1], path / SHARDS[1])
    assert (tmp_path / "out" / SHARDS[1]).read_bytes() == (path / SHARDS[1]).read_bytes()
    monkeypatch.setattr("fcntl.ioctl", refused)
    monkeypatch.setattr("os.link", refused)
    assert not linked(path / SHARDS[1], tmp_path / "other")


def test_a_recipe_of_before_is_not_left_in_a_shard(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    held = state(path / SHARDS[1])
    (path / SHARDS[1]).write_bytes(reference.save(held, {"format": "pt", "posinterp": '{"to": [64, 64]}'}))
    run(path, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").recipe["to"] == [384, 384]
    assert json.loads(metadata(tmp_path / "out" / SHARDS[1])["posinterp"])["to"] == [384, 384]


def test_shards_become_one_file(tmp_path: Path) -> None:
    run(sharded(tmp_path), tmp_path / "out.safetensors")
    after = state(tmp_path / "out.safetensors")
    assert after.keys() == tensors().keys()
    assert raw(after["head.weight"]) == raw(tensors()["head.weight"])


# ------------------------------------------------------------------ pickles


def training(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """What a training script leaves: weights and their average, an optimizer, arguments."""
    weights: OrderedDict[str, Any] = OrderedDict(tensors())
    weights["head.bias"] = weights["norm.weight"]  # tied
    weights._metadata = OrderedDict({"": {"version": 1}, "norm": {"version": 2}})  # type: ignore[attr-defined]
    average = {name: tensor * 2 for name, tensor in tensors().items()}
    moments = {
        "state": {0: {"exp_avg": torch.ones(1, 197, 8), "step": 3}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    args = argparse.Namespace(lr=0.1, betas=(0.9, 0.99), model="test_vit", device=torch.device("cpu"))
    held = {"model": weights, "model_ema": average, "optimizer": moments, "args": args, "epoch": 7, "scaler": {}}
    path = tmp_path / "in" / "vit.pth"
    path.parent.mkdir(exist_ok=True)
    torch.save(held, path)
    return path, held


def loaded(path: Path) -> Any:
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


def test_a_pickle_keeps_everything_around_the_tables(tmp_path: Path, way: str) -> None:
    path, held = training(tmp_path)
    with untouched(path):
        written = run(path, tmp_path / "out.pth")
    assert written == Written(tmp_path / "out.pth", ("out.pth",), ("optimizer",))
    after = loaded(tmp_path / "out.pth")
    made = json.loads(after.pop("posinterp"))
    assert made["tensors"].keys() == {"model/pos_embed", "model_ema/pos_embed"}
    assert list(after) == ["model", "model_ema", "args", "epoch", "scaler"]
    assert (after["args"], after["epoch"], after["scaler"]) == (held["args"], 7, {})
    assert type(after["model"]) is OrderedDict
    assert type(after["model_ema"]) is dict
    assert after["model"]._metadata == held["model"]._metadata
    for branch in ("model", "model_ema"):
        assert list(after[branch]) == list(held[branch])
        near = oracle(held[branch]["pos_embed"])
        assert (after[branch]["pos_embed"].double() - near).abs().max() < 1e-6
        assert {n: raw(t) for n, t in after[branch].items() if n != "pos_embed"} == {
            n: raw(t) for n, t in held[branch].items() if n != "pos_embed"
        }
    tied = after["model"]["head.bias"], after["model"]["norm.weight"]
    assert tied[0].data_ptr() == tied[1].data_ptr()


def test_without_a_change_the_optimizer_stays(tmp_path: Path) -> None:
    path, _ = training(tmp_path)
    assert run(path, tmp_path / "out.pth", 224).left_out == ()
    assert "optimizer" in loaded(tmp_path / "out.pth")


def test_two_sets_of_weights_are_too_many_for_safetensors(tmp_path: Path) -> None:
    path, _ = training(tmp_path)
    for out in ("out.safetensors", "out"):
        with pytest.raises(BadUsage) as caught:
            run(path, tmp_path / out)
        assert "holds 2 sets of weights (model, model_ema)" in caught.value.message
        assert caught.value.hint == "name an output that ends in .pth to keep all of them"
    assert listing(tmp_path) == ["in"]


@pytest.mark.parametrize("out", ["out.safetensors", "out"])
def test_one_set_of_weights_becomes_safetensors(tmp_path: Path, out: str) -> None:
    path = tmp_path / "vit.pth"
    torch.save({"model": tensors(), "epoch": 3, "args": argparse.Namespace(lr=1)}, path)
    written = run(path, tmp_path / out)
    assert set(written.left_out) == {"epoch", "args"}
    made = tmp_path / out if out.endswith(".safetensors") else tmp_path / out / "model.safetensors"
    after = state(made)
    assert after.keys() == tensors().keys()
    assert raw(after["head.weight"]) == raw(tensors()["head.weight"])
    kept = metadata(made)
    assert kept["format"] == "pt"
    assert any(made.read_bytes() == reference.save(after, kept) for _ in range(64))


def test_a_bare_state_dict_stays_one(tmp_path: Path) -> None:
    strided = tensors()
    strided["head.weight"] = torch.randn(8, 10).T
    torch.save(strided, tmp_path / "vit.pth")
    run(tmp_path / "vit.pth", tmp_path / "out.pth")
    run(tmp_path / "vit.pth", tmp_path / "out.safetensors")
    after = loaded(tmp_path / "out.pth")
    assert list(after) == list(strided)  # no key that a strict load would not know
    assert after["pos_embed"].shape == (1, 577, 8)
    assert torch.equal(after["head.weight"], strided["head.weight"])
    assert torch.equal(state(tmp_path / "out.safetensors")["head.weight"], strided["head.weight"])


def test_safetensors_become_a_pickle(tmp_path: Path) -> None:
    run(source(tmp_path, tensors(torch.bfloat16, **ODD)), tmp_path / "out.pth")
    after = loaded(tmp_path / "out.pth")
    assert after.keys() == tensors(**ODD).keys()
    assert after["pos_embed"].dtype == torch.bfloat16
    assert all(raw(after[name]) == raw(tensor) for name, tensor in ODD.items())


def test_tied_weights_are_written_twice_where_nothing_can_tie_them(tmp_path: Path) -> None:
    path = tmp_path / "vit.pth"
    tied = tensors()
    tied["head.bias"] = tied["norm.weight"]
    torch.save(tied, path)
    run(path, tmp_path / "out.safetensors")
    after = state(tmp_path / "out.safetensors")
    assert raw(after["head.bias"]) == raw(after["norm.weight"]) == raw(tied["norm.weight"])


# ------------------------------------------------------------------ where it goes when nobody says


def test_beside_the_source_by_its_name_and_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path)
    assert default_out(plan(path, 384)) == tmp_path / "in" / "vit-384"
    assert default_out(plan(path, (384, 512))) == tmp_path / "in" / "vit-384x512"
    assert default_out(plan(path, 256, patch=8)) == tmp_path / "in" / "vit-256-patch8"
    monkeypatch.chdir(path.parent)
    assert default_out(plan("vit.safetensors", 384)) == Path("vit-384")


def test_beside_a_folder_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    assert default_out(plan(path, 384)) == tmp_path / "vit-384"
    assert default_out(plan(path / "model.safetensors", 384)) == path / "vit-384"
    monkeypatch.chdir(path)
    assert default_out(plan(".", 384)) == Path("../vit-384")
    monkeypatch.chdir(tmp_path)
    assert default_out(plan("vit", 384)) == Path("vit-384")
    assert default_out(plan("vit/", 384)) == Path("vit-384")


def test_a_pickle_with_more_than_one_set_of_weights_stays_a_pickle(tmp_path: Path) -> None:
    path, _ = training(tmp_path)
    assert default_out(plan(path, 384)) == tmp_path / "in" / "vit-384.pth"
    torch.save(tensors(), tmp_path / "bare.pth")
    assert default_out(plan(tmp_path / "bare.pth", 384)) == tmp_path / "bare-384"
    torch.save({"model": tensors()}, tmp_path / "nested.pth")
    assert default_out(plan(tmp_path / "nested.pth", 384)) == tmp_path / "nested-384"


def test_resize_is_plan_and_execute(tmp_path: Path) -> None:
    path = source(tmp_path)
    made = resize(path, 384, tmp_path / "out.safetensors", method="bilinear", antialias=False)
    assert str(made.method) == "bilinear"
    with pytest.raises(OutputExists):
        resize(path, 384, str(tmp_path / "out.safetensors"))
    resize(path, "256", str(tmp_path / "out.safetensors"), overwrite=True)
    assert state(tmp_path / "out.safetensors")["pos_embed"].shape == (1, 257, 8)


# ------------------------------------------------------------------ killed, stopped, full

BIG = 200_000_000
KILLS = int(os.environ.get("POSINTERP_KILLS", "10"))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT with 200 MB of weights that take a while to copy."""
    path = tmp_path_factory.mktemp("big") / "big.safetensors"
    small = reference.save(tensors(**{"a": torch.zeros(1, dtype=torch.uint8)}))
    length = int.from_bytes(small[:8], "little")
    header = json.loads(small[8 : 8 + length])
    header["a"] = {
        "dtype": "U8",
        "shape": [BIG],
        "data_offsets": [len(small) - 8 - length - 1, len(small) - 9 - length + BIG],
    }
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + small[8 + length : -1])
        block = np.random.default_rng(0).bytes(1 << 20)
        for start in range(0, BIG, 1 << 20):
            file.write(block[: BIG - start])
    return path


def command(path: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "posinterp", "resize", str(path), "--img", "384", "-o", str(out), "-q", *words]


def timed(big: Path, folder: Path) -> tuple[Path, float]:
    """A complete output, and how long it took."""
    whole = folder / "whole.safetensors"
    began = time.monotonic()
    subprocess.run(command(big, whole, "--no-fsync"), check=True, capture_output=True)
    return whole, time.monotonic() - began


def test_a_kill_leaves_the_old_output_or_the_new_one(big: Path, tmp_path: Path) -> None:
    whole, took = timed(big, tmp_path)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "x.safetensors"
    outcomes = []
    before = hashlib.sha256(big.read_bytes()).digest()
    for moment in range(KILLS):  # from the start to after the end: the first comes early however busy the machine was
        out.write_bytes(b"old")
        process = subprocess.Popen(command(big, out, "--force", "--no-fsync"), stderr=subprocess.PIPE)
        time.sleep(took * 1.1 * moment / (KILLS - 1))
        process.kill()
        process.communicate()
        assert listing(out.parent) == ["x.safetensors"]
        old = out.stat().st_size == 3
        assert old or filecmp.cmp(out, whole, shallow=False)
        outcomes.append(old)
    assert any(outcomes)
    assert hashlib.sha256(big.read_bytes()).digest() == before
    subprocess.run(command(big, out, "--force"), check=True, capture_output=True)
    assert filecmp.cmp(out, whole, shallow=False)


def test_what_killed_runs_left_goes_with_the_next_run_but_not_what_is_in_use(tmp_path: Path, way: str) -> None:
    """Both are old enough to have been left, and one is locked, as a run that goes on locks it."""
    path, out = source(tmp_path), tmp_path / "out"
    for name in (".posinterp-dead", ".posinterp-live", ".posinterp-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".posinterp-file").write_bytes(b"half")
    (tmp_path / ".posinterp-link").symlink_to(path)
    for name in (".posinterp-dead", ".posinterp-live", ".posinterp-file"):
        os.utime(tmp_path / name, (0, 0))
    live = os.open(tmp_path / ".posinterp-live", os.O_RDONLY)
    fcntl.flock(live, fcntl.LOCK_EX)
    with untouched(path):
        run(path, out)
    os.close(live)
    assert listing(tmp_path) == [".posinterp-link", ".posinterp-live", ".posinterp-new", "in", "out"]


STOPPED_IN = """
import os, signal, sys, time
from posinterp import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal: a background job starts with it ignored
plain = os.preadv
def stop(*args, **more):
    moved = plain(*args, **more)
    os.kill(os.getpid(), {signal})
    time.sleep(0.5)  # the handler ends this, or the thread that waits for it
    return moved
os.preadv = stop
{named}
sys.argv = ["posinterp", *{words!r}]
cli.main()
"""


@pytest.mark.parametrize("named", ["", "del os.O_TMPFILE"], ids=["unnamed", "named"])
@pytest.mark.parametrize("output", ["out.safetensors", "out"])
@pytest.mark.parametrize(("what", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_copying_leaves_nothing(
    tmp_path: Path, what: signal.Signals, code: int, output: str, named: str
) -> None:
    path = source(tmp_path)
    words = command(path, tmp_path / output)[3:]
    script = STOPPED_IN.format(signal=int(what), words=words, named=named)
    with untouched(path):
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert listing(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("output", "old"),
    [("out.safetensors", False), ("out.safetensors", True), ("out", False), ("out", True), ("out.pth", True)],
)
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, output: str, old: bool) -> None:
    path = source(tmp_path, tensors(weights=torch.ones(1_000_000)))
    out = tmp_path / output
    if old and output == "out":
        out.mkdir()
        (out / "model.safetensors").write_bytes(b"old")
    elif old:
        out.write_bytes(b"old")
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    words = command(path, out, *(["--force"] if old else []))[3:]
    script = limit + f"sys.argv = ['posinterp', *{words!r}]; from posinterp.cli import main; main()"
    with untouched(path):
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert len(ran.stderr.strip().splitlines()) == 1
    assert ran.stderr.startswith("error: ")
    assert "cannot be written: File too large" in ran.stderr
    assert listing(tmp_path) == (sorted(["in", output]) if old else ["in"])
    if old:
        kept = out / "model.safetensors" if output == "out" else out
        assert kept.read_bytes() == b"old"
        assert output != "out" or listing(out) == ["model.safetensors"]


def test_an_error_inside_leaves_nothing_and_is_not_dressed_up(tmp_path: Path, way: str) -> None:
    def fail() -> None:
        with files.replacing(tmp_path / "x", overwrite=False) as fd:
            os.write(fd, b"half")
            raise PosinterpError("stopped")

    with pytest.raises(PosinterpError, match="stopped"):
        fail()
    assert listing(tmp_path) == []


def test_reading_back_what_was_written(tmp_path: Path) -> None:
    run(source(tmp_path), tmp_path / "out.safetensors")
    again = plan(tmp_path / "out.safetensors", 224)
    assert again.src_img == (384, 384)
    assert len(read_bytes(again.source.tensors["pos_embed"])) == 577 * 8 * 4
