"""Torch's .pth files, read without torch and without running anything that they ask for.

A .pth is a zip (torch_zip.py) around a pickle of the nested object. The pickle is read by Python's own unpickler,
cut down to the instructions that plain data needs (unpickler.py) and to a closed table of names (pickle_names.py).
Tensors become byte ranges of the file (torch_tensors.py), named by their place (pickle_tree.py); their values are
not read. Only files from before torch 1.6 need torch.
"""

from __future__ import annotations

import argparse
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFile, PosinterpError, Unsupported
from .checks import RESAVE, shown
from .pickle_tree import TreeNames, no_foreign
from .tensors import TensorInfo, Tree
from .torch_tensors import DTYPES, Storages, TorchName, torch_device
from .torch_zip import BoundedFile, read_members
from .unpickler import Unpickler

__all__ = ["PickleFile", "TorchName", "read_pickle"]

MAX_PICKLE = 1 << 27  # bytes

LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # how torch before 1.6 begins its files


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
        if head.startswith(LEGACY):
            return _read_legacy(path)
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
    unpickler = Unpickler(file.at(start, nbytes), Storages(path, members))
    loaded = unpickler.read_all()
    unpickler.budget.narrow()
    names = TreeNames(no_foreign, unpickler.budget)
    return PickleFile(path, names.copy(loaded), names.tensors)


def _read_legacy(path: Path) -> PickleFile:
    """A file of the format before torch 1.6, whose tensors have no offsets: torch reads it, into memory."""
    try:
        import torch  # seconds: only these files pay for it
    except ImportError:
        hint = "pip install torch, or load it elsewhere and torch.save it again"
        raise Unsupported("is in torch's format from before 1.6, which only torch can read", hint=hint) from None
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)  # explicit: the environment can't undo it
    except MemoryError:
        raise
    except Exception as error:  # torch has no type of its own for bad files
        asked = re.search(r"GLOBAL (\S+)", str(error))
        why = f"asks for {shown(asked[1])}" if asked else shown(f"{type(error).__name__}: {error}".splitlines()[0])
        message = f"is in torch's format from before 1.6, corrupt or unsafe, and torch refused it: {why}"
        raise BadFile(message, hint=RESAVE) from None
    names = TreeNames(lambda value: _from_torch(value, path))
    return PickleFile(path, names.copy(loaded), names.tensors)


def _from_torch(value: Any, path: Path) -> Any:
    """One of torch's own values as ours."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _in_memory(value.detach(), path)
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.dtype):
        return TorchName(str(value))
    if isinstance(value, torch.device):
        return torch_device(value.type, value.index)
    return no_foreign(value)


def _in_memory(tensor: Any, path: Path) -> TensorInfo:
    import torch

    dtype = DTYPES.get(str(tensor.dtype))
    if dtype is None or tensor.layout != torch.strided:
        raise Unsupported(f"holds a tensor of {tensor.dtype} and {tensor.layout}, which cannot be copied")
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # reshape would keep the odd stride of a single element
    raw = flat.view(torch.uint8).numpy()  # bytes, since numpy has no bfloat16
    return TensorInfo("", dtype, tuple(tensor.shape), path, 0, raw.nbytes, None, memoryview(raw))
