"""The zip that a .pth file is: where each member's bytes are.

Members are stored, never compressed, in one folder: `data.pkl`, and `data/<key>` for each storage
(torch/serialization.py, `_save`).
"""

from __future__ import annotations

import io
import os
import struct
import zipfile

from ..errors import BadFile, PosinterpError, Unsupported
from .checks import shown

MAX_DIRECTORY = 1 << 25  # bytes of a zip's directory: 400 000 members


class BoundedFile(io.FileIO):
    """The file, which gives zipfile no more than a directory's worth at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_DIRECTORY:
            raise BadFile(f"claims a zip directory of {size} bytes: corrupt or hostile")
        return super().read(size) or b""

    def at(self, start: int, nbytes: int) -> bytes:
        """Exactly these bytes of the file."""
        part = os.pread(self.fileno(), nbytes, start)
        if len(part) < nbytes:
            raise BadFile(f"is corrupt or truncated: it ends inside the {nbytes} bytes at {start}")
        return part


def read_members(file: BoundedFile) -> dict[str, tuple[int, int]]:
    """Start and size of each member, by its name inside the archive's one folder.

    Both directories of the zip must tell the same story: torch's reader, its mmap path, zipfile and unzip each
    believe a different part of a file that disagrees with itself.
    """
    infos, end = directory(file)
    folder = _folder([info.filename for info in infos])
    members: dict[str, tuple[int, int]] = {}
    free = 0  # where the next member may start
    for info in sorted(infos, key=lambda info: info.header_offset):
        start = member_start(file, info)
        name = info.filename.removeprefix(folder)
        if name in members:
            raise BadFile(f"holds the member {shown(name)} twice: corrupt or hostile")
        if info.header_offset < free or start + info.file_size > end:
            raise BadFile(f"is corrupt or truncated: the bytes of member {shown(name)} are not its own")
        members[name] = (start, info.file_size)
        free = start + info.file_size
    return members


def directory(file: BoundedFile) -> tuple[list[zipfile.ZipInfo], int]:
    """The central directory and where it starts."""
    try:
        archive = zipfile.ZipFile(file)
    except (PosinterpError, MemoryError):
        raise
    except Exception as error:  # zipfile lets struct, Unicode and overflow errors of a bad directory through
        raise BadFile(f"is corrupt or truncated: its zip directory cannot be read ({shown(str(error))})") from None
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


def member_start(file: BoundedFile, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes start. Raises BadFile unless it is stored and its local header agrees."""
    member = shown(info.filename)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise BadFile(f"has the compressed member {member}; torch only stores")
    if info.flag_bits & ~0x808 or info.filename != info.orig_filename:  # a data descriptor, a UTF-8 name
        raise BadFile(f"has an encrypted or unusual zip member {member}")
    if info.header_offset < 0:
        raise BadFile(f"is corrupt: member {member} starts before the file")
    name = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
    raw = file.at(info.header_offset, 30 + len(name))
    magic, _, flags, method, _, _, _, packed, size, name_size, extra_size = struct.unpack("<4s5H3I2H", raw[:30])
    start: int = info.header_offset + 30 + name_size + extra_size
    same = (magic, flags, method, name_size) == (b"PK\x03\x04", info.flag_bits, zipfile.ZIP_STORED, len(name))
    if not same or raw[30:] != name or not _sizes_agree(file, info, packed, size, start - extra_size, extra_size):
        raise BadFile(f"is corrupt: the zip's directory and member {member} itself disagree")
    return start


def _sizes_agree(file: BoundedFile, info: zipfile.ZipInfo, packed: int, size: int, extra: int, extra_size: int) -> bool:
    if info.flag_bits & 8:  # the sizes follow the data: torch writes zeros here, zipfile 2^32 - 1 for large members
        return (packed, size) in {(0, 0), (info.file_size, info.file_size), (0xFFFFFFFF, 0xFFFFFFFF)}
    if 0xFFFFFFFF in (packed, size):
        block = struct.pack("<HHQQ", 1, 16, info.file_size, info.file_size)  # zip64's extra field
        return block in file.at(extra, extra_size)
    return packed == size == info.file_size
