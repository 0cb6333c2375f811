"""What a checkpoint says of one tensor, and its bytes as numbers.

Dtypes carry the names of the safetensors format ("F32", "BF16", ...), whatever the container. numpy is imported where
values are looked at: opening and planning need none, and start in half the time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadFile, BadValues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Bits, not bytes: the 4- and 6-bit floats of quantised files are copied like anything else.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

INTEGERS = {"I32": "<i4", "I64": "<i8"}
FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}  # BF16 has no numpy dtype and is shifted by hand


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: everything but its values.

    `start` and `nbytes` are in bytes of `file`; `strides` are in elements and None for a contiguous tensor
    (only pickles hold others). `data` holds the bytes when they are in memory already: old pickles that only
    torch can read, and state dicts.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int = 0
    nbytes: int = 0
    strides: tuple[int, ...] | None = None
    data: memoryview | None = None


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a contiguous tensor."""
    return math.prod(shape) * BITS[dtype] // 8


def read_range(file: Path, start: int, nbytes: int) -> bytes:
    """`nbytes` bytes of `file` from `start`, by pread: a mapped file that shrinks meanwhile kills the process."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while nbytes > 0:
            part = os.pread(fd, min(nbytes, 1 << 26), start)
            if not part:
                raise BadFile(f"{file} ends {nbytes} bytes too early: truncated, or changed while it was read")
            parts.append(part)
            start, nbytes = start + len(part), nbytes - len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_bytes(info: TensorInfo) -> bytes | memoryview:
    """The tensor's values as contiguous little-endian bytes, in row-major order."""
    if info.data is not None:
        return info.data
    if info.strides is None:
        return read_range(info.file, info.start, info.nbytes)
    width = BITS[info.dtype] // 8  # pickles hold no dtype below a byte
    if 0 in info.shape:
        return b""
    import numpy as np

    extent = 1 + sum((n - 1) * step for n, step in zip(info.shape, info.strides, strict=True))
    raw = np.frombuffer(read_range(info.file, info.start, extent * width), dtype=f"V{width}")
    view = np.lib.stride_tricks.as_strided(raw, info.shape, tuple(step * width for step in info.strides))
    return view.tobytes()


def read_float(info: TensorInfo, *, integers: bool = False) -> NDArray[np.float64]:
    """The tensor in float64, whatever is stored: `info.shape`. `integers`: if they are what is expected.

    Raises BadValues for a tensor that holds no numbers one could average (integers, quantised floats).
    """
    return decode(read_bytes(info), info.dtype, info.shape, name=info.name, integers=integers)


def decode(
    raw: bytes | memoryview, dtype: str, shape: tuple[int, ...], *, name: str, integers: bool = False
) -> NDArray[np.float64]:
    """Bytes of a 16-, 32- or 64-bit float tensor as float64; of integers, if they are what is expected."""
    import numpy as np

    if dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(raw, dtype="<u2").astype("<u4") << np.uint32(16)
        single: NDArray[np.float32] = wide.view("<f4")
        return _widened(single, shape)
    known = FLOATS | INTEGERS if integers else FLOATS
    if dtype not in known:
        raise BadValues(
            f"{name} is stored as {dtype}; only F16, BF16, F32 and F64 tables can be resampled",
            hint="de-quantise or cast the checkpoint first",
        )
    return _widened(np.frombuffer(raw, dtype=known[dtype]), shape)


def _widened(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    import numpy as np

    with np.errstate(invalid="ignore"):  # a signalling NaN is still a NaN, and no warning
        return values.astype(np.float64).reshape(shape)


def storage(raw: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The bytes as an array of opaque items: to be cut, permuted and joined without touching a bit."""
    import numpy as np

    return np.frombuffer(raw, dtype=f"V{BITS[dtype] // 8}").reshape(shape)


def encode(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """float64 as the items of `dtype` (see `storage`), rounded once, to nearest even; whole numbers as integers.

    An overshoot of the cubic kernel past the range of the dtype is clipped to it: an Inf would be a new value
    that nothing in the source explains.
    """
    import numpy as np

    if dtype == "BF16":
        return _bfloat16(values)
    if dtype in INTEGERS:
        return values.astype(INTEGERS[dtype]).view(f"V{BITS[dtype] // 8}")
    limit = float(np.finfo(FLOATS[dtype]).max)
    return np.clip(values, -limit, limit).astype(FLOATS[dtype]).view(f"V{BITS[dtype] // 8}")


BF16_MAX = float.fromhex("0x1.fep127")


def _bfloat16(values: NDArray[np.float64]) -> NDArray[Any]:
    import numpy as np

    # Straight from float64: through float32 a value just above a tie would be rounded twice.
    clipped = np.clip(values, -BF16_MAX, BF16_MAX)
    single = clipped.astype(np.float32)
    # Sticky rounding: a float32 that is inexact is moved to its odd neighbour, so the second rounding sees the truth.
    bits = single.view(np.uint32).copy()
    inexact = single.astype(np.float64) != clipped
    overshot = np.abs(single.astype(np.float64)) > np.abs(clipped)
    bits[inexact & overshot] -= np.uint32(1)
    bits[inexact] |= np.uint32(1)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    halves: NDArray[Any] = (rounded >> np.uint32(16)).astype("<u2")
    return halves.view("V2")


Tree = Any  # a nested pickle: dicts, lists, tuples, plain values, and a TensorInfo for each tensor
