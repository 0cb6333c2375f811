"""Torch's dtypes, storages and tensors, as a pickle names them: byte ranges of the file, checked against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFile, Unsupported
from .checks import need, numbers, shown, whole
from .tensors import BITS, TensorInfo

MAX_BROADCAST = 1 << 28  # bytes of a tensor that repeats its storage (stride 0)

DTYPES: dict[str, str | None] = {
    "torch.uint8": "U8", "torch.int8": "I8", "torch.int16": "I16", "torch.int32": "I32", "torch.int64": "I64",
    "torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64", "torch.float16": "F16", "torch.bool": "BOOL",
    "torch.bfloat16": "BF16", "torch.float32": "F32", "torch.float64": "F64", "torch.complex64": "C64",
    "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2", "torch.float8_e8m0fnu": "F8_E8M0",
    "torch.float8_e4m3fnuz": "F8_E4M3FNUZ", "torch.float8_e5m2fnuz": "F8_E5M2FNUZ", "torch.complex32": None,
    "torch.complex128": None, "torch.qint8": None, "torch.quint8": None, "torch.qint32": None,
}  # fmt: skip

STORAGES: dict[str, str | None] = {
    "torch.FloatStorage": "F32", "torch.DoubleStorage": "F64", "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16", "torch.LongStorage": "I64", "torch.IntStorage": "I32", "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8", "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
    "torch.ComplexFloatStorage": "C64", "torch.storage.UntypedStorage": "U8", "torch.ComplexDoubleStorage": None,
    "torch.QInt8Storage": None, "torch.QUInt8Storage": None, "torch.QInt32Storage": None,
    "torch.QUInt4x2Storage": None, "torch.QUInt2x4Storage": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TorchName:
    """A value that only torch has: `torch.bfloat16`, or `torch.device` with args ("cuda", 0)."""

    name: str
    args: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes that tensors are views of."""

    file: Path
    dtype: str
    start: int
    nbytes: int


class Storages:
    """The storages of a file, each a record of its zip, or a stretch of an older file."""

    def __init__(self, file: Path, members: Mapping[str, tuple[int, int]]) -> None:
        self._file, self._members = file, members
        self._seen: dict[str, Storage] = {}

    def find(self, kind: str, key: str, numel: int) -> Storage:
        """The record `key` as a storage of a class, once its size agrees."""
        dtype = storage_dtype(kind)
        record = shown(f"data/{key}")
        if f"data/{key}" not in self._members:
            raise BadFile(f"is corrupt: the record {record} of a tensor is missing")
        start, nbytes = self._members[f"data/{key}"]
        if nbytes != numel * BITS[dtype] // 8:
            raise BadFile(f"is corrupt: record {record} has {nbytes} bytes, its storage {numel} numbers of {dtype}")
        storage = Storage(self._file, dtype, start, nbytes)
        if self._seen.setdefault(key, storage) != storage:
            raise BadFile(f"reads record {record} as two dtypes: corrupt or hostile")
        return storage


def storage_dtype(kind: str) -> str:
    """The dtype of a class of storages. Raises Unsupported for one that cannot be copied."""
    dtype = STORAGES[kind]
    if dtype is None:
        raise Unsupported(f"holds tensors of {kind}, which cannot be copied", hint="convert them to floats")
    return dtype


def torch_device(kind: Any, index: Any = None) -> TorchName:
    need(type(kind) is str and (index is None or whole(index)), "a device")
    return TorchName("torch.device", (kind,) if index is None else (kind, index))


def rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_: object, dtype: str | None = None) -> TensorInfo:
    """A tensor without a name yet. The name is its place, and one tensor may stand in several."""
    need(type(storage) is Storage and whole(offset), "a tensor with a negative offset or no storage")
    shape, strides = numbers(shape, "a tensor's shape"), numbers(strides, "a tensor's strides")
    need(len(shape) == len(strides), "a tensor's strides")
    dtype = dtype or storage.dtype
    width = BITS[dtype] // 8
    if 0 in shape:
        return TensorInfo("", dtype, shape, storage.file, storage.start)
    strides = tuple(0 if n == 1 else step for n, step in zip(shape, strides, strict=True))
    extent = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if (offset + extent) * width > storage.nbytes:
        end = (offset + extent) * width
        raise BadFile(f"is corrupt: a tensor is out of bounds, its last byte is {end} of {storage.nbytes}")
    if math.prod(shape) * width > max(storage.nbytes, MAX_BROADCAST):
        raise BadFile(f"repeats {storage.nbytes} bytes over a tensor of shape {shape}: too large")
    packed = strides == _packed(shape)
    start = storage.start + offset * width
    return TensorInfo("", dtype, shape, storage.file, start, extent * width, None if packed else strides)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, 0 where there is nothing to step over."""
    return tuple(0 if n == 1 else math.prod(shape[axis + 1 :]) for axis, n in enumerate(shape))


def rebuild_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, bits: Any = None
) -> TensorInfo:
    if bits:  # torch's lazy conj() and neg(): the bytes are not the values
        raise Unsupported("holds a tensor with a lazy conjugate or minus", hint="save tensor.resolve_conj() instead")
    return rebuild(storage, offset, shape, strides)


def rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, bits: Any = None
) -> TensorInfo:
    """Newer dtypes: the storage is bytes, strides and offset count elements."""
    need(type(dtype) is TorchName and dtype.name in DTYPES and not bits, "a tensor's dtype")
    known = DTYPES[dtype.name]
    if known is None:
        raise Unsupported(f"holds a tensor of {dtype.name}, which cannot be copied", hint="convert it to floats")
    return rebuild(storage, offset, shape, strides, dtype=known)


def parameter(tensor: Any, *_: object) -> TensorInfo:
    need(isinstance(tensor, TensorInfo), "a parameter")
    return tensor  # type: ignore[no-any-return]
