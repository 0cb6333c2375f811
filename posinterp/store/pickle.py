"""Torch's .pth files, read without torch and without running anything that they ask for.

A .pth is a zip: `data.pkl`, a pickle of the nested object, and one stored member `data/<key>` for each storage
(torch/serialization.py, `_save`). The pickle is read by Python's own unpickler, cut down to the instructions that
plain data needs and to a closed table of names (compare torch/_weights_only_unpickler.py). No name is ever imported:
each stands for a few lines below. Tensors become byte ranges of the file; their values are not read.

Messages are predicates, since the file is always the subject; `read_pickle` puts its path in front.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import pickle
import re
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import BadFile, PosinterpError, Unsupported
from .tensors import BITS, TensorInfo, Tree

MAX_DIRECTORY = 1 << 25  # bytes of a zip's directory: 400 000 members
MAX_PICKLE = 1 << 27
MAX_STEPS = 3_000_000  # instructions run and things copied: 50 000 tensors, and under 1 GB whatever they are
MAX_DEPTH = 100  # containers inside one another
MAX_DIMS = 32
MAX_BROADCAST = 1 << 28  # bytes of a tensor that repeats its storage (stride 0)

LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # how torch before 1.6 begins its files

RESAVE = (
    "if you trust where it comes from, load it where its code is installed, "
    "torch.load(path, weights_only=False), and torch.save only the state dict"
)


@dataclass(frozen=True, slots=True)
class TorchName:
    """A value that only torch has: `torch.bfloat16`, or `torch.device` with args ("cuda", 0)."""

    name: str
    args: tuple[str | int, ...] = ()


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
        with _File(path) as file:
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


# ---------------------------------------------------------------------------------------------- the zip


class _File(io.FileIO):
    """The file, which gives zipfile no more than a directory's worth at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_DIRECTORY:
            raise BadFile(f"claims a zip directory of {size} bytes: corrupt or hostile")
        return super().read(size) or b""

    def at(self, start: int, nbytes: int) -> bytes:
        part = os.pread(self.fileno(), nbytes, start)
        if len(part) < nbytes:
            raise BadFile(f"is corrupt or truncated: it ends inside the {nbytes} bytes at {start}")
        return part


def _read_zip(file: _File, path: Path) -> PickleFile:
    members = _members(file)
    start, nbytes = members["data.pkl"]
    if nbytes > MAX_PICKLE:
        raise BadFile(f"has a pickle of {nbytes} bytes; at most {MAX_PICKLE} are read")
    if "byteorder" in members and file.at(members["byteorder"][0], min(members["byteorder"][1], 7)) != b"little":
        raise Unsupported("was written on a big-endian machine", hint="load it with torch and save it again")
    unpickler = _Unpickler(file.at(start, nbytes), path, members)
    loaded = unpickler.read_all()
    unpickler.budget.narrow()
    names = _Names(_no_foreign, unpickler.budget)
    return PickleFile(path, names.copy(loaded), names.tensors)


def _members(file: _File) -> dict[str, tuple[int, int]]:
    """Start and size of each member, by its name inside the archive's one folder.

    Both directories of the zip must tell the same story: torch's reader, its mmap path, zipfile and unzip each
    believe a different part of a file that disagrees with itself.
    """
    infos, end = _directory(file)
    folder = _folder([info.filename for info in infos])
    members: dict[str, tuple[int, int]] = {}
    free = 0  # where the next member may start
    for info in sorted(infos, key=lambda info: info.header_offset):
        start = _data_start(file, info)
        name = info.filename.removeprefix(folder)
        if name in members:
            raise BadFile(f"holds the member {_shown(name)} twice: corrupt or hostile")
        if info.header_offset < free or start + info.file_size > end:
            raise BadFile(f"is corrupt or truncated: the bytes of member {_shown(name)} are not its own")
        members[name] = (start, info.file_size)
        free = start + info.file_size
    return members


def _directory(file: _File) -> tuple[list[zipfile.ZipInfo], int]:
    """The central directory and where it starts."""
    try:
        archive = zipfile.ZipFile(file)
    except (PosinterpError, MemoryError):
        raise
    except Exception as error:  # zipfile lets struct, Unicode and overflow errors of a bad directory through
        raise BadFile(f"is corrupt or truncated: its zip directory cannot be read ({_shown(str(error))})") from None
    return archive.infolist(), archive.start_dir


def _folder(names: list[str]) -> str:
    """The prefix of every member."""
    folder = names[0].partition("/")[0] + "/" if names else ""
    inside = {name.removeprefix(folder) for name in names}
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        hint = "get a state dict from it: torch.save(torch.jit.load(path).state_dict(), 'weights.pth')"
        raise Unsupported("is a TorchScript archive, a program and not a state dict", hint=hint)
    if not any(name.endswith("data.pkl") for name in names):
        raise BadFile("is a zip but no torch checkpoint: it has no data.pkl, or lost it")
    if "data.pkl" not in inside or not all(name.startswith(folder) for name in names):
        raise BadFile("is a zip with members in several folders; torch writes exactly one")
    return folder


def _data_start(file: _File, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start. Raises BadFile unless it is stored and its local header agrees."""
    shown = _shown(info.filename)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise BadFile(f"has the compressed member {shown}; torch only stores")
    if info.flag_bits & ~0x808 or info.filename != info.orig_filename:  # a data descriptor, a UTF-8 name
        raise BadFile(f"has an encrypted or unusual zip member {shown}")
    if info.header_offset < 0:
        raise BadFile(f"is corrupt: member {shown} starts before the file")
    name = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
    raw = file.at(info.header_offset, 30 + len(name))
    magic, _, flags, method, _, _, _, packed, size, name_size, extra_size = struct.unpack("<4s5H3I2H", raw[:30])
    start: int = info.header_offset + 30 + name_size + extra_size
    same = (magic, flags, method, name_size) == (b"PK\x03\x04", info.flag_bits, zipfile.ZIP_STORED, len(name))
    if not same or raw[30:] != name or not _sizes_agree(file, info, packed, size, start - extra_size, extra_size):
        raise BadFile(f"is corrupt: the zip's directory and member {shown} itself disagree")
    return start


def _sizes_agree(file: _File, info: zipfile.ZipInfo, packed: int, size: int, extra: int, extra_size: int) -> bool:
    if info.flag_bits & 8:  # the sizes follow the data: torch writes zeros here, zipfile 2^32 - 1 for large members
        return (packed, size) in {(0, 0), (info.file_size, info.file_size), (0xFFFFFFFF, 0xFFFFFFFF)}
    if 0xFFFFFFFF in (packed, size):
        block = struct.pack("<HHQQ", 1, 16, info.file_size, info.file_size)  # zip64's extra field
        return block in file.at(extra, extra_size)
    return packed == size == info.file_size


# ---------------------------------------------------------------------------------------------- the pickle


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of the closed table, as it lies on the unpickler's stack. It can be called by `_Unpickler` only."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    file: Path
    dtype: str
    start: int
    nbytes: int


@dataclass(slots=True)
class _Budget:
    """What a pickle may still cost: two hundred bytes can ask for 2^60 copies of a list."""

    left: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BadFile(f"holds too many objects beside its tensors: over {MAX_STEPS}", hint=RESAVE)

    def narrow(self) -> None:
        """From here on allow only a few times what was spent: nobody shares objects so much that copies cost more."""
        self.left = min(self.left, 100_000 + 8 * (MAX_STEPS - self.left))

    def spend_on(self, values: Iterable[object]) -> None:
        """The cost of copying each of the values."""
        for value in values:
            if isinstance(value, (str, bytes, bytearray)):
                self.spend(len(value) // 32)
            elif isinstance(value, (list, tuple, dict)):
                self.spend(len(value))


class _Stream:
    """The pickle's bytes: every read is counted, and none is shorter than asked."""

    def __init__(self, data: bytes, budget: _Budget) -> None:
        stream = io.BytesIO(data)
        self._read, self.readline = stream.read, stream.readline
        self._spend = budget.spend

    def read(self, size: int) -> bytes:
        self._spend(1)
        part = self._read(size)
        if len(part) < size:
            raise EOFError
        return part


INHERITED = (
    "PROTO NONE NEWFALSE NEWTRUE BININT BININT1 BININT2 LONG1 BINFLOAT BINBYTES BINBYTES8 SHORT_BINBYTES BINUNICODE "
    "BINUNICODE8 SHORT_BINUNICODE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET POP POP_MARK "
    "DUP BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL MARK STOP BINPERSID"
)


def _inherited() -> dict[int, Callable[[Any], None]]:
    codes = [getattr(pickle, name)[0] for name in INHERITED.split()]
    return {code: pickle._Unpickler.dispatch[code] for code in codes}


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler with fewer instructions, each of which can only make plain data.

    The one in C must not be used: it allocates its memo by index, 34 GB for a pickle of ten bytes.
    """

    stack: list[Any]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes, path: Path, members: dict[str, tuple[int, int]]) -> None:
        self.budget = _Budget()
        super().__init__(_Stream(data, self.budget), encoding="utf-8")
        self._path, self._members = path, members
        self._storages: dict[str, _Storage] = {}

    def read_all(self) -> Any:
        """The pickled object. Whatever is wrong with it is a BadFile or Unsupported."""
        try:
            return self.load()
        except (PosinterpError, MemoryError):
            raise
        except Exception as error:  # no stack, no such memo, bad UTF-8: it can fail in any way
            raise BadFile(f"has a corrupt or truncated pickle ({type(error).__name__})") from None

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        known = _canonical(full)
        if known in TENSOR_KINDS:
            raise Unsupported(f"holds {TENSOR_KINDS[known]} ({_shown(full)})", hint="make it a dense, plain tensor")
        if known in DTYPES:
            return TorchName(known)
        if known in CALLS or known in STORAGES or known in CLASSES:
            return _Name(known)
        message = f"asks for {_shown(full)}, which is not on the list of harmless names; nothing was executed"
        raise BadFile(message, hint=RESAVE)

    def persistent_load(self, pid: Any) -> _Storage:
        kind, cls, key, _, numel = pid
        if kind != "storage" or type(cls) is not _Name or type(key) is not str or not _whole(numel):
            raise BadFile("names a storage in a way that torch does not")
        dtype = STORAGES[cls.name]
        if dtype is None:
            raise Unsupported(f"holds tensors of {cls.name}, which cannot be copied", hint="convert them to floats")
        record = _shown(f"data/{key}")
        if f"data/{key}" not in self._members:
            raise BadFile(f"is corrupt: the record {record} of a tensor is missing")
        start, nbytes = self._members[f"data/{key}"]
        if nbytes != numel * BITS[dtype] // 8:
            raise BadFile(f"is corrupt: record {record} has {nbytes} bytes, its storage {numel} numbers of {dtype}")
        storage = _Storage(self._path, dtype, start, nbytes)
        if self._storages.setdefault(key, storage) != storage:
            raise BadFile(f"reads record {record} as two dtypes: corrupt or hostile")
        return storage

    # Every instruction that calls, or that touches an object that is there already, is one of these.

    def load_frame(self) -> None:
        self.read(8)  # only a hint how much to buffer

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.stack.append(bytearray(self.read(size)))

    def load_reduce(self) -> None:
        args, name = self.stack.pop(), self.stack.pop()
        if type(name) is not _Name or name.name not in CALLS or type(args) is not tuple:
            raise BadFile("calls something that is no function of the list; nothing was executed")
        self.budget.spend_on(args)
        self.stack.append(CALLS[name.name](*args))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        self.budget.spend_on([state, *state] if isinstance(state, tuple) else [state])
        if type(target) is OrderedDict and type(state) is dict:
            # torch keeps versions here. Any other attribute is no part of the weights, and could hide a method.
            vars(target).update((key, value) for key, value in state.items() if key == "_metadata")
        elif type(target) is argparse.Namespace and type(state) is dict:
            vars(target).update({_attribute(key): value for key, value in state.items()})
        elif isinstance(target, np.dtype):
            _check_dtype_state(state)
        elif type(target) is np.ndarray and type(state) is tuple:
            target.__setstate__(_array_state(*state))
        else:
            raise BadFile(f"sets the state of a {type(target).__name__}; nothing was executed")

    def load_append(self) -> None:
        self._extend([self.stack.pop()])

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise BadFile("appends to what is no list: corrupt or hostile")
        self.stack[-1].extend(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def load_setitems(self) -> None:
        self._update(self.pop_mark())

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict and type(target) is not OrderedDict:
            raise BadFile("sets an item of what is no dict: corrupt or hostile")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise BadFile("adds to what is no set: corrupt or hostile")
        self.stack[-1].update(_plain_set(items))

    def load_frozenset(self) -> None:
        items = self.pop_mark()  # which replaces self.stack
        self.stack.append(frozenset(_plain_set(items)))

    def _refuse(self) -> None:
        raise BadFile("uses a pickle instruction that plain data does not need; refused, nothing was executed")

    # Closed: what is not named here (INST, OBJ, NEWOBJ_EX, EXT1, PERSID, NEXT_BUFFER, protocol 0, ...) is refused.
    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), _refuse), **_inherited(),
        pickle.FRAME[0]: load_frame, pickle.BYTEARRAY8[0]: load_bytearray8, pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_reduce, pickle.BUILD[0]: load_build, pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends, pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems, pickle.FROZENSET[0]: load_frozenset,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- what the names do


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # not isinstance: True is an int


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise BadFile(f"holds {what} in a form that no training script writes: corrupt or hostile")


def _key(key: Any) -> Any:
    """A key of a dict or an element of a set: flat, since hashing nested tuples takes exponential time."""
    for part in key if type(key) is tuple and len(key) <= 16 else (key,):
        small = type(part) is not int or abs(part) < 1 << 63
        _need(type(part) in (str, int, float, bool, bytes, type(None)) and small, "a dict key")
    return key


def _plain_set(items: Any = ()) -> set[Any]:
    _need(type(items) in (list, tuple), "a set")
    return {_key(item) for item in items}


def _counter(counts: Any = ()) -> Counter[Any]:
    _need(counts == () or (type(counts) is dict and all(type(n) is int for n in counts.values())), "a Counter")
    return Counter(counts)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    _need(type(text) is str and encoding in ("latin1", "latin-1"), "a byte string")  # how protocol 2 writes bytes
    return str(text).encode("latin1")


def _bytearray(data: Any = b"", *encoding: Any) -> bytearray:
    # bytearray(10**12) would allocate as much
    return bytearray(data if type(data) is bytes and not encoding else _encode(data or "", *encoding))


def _complex(real: Any, imag: Any) -> complex:
    _need(type(real) is float and type(imag) is float, "a complex number")
    return complex(real, imag)


def _attribute(key: Any) -> str:
    _need(type(key) is str and not key.startswith("__"), "a Namespace")
    return str(key)


def _path(kind: type[PurePosixPath | PureWindowsPath]) -> Callable[..., str]:
    def join(*parts: Any) -> str:
        _need(all(type(part) is str for part in parts), "a path")
        return str(kind(*parts))

    return join


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    _need(type(values) is tuple and len(values) <= MAX_DIMS and all(map(_whole, values)), what)
    return tuple(values)


def _torch_device(kind: Any, index: Any = None) -> TorchName:
    _need(type(kind) is str and (index is None or _whole(index)), "a device")
    return TorchName("torch.device", (kind,) if index is None else (kind, index))


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_: object, dtype: str | None = None) -> TensorInfo:
    """A tensor without a name yet. The name is its place, and one tensor may stand in several."""
    _need(type(storage) is _Storage and _whole(offset), "a tensor with a negative offset or no storage")
    shape, strides = _numbers(shape, "a tensor's shape"), _numbers(strides, "a tensor's strides")
    _need(len(shape) == len(strides), "a tensor's strides")
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


def _rebuild_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, bits: Any = None
) -> TensorInfo:
    if bits:  # torch's lazy conj() and neg(): the bytes are not the values
        raise Unsupported("holds a tensor with a lazy conjugate or minus", hint="save tensor.resolve_conj() instead")
    return _rebuild(storage, offset, shape, strides)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, bits: Any = None
) -> TensorInfo:
    """Newer dtypes: the storage is bytes, strides and offset count elements."""
    _need(type(dtype) is TorchName and dtype.name in DTYPES and not bits, "a tensor's dtype")
    known = DTYPES[dtype.name]
    if known is None:
        raise Unsupported(f"holds a tensor of {dtype.name}, which cannot be copied", hint="convert it to floats")
    return _rebuild(storage, offset, shape, strides, dtype=known)


def _parameter(tensor: Any, *_: object) -> TensorInfo:
    _need(isinstance(tensor, TensorInfo), "a parameter")
    return tensor  # type: ignore[no-any-return]


def _with_attributes(func: Any, kind: Any, args: Any, state: Any) -> TensorInfo:
    """A tensor or parameter that carries Python attributes; those are dropped."""
    dense = type(func) is _Name and func.name in REBUILD and type(kind) is _Name and kind.name in CLASSES
    _need(dense and type(args) is tuple, "a tensor subclass")
    return REBUILD[func.name](*args)


def _dtype(spec: Any, *_: object) -> np.dtype[Any]:
    plain = type(spec) is str and re.fullmatch(r"[<|=]?([biufc][1-9]\d?|[SU][1-9]\d{0,5})", spec)
    _need(bool(plain), "a dtype")  # no objects, no structures, no other byte order
    return np.dtype(str(spec))


def _check_dtype_state(state: Any) -> None:
    # Version, byte order, then three fields that only structures have. Sizes repeat the name.
    _need(type(state) is tuple and state[1] in ("<", "|", "=") and state[2:5] == (None, None, None), "a dtype")


def _scalar(dtype: Any, raw: Any) -> Any:
    _need(isinstance(dtype, np.dtype) and type(raw) is bytes and len(raw) == dtype.itemsize, "a number of numpy")
    return np.frombuffer(raw, dtype)[0]


def _empty_array(*_: object) -> NDArray[Any]:
    return np.empty(0, np.int8)  # BUILD fills it


def _array_state(version: Any, shape: Any, dtype: Any, fortran: Any, raw: Any) -> tuple[Any, ...]:
    shape = _numbers(shape, "an array's shape")
    _need(isinstance(dtype, np.dtype) and type(raw) is bytes and version == 1, "an array of numpy")
    _need(math.prod(shape) * dtype.itemsize == len(raw), "an array of numpy")
    return (1, shape, dtype, fortran is True, raw)


def _no_arguments(kind: Callable[[], Any]) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        _need(args in ((), (None,)), "an object with arguments")  # None: a defaultdict's missing factory
        return kind()

    return make


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

CLASSES = {"numpy.ndarray", "torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter"}

TENSOR_KINDS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantised tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no values",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
}

REBUILD: dict[str, Callable[..., TensorInfo]] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}

CALLS: dict[str, Callable[..., Any]] = {
    **REBUILD,
    "torch._tensor._rebuild_from_type_v2": _with_attributes,
    "torch.Size": lambda shape: _numbers(shape, "a shape"),
    "torch.device": _torch_device,
    "collections.OrderedDict": _no_arguments(OrderedDict),
    "collections.defaultdict": _no_arguments(dict),
    "collections.Counter": _counter,
    "argparse.Namespace": _no_arguments(argparse.Namespace),
    "builtins.set": _plain_set,
    "builtins.frozenset": lambda items=(): frozenset(_plain_set(items)),
    "builtins.bytes": _no_arguments(bytes),
    "builtins.bytearray": _bytearray,
    "builtins.complex": _complex,
    "_codecs.encode": _encode,
    "numpy.dtype": _dtype,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.multiarray._reconstruct": _empty_array,
    "pathlib.Path": _path(PurePosixPath),
    "pathlib.PosixPath": _path(PurePosixPath),
    "pathlib.PurePosixPath": _path(PurePosixPath),
    "pathlib.WindowsPath": _path(PureWindowsPath),
    "pathlib.PureWindowsPath": _path(PureWindowsPath),
}

ALIASES = {"__builtin__.": "builtins.", "numpy.core.": "numpy._core.", "pathlib._local.": "pathlib.",
           "torch.cuda.": "torch.", "torch.tensor.": "torch._tensor."}  # fmt: skip


def _canonical(full: str) -> str:
    """Today's spelling of a name that other versions of Python, numpy and torch write."""
    for old, new in ALIASES.items():
        if full.startswith(old):
            return new + full.removeprefix(old)
    return full


def _shown(text: str) -> str:
    """Text of the file in a message: no control characters, not endless."""
    plain = ascii(text[:100])[1:-1]
    return plain + "..." if len(text) > 100 else plain


# ---------------------------------------------------------------------------------------------- the tree

LEAVES = (str, int, float, bool, type(None), bytes, bytearray, complex, set, frozenset, Counter, TorchName)


def _no_foreign(value: Any) -> Any:
    name = value.name if isinstance(value, _Name) else type(value).__name__.lstrip("_")
    raise BadFile(f"holds {name} itself, which is neither a tensor nor plain data", hint=RESAVE)


@dataclass(slots=True)
class _Names:
    """Copies a tree and gives every tensor the name of its place.

    A copy, since a container or a tensor that stands in two places is one object in the pickle. `foreign` turns a
    leaf of another kind into one of ours, or raises.
    """

    foreign: Callable[[Any], Any]
    budget: _Budget = field(default_factory=_Budget)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    place: list[str] = field(default_factory=list)

    def copy(self, value: Any) -> Tree:
        self.budget.spend(1)
        kind = type(value)
        if kind in LEAVES or isinstance(value, (np.generic, np.ndarray, np.dtype)):
            return value
        if kind is TensorInfo:
            return self._named(value)
        if kind is list or kind is tuple:
            return kind(self._inside(at, item) for at, item in enumerate(value))
        if kind is dict or kind is OrderedDict:
            return self._dict(value)
        if kind is argparse.Namespace:
            made = argparse.Namespace()
            vars(made).update(self._dict(vars(value)))
            return made
        return self.copy(self.foreign(value))

    def _inside(self, key: Any, value: Any) -> Tree:
        if len(self.place) == MAX_DEPTH:
            raise BadFile(f"is nested more than {MAX_DEPTH} deep, which no state dict is")
        self.place.append(str(key))
        made = self.copy(value)
        self.place.pop()
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = type(value)((_key(key), self._inside(key, item)) for key, item in value.items())
        if isinstance(value, OrderedDict) and "_metadata" in vars(value):
            vars(made)["_metadata"] = self._inside("_metadata", vars(value)["_metadata"])
        return made

    def _named(self, tensor: TensorInfo) -> TensorInfo:
        self.budget.spend(sum(map(len, self.place)) // 16)
        name = "/".join(self.place)
        if name in self.tensors:
            raise BadFile(f"holds two tensors that are both called {_shown(name)}")
        if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):  # could not be written or printed
            raise BadFile(f"holds a tensor whose name is no text: {_shown(name)}")
        self.tensors[name] = replace(tensor, name=name)
        return self.tensors[name]


# ---------------------------------------------------------------------------------------------- before torch 1.6


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
        why = f"asks for {_shown(asked[1])}" if asked else _shown(f"{type(error).__name__}: {error}".splitlines()[0])
        message = f"is in torch's format from before 1.6, corrupt or unsafe, and torch refused it: {why}"
        raise BadFile(message, hint=RESAVE) from None
    names = _Names(lambda value: _from_torch(value, path))
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
        return _torch_device(value.type, value.index)
    return _no_foreign(value)


def _in_memory(tensor: Any, path: Path) -> TensorInfo:
    import torch

    dtype = DTYPES.get(str(tensor.dtype))
    if dtype is None or tensor.layout != torch.strided:
        raise Unsupported(f"holds a tensor of {tensor.dtype} and {tensor.layout}, which cannot be copied")
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # reshape would keep the odd stride of a single element
    raw = flat.view(torch.uint8).numpy()  # bytes, since numpy has no bfloat16
    return TensorInfo("", dtype, tuple(tensor.shape), path, 0, raw.nbytes, None, memoryview(raw))
