"""Reading the header of a safetensors file, and making one as the reference serializer would.

Format: 8 bytes of header length (little-endian), the header as JSON, then the tensors' bytes without a gap
(huggingface/safetensors, README and safetensors/src/tensor.rs).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import BadFile
from . import strict_json
from .tensors import BITS, TensorInfo, byte_size, read_range

LONGEST_HEADER = 100_000_000  # the reference reader's limit, in bytes
PIECE = 1 << 20  # bytes of a long header that are looked at before it is read as a whole
RANK = {dtype: rank for rank, dtype in enumerate(BITS)}


def read_header(path: Path) -> tuple[list[TensorInfo], dict[str, str]]:
    """Every tensor of the file, and its metadata. No tensor is read.

    Raises BadFile if the reference reader would refuse the file, or if two readers would read it differently.
    """
    size = path.stat().st_size
    if size < 8:
        raise BadFile(f"{path} has {size} bytes: empty or truncated, no safetensors file is that small")
    length = int.from_bytes(read_range(path, 0, 8), "little")
    if length > LONGEST_HEADER or length == 0:
        raise BadFile(f"{path} is no safetensors file: its header length would be {length} bytes")
    if 8 + length > size:
        raise BadFile(f"{path} is truncated: its header ends at byte {8 + length}, the file at {size}")
    _check_text(path, length)
    try:
        header = strict_json.loads(read_range(path, 8, length))
    except strict_json.NotStrict as error:
        raise BadFile(f"{path}: invalid safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise BadFile(f"{path}: invalid safetensors header: a JSON object was expected")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadFile(f"{path}: invalid safetensors header: a value of its metadata is not a string")
    infos = [_entry(path, name, entry, 8 + length) for name, entry in header.items()]
    _contiguous(path, infos, 8 + length, size)
    return infos, metadata


def _check_text(path: Path, length: int) -> None:
    """Raises BadFile for a long header of zero bytes: a file of holes may claim one, and has none of it on the disk."""
    for start in range(0, length, PIECE) if length > PIECE else ():
        if b"\0" in read_range(path, 8 + start, min(PIECE, length - start)):
            raise BadFile(f"{path}: invalid safetensors header: it holds zero bytes, a JSON object was expected")


def _entry(path: Path, name: str, entry: object, data: int) -> TensorInfo:
    """One tensor's entry, every field of the kind and size it must have."""
    where = f"{path}: invalid safetensors header: tensor {name[:80]!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise BadFile(f"{where} has not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise BadFile(f"{where} has the unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape):
        raise BadFile(f"{where} has an invalid shape: natural numbers were expected")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadFile(f"{where} has invalid data_offsets: two ascending offsets were expected")
    nbytes = offsets[1] - offsets[0]
    if math.prod(shape) * BITS[dtype] != nbytes * 8:  # in bits: nine 4-bit floats have no whole number of bytes
        raise BadFile(f"{where} of shape {shape} and dtype {dtype} has not the size of its {nbytes} bytes")
    return TensorInfo(name, dtype, tuple(shape), path, data + offsets[0], nbytes)


def _naturals(value: object) -> bool:
    """A list of numbers that 64 bits hold; True is no number."""
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value
    )


def _contiguous(path: Path, infos: Iterable[TensorInfo], start: int, size: int) -> None:
    end = start
    for info in sorted(infos, key=lambda info: (info.start, info.nbytes)):
        if info.start != end:
            what = "overlaps another" if info.start < end else "leaves a gap before it"
            raise BadFile(f"{path}: invalid offset: tensor {info.name[:80]!r} {what}")
        end = info.start + info.nbytes
    if end > size:
        raise BadFile(f"{path} is truncated: its tensors end at byte {end}, the file at {size}")
    if end < size:
        raise BadFile(f"{path} has {size - end} trailing bytes after its last tensor")


def canonical(infos: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Tensors in the order in which the reference serializer writes them: widest dtype first, then by name."""
    return sorted(infos, key=lambda info: (-RANK[info.dtype], info.name))


def make_header(infos: Iterable[TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """Length and header for tensors in canonical order, byte for byte as `safetensors.save_file` writes them."""
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for info in infos:
        end = offset + byte_size(info.dtype, info.shape)
        header[info.name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw
