"""numpy's .npz archives, as JAX code saves weights: a zip of .npy files, each with a short header.

Members must be stored, as `numpy.savez` stores them; nothing is unpickled.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import BadFile, Unsupported
from .tensors import FLOATS, TensorInfo, byte_size
from .torch_zip import BoundedFile, directory, member_start

if TYPE_CHECKING:
    pass

# What numpy calls a dtype -> the name here. bfloat16 is none of its own: it is saved as two bytes of anything.
DTYPES = {
    **{numpy: own for own, numpy in FLOATS.items()},
    "|V2": "BF16", "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32",
    "<u8": "U64", "<i8": "I64", "<c8": "C64",
}  # fmt: skip
NAMES = {own: numpy for numpy, own in DTYPES.items()}
MAX_HEADER = 10_000  # bytes of a .npy header, as numpy reads them
SUFFIX = ".npy"
MAX_RANK = 64


def read_npz(path: Path) -> tuple[list[TensorInfo], str]:
    """The arrays of an archive in its order, and its comment.

    Raises BadFile for one that is damaged; Unsupported for arrays of Python objects, compressed members, and numbers
    of another byte order.
    """
    try:
        with BoundedFile(path) as file:
            infos, end = directory(file)
            infos.sort(key=lambda info: info.header_offset)
            tensors = [_tensor(file, info, path) for info in infos]
            free = 0
            for info, tensor in zip(infos, tensors, strict=True):
                if info.header_offset < free or tensor.start + tensor.nbytes > end:
                    raise BadFile(f"is corrupt or truncated: the bytes of member {tensor.name} are not its own")
                free = tensor.start + tensor.nbytes
            names = [tensor.name for tensor in tensors]
            if twice := [name for name in names if names.count(name) > 1]:
                raise BadFile(f"holds the array {twice[0]} twice: corrupt or hostile")
            return tensors, _comment(file)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}") from None
    except (BadFile, Unsupported) as error:
        raise type(error)(f"{path} {error.message}", hint=error.hint) from None


def _comment(file: BoundedFile) -> str:
    import zipfile

    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        return archive.comment.decode("utf-8", "replace")


def _tensor(file: BoundedFile, info: Any, path: Path) -> TensorInfo:
    """One member's array, told from its header."""
    import numpy as np

    if info.compress_type:
        raise Unsupported(
            f"has compressed arrays ({info.filename}), which are not read in parts",
            hint="save it again without compression: numpy.savez(path, **numpy.load(old))",
        )
    start = member_start(file, info)
    head = io.BytesIO(file.at(start, min(info.file_size, MAX_HEADER)))
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head, max_header_size=MAX_HEADER)
    except Exception as error:  # numpy's reader lets tokenize, struct and syntax errors through
        raise BadFile(f"is corrupt: {info.filename} is no array ({type(error).__name__})") from None
    name = info.filename.removesuffix(SUFFIX)
    own = DTYPES.get(dtype.str)
    if own is None:
        what = "Python objects, which are refused unread" if dtype.hasobject else f"{dtype}, which is not read"
        raise Unsupported(f"holds {name} as {what}", hint="save its weights as arrays of floats")
    if len(shape) > MAX_RANK or any(side < 0 for side in shape):
        raise BadFile(f"is corrupt: {name} has the shape {shape[:4]}")
    size = byte_size(own, shape)
    if head.tell() + size != info.file_size:
        raise BadFile(f"is corrupt or truncated: {name} has {info.file_size - head.tell()} bytes for {size}")
    strides = None
    if fortran and len(shape) > 1:
        strides = tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
    return TensorInfo(name, own, tuple(shape), path, start + head.tell(), size, strides)


def array_header(info: TensorInfo) -> bytes:
    """The .npy header of a tensor that is stored row by row."""
    import numpy as np

    out = io.BytesIO()
    fields = {"descr": NAMES[info.dtype], "fortran_order": False, "shape": info.shape}
    np.lib.format.write_array_header_1_0(out, fields)
    return out.getvalue()


def add_member(archive: Any, info: TensorInfo, parts: Any) -> None:
    """Put one array into a zip that is being written: its header, and then its bytes, part by part."""
    import zipfile

    head = array_header(info)
    size = len(head) + byte_size(info.dtype, info.shape)
    member = zipfile.ZipInfo(info.name + SUFFIX)
    member.external_attr = 0o600 << 16  # as numpy writes them
    target: IO[bytes]
    with archive.open(member, "w", force_zip64=size >= 1 << 31) as target:
        target.write(head)
        for part in parts:
            target.write(part)
