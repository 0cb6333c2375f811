"""Files from before torch 1.6 (and of `_use_new_zipfile_serialization=False`): pickles, then the storages' bytes.

One behind the other stand a magic number, the version of the protocol, facts on the machine, the nested object, and the
keys of its storages; then, in the order of the keys, each storage's length (8 bytes) and its numbers
(torch/serialization.py, `_legacy_save`). Where a storage starts is known only when the object has been read, so that
it is read twice.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

from ..errors import BadFile, Unsupported
from .checks import shown
from .tensors import BITS
from .torch_tensors import Storage, Storages, storage_dtype
from .torch_zip import BoundedFile
from .unpickler import Unpickler

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
BEGINNING = pickle.dumps(MAGIC, protocol=2)
USUAL = 1 << 20  # bytes in which the pickles of nearly every checkpoint end


class _Claimed(Storages):
    """Storages as the object claims them, before it is known where they are."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, {})
        self.claimed: dict[str, tuple[int, int]] = {}

    def find(self, kind: str, key: str, numel: int) -> Storage:
        dtype = storage_dtype(kind)
        claim = (numel, numel * BITS[dtype] // 8)
        if self.claimed.setdefault(key, claim) != claim:
            raise BadFile(f"reads storage {shown(key)} as two dtypes or sizes: corrupt or hostile")
        return Storage(self._file, dtype, 0, claim[1])


def read_legacy(file: BoundedFile, path: Path, most: int) -> Unpickler:
    """The file's object, as the `value` of the unpickler that read it. At most so many bytes of pickles are read."""
    size = os.fstat(file.fileno()).st_size
    for limit in (USUAL, most):
        stream = io.BytesIO(file.at(0, min(limit, size)))
        try:
            return _read(file, path, stream, size)
        except BadFile:
            if stream.read(1) or limit == most or size <= limit:
                raise
    raise AssertionError  # the last limit returns or raises


def _read(file: BoundedFile, path: Path, stream: io.BytesIO, size: int) -> Unpickler:
    first = _Claimed(path)
    unpickler = Unpickler(stream, first)
    _check_head([unpickler.read_all() for _ in range(3)])
    start = stream.tell()
    unpickler.read_all()
    keys = unpickler.read_all()
    if type(keys) is not list or not all(type(key) is str for key in keys) or {*keys} != first.claimed.keys():
        raise BadFile("is corrupt: the list of its storages is not of those that its tensors are in")
    places = _places(file, stream.tell(), keys, first.claimed, size)
    stream.seek(start)
    again = Unpickler(stream, Storages(path, places))
    again.value = again.read_all()
    return again


def _check_head(head: list[Any]) -> None:
    magic, protocol, machine = head
    if magic != MAGIC or protocol != PROTOCOL or type(machine) is not dict:
        raise BadFile("is in torch's format from before 1.6, and corrupt: its first pickles are not torch's")
    if machine.get("little_endian") is not True:
        raise Unsupported("was written on a big-endian machine", hint="load it with torch and save it again")


def _places(
    file: BoundedFile, at: int, keys: list[str], claimed: dict[str, tuple[int, int]], size: int
) -> dict[str, tuple[int, int]]:
    """Start and size of each storage, by the name that it would have in a zip."""
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        numel, nbytes = claimed[key]
        if at + 8 + nbytes > size:
            raise BadFile(
                f"is truncated: storage {shown(key)} of {nbytes} bytes starts at {at}, the file ends at {size}"
            )
        if int.from_bytes(file.at(at, 8), "little", signed=True) != numel or f"data/{key}" in places:
            raise BadFile(f"is corrupt: storage {shown(key)} has another length than its tensors say")
        places[f"data/{key}"] = (at + 8, nbytes)
        at += 8 + nbytes
    return places
