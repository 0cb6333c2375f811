"""Torch's .pth files, read without torch and without running anything that they ask for.

A .pth is a zip (torch_zip.py) around a pickle of the nested object. The pickle is read by Python's own unpickler,
cut down to the instructions that plain data needs (unpickler.py) and to a closed table of names (pickle_names.py).
Tensors become byte ranges of the file (torch_tensors.py), named by their place (pickle_tree.py); their values are
not read. Files from before torch 1.6 are read the same way (torch_legacy.py).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadFile, PosinterpError, Unsupported
from .checks import RESAVE
from .pickle_tree import TreeNames
from .tensors import TensorInfo, Tree
from .torch_legacy import BEGINNING, read_legacy
from .torch_tensors import Storages, TorchName
from .torch_zip import BoundedFile, read_members
from .unpickler import Unpickler

__all__ = ["PickleFile", "TorchName", "read_pickle"]

MAX_PICKLE = 1 << 25  # bytes; a ViT-L's has 54 000


@dataclass(frozen=True)
class PickleFile:
    """A checkpoint's nested object, with a TensorInfo for each tensor, and the same tensors by unique name."""

    path: Path
    tree: Tree
    tensors: dict[str, TensorInfo]


def read_pickle(path: Path) -> PickleFile:
    """Read the layout of a file that torch.save wrote.

    Raises BadFile for a file that is damaged, hostile or not torch's, Unsupported for one that holds tensors of a
    kind that cannot be copied as bytes.
    """
    try:
        with BoundedFile(path) as file:
            head = file.read(512)
            if len(head) < 4:
                raise BadFile(f"is empty or truncated: it has {len(head)} bytes")
            if head.startswith(b"PK\x03\x04"):
                return _read_zip(file, path)
            if head.startswith(BEGINNING):
                return _copied(read_legacy(file, path, MAX_PICKLE), path)
        found, hint = _looks_like(head)
        raise BadFile(f"is neither a torch zip nor in torch's older formats: it looks like {found}", hint=hint)
    except PosinterpError as error:
        raise type(error)(f"{path} {error.message}", hint=error.hint) from None


def _looks_like(head: bytes) -> tuple[str, str | None]:
    """What a file that torch did not write is, by its first bytes, and what to do about it."""
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file itself", "fetch it with: git lfs pull"
    if head.lstrip()[:1] == b"<":
        return "a web page", "the download went wrong: fetch the file itself, not its page"
    if head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")):
        return "a picture", None
    if head[8:9] == b"{":
        return "safetensors", "give it the suffix .safetensors"
    if head[257:262] == b"ustar":
        return "a tar, as torch 0.1 wrote, which cannot be read safely", RESAVE
    if head[:1] == b"\x80":
        return "a bare Python pickle, which is refused unread: nothing was executed", RESAVE
    return f"bytes {head[:8].hex(' ')}", None


def _read_zip(file: BoundedFile, path: Path) -> PickleFile:
    members = read_members(file)
    start, nbytes = members["data.pkl"]
    if nbytes > MAX_PICKLE:
        raise BadFile(f"has a pickle of {nbytes} bytes; at most {MAX_PICKLE} are read")
    if "byteorder" in members and file.at(members["byteorder"][0], min(members["byteorder"][1], 7)) != b"little":
        raise Unsupported("was written on a big-endian machine", hint="load it with torch and save it again")
    unpickler = Unpickler(io.BytesIO(file.at(start, nbytes)), Storages(path, members))
    unpickler.value = unpickler.read_all()
    return _copied(unpickler, path)


def _copied(unpickler: Unpickler, path: Path) -> PickleFile:
    unpickler.budget.narrow()
    names = TreeNames(unpickler.budget)
    return PickleFile(path, names.copy(unpickler.value), names.tensors)
