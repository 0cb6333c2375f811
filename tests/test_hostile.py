"""Files that claim what they have not: refused in a sentence, soon, and in little memory."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import save, vit

CLAIM = 10 << 30  # bytes
MEMORY = 100 << 20
SECONDS = 2.0


def safetensors(path: Path, header: object, *, length: int | None = None, size: int | None = None) -> Path:
    """A file with this header; `size`: with a hole up to there, which takes no place on the disk."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
    if size is not None:
        os.truncate(path, size)
    return path


def entry(nbytes: int, start: int = 0) -> dict[str, object]:
    return {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [start, start + nbytes]}


def header_of_ten_gigabytes(place: Path) -> Path:
    return safetensors(place / "x.safetensors", {}, length=CLAIM, size=CLAIM + 8)


def header_of_holes(place: Path) -> Path:
    return safetensors(place / "x.safetensors", {}, length=99_999_999, size=CLAIM)


def tensor_past_the_end(place: Path) -> Path:
    return safetensors(place / "x.safetensors", {"pos_embed": entry(CLAIM)})


def tensor_that_overlaps(place: Path) -> Path:
    header = {"pos_embed": entry(CLAIM), "head.weight": entry(CLAIM, 4)}
    return safetensors(place / "x.safetensors", header, size=CLAIM + 1000)


def table_of_ten_gigabytes(place: Path) -> Path:
    """Nothing is wrong with the file, but that no model has such a table."""
    rows = CLAIM // 4 // 1024
    shape = {"dtype": "F32", "shape": [1, rows, 1024], "data_offsets": [0, rows * 4096]}
    path = safetensors(place / "x.safetensors", {"pos_embed": shape})
    os.truncate(path, path.stat().st_size + rows * 4096)
    return path


def config_of_ten_gigabytes(place: Path) -> Path:
    save(place / "x", vit(), {})
    os.truncate(place / "x" / "config.json", CLAIM)
    return place / "x"


def index_of_ten_gigabytes(place: Path) -> Path:
    (place / "x").mkdir()
    (place / "x" / "model.safetensors.index.json").touch()
    os.truncate(place / "x" / "model.safetensors.index.json", CLAIM)
    return place / "x"


def zipped(path: Path, body: bytes, record: bytes = b"", *, compressed: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", body)
        file.writestr("x/version", "3\n")
        if compressed:
            with file.open(zipfile.ZipInfo("x/data/0"), "w", force_zip64=True) as member:
                for _ in range(compressed >> 20):
                    member.write(bytes(1 << 20))
        else:
            file.writestr("x/data/0", record)
    return path


def tensor_pickle(count: int) -> bytes:
    """The pickle of {"pos_embed": a tensor of so many floats}, by hand."""

    def text(word: str) -> bytes:
        return b"X" + struct.pack("<I", len(word)) + word.encode()

    number = pickle.dumps(count, 2)[2:-1]
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number + b"tQ"
    arguments = b"(" + storage + b"K\x00" + number + b"\x85" + b"K\x01\x85" + b"\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02}" + text("pos_embed") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def storage_of_ten_gigabytes(place: Path) -> Path:
    return zipped(place / "x.pth", tensor_pickle(CLAIM // 4), bytes(64))


def string_of_four_gigabytes(place: Path) -> Path:
    return zipped(place / "x.pth", b"\x80\x02X\xff\xff\xff\xffabc.")


def memo_of_four_billions(place: Path) -> Path:
    return zipped(place / "x.pth", b"\x80\x02}r\xff\xff\xff\x7f.")


def bomb(place: Path) -> Path:
    path = place / "x.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("x/data.pkl", bytes(200 << 20))
    raw = path.read_bytes()
    old, new = struct.pack("<I", 200 << 20), struct.pack("<I", (4 << 30) - 2)
    path.write_bytes(raw.replace(old, new))
    return path


def legacy_storage_of_ten_gigabytes(place: Path) -> Path:
    """As torch wrote before 1.6: pickles one behind the other, then each storage's length and bytes."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    system = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    body = tensor_pickle(CLAIM // 4).replace(b"tQ", b"NtQ")
    (place / "x.pth").write_bytes(magic + system + body + pickle.dumps(["0"], 2) + struct.pack("<q", CLAIM // 4))
    return place / "x.pth"


HOSTILE: list[Callable[[Path], Path]] = [
    header_of_ten_gigabytes, header_of_holes, tensor_past_the_end, tensor_that_overlaps, table_of_ten_gigabytes,
    config_of_ten_gigabytes, index_of_ten_gigabytes, storage_of_ten_gigabytes, string_of_four_gigabytes,
    memo_of_four_billions, bomb, legacy_storage_of_ten_gigabytes,
]  # fmt: skip
MEASURED = """
import json, re, sys, time
sys.argv[0] = "posinterp"
from posinterp import cli
began, code = time.monotonic(), None
try:
    cli.main()
except SystemExit as end:
    code = end.code
sys.stdout.flush()
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10  # since exec, unlike ru_maxrss
json.dump([code, peak, time.monotonic() - began], open("measured", "w"))
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is told by /proc")


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_a_file_that_claims_ten_gigabytes(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    before = sorted(path.parent.rglob("*"))
    words = ["resize", str(path), "--img", "384", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    code, peak, seconds = json.loads((tmp_path / "measured").read_text())
    (tmp_path / "measured").unlink()
    assert code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert sorted(path.parent.rglob("*")) == before
    assert peak < MEMORY
    assert seconds < SECONDS


def test_the_measure_can_fail(tmp_path: Path) -> None:
    """Memory that is taken is seen."""
    taken = MEASURED.replace("    cli.main()\n", "    x = bytearray(150 << 20); x[::4096] = bytes(len(x) >> 12)\n")
    subprocess.run([sys.executable, "-c", taken], check=True, cwd=tmp_path)
    assert json.loads((tmp_path / "measured").read_text())[1] > MEMORY
