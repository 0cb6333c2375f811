"""Putting a file where it belongs: the old one or the new one is there, whole, at any moment.

A new file is written in the target's folder, synced, and renamed. Where the system can, it has no name until then
(O_TMPFILE), so that not even a kill leaves anything behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import secrets
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .errors import BadFile, OutputExists, WriteFailed

CHUNK = 16 << 20  # bytes that one thread copies at a time, and after which progress shows
BUFFER = 512 << 10  # stays in the processor's cache
THREADS = 2  # one does not fill the memory's bandwidth; more gain little
PAGE = 4096
TEMPORARY = ".posinterp-"  # how temporary names begin
FRESH = 10.0  # seconds for which a temporary file may be there without a lock: it has just been made
Tick = Callable[[int], None]
SYNC_DATA = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter


def check_target(out: Path, *, overwrite: bool) -> Path:
    """The path to write to: a link is followed. Raises OutputExists for what must not, or cannot, be replaced."""
    real = Path(os.path.realpath(out)) if out.is_symlink() else out
    try:
        mode = real.lstat().st_mode
    except FileNotFoundError:
        return real
    except OSError as error:
        raise WriteFailed(f"{out} cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise OutputExists(f"{out} is {kind}", hint="name a file that is not there yet")
    if not overwrite:
        raise OutputExists(f"{out} exists", hint="--force replaces it, or name another with -o")
    return real


@contextlib.contextmanager
def replacing(target: Path, *, overwrite: bool, sync: bool = True) -> Iterator[int]:
    """A descriptor to write to; what was written appears at `target` if the block ends well, and nowhere if not.

    Raises WriteFailed where the machine does not let it, OutputExists if `target` appeared meanwhile and is not to be
    overwritten.
    """
    try:
        fd, temporary = _open_new(target.parent)
        try:
            with _written_back(fd) if sync else contextlib.nullcontext():
                yield fd
            if target.exists():
                os.fchmod(fd, stat.S_IMODE(target.stat().st_mode))
            if sync:
                os.fsync(fd)
            _publish(fd, temporary, target, overwrite=overwrite)
            temporary = None
        finally:
            os.close(fd)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()
        if sync:
            sync_folder(target.parent)
    except FileExistsError:
        raise OutputExists(f"{target} exists", hint="--force replaces it, or name another with -o") from None
    except OSError as error:
        raise WriteFailed(f"{target} cannot be written: {error.strerror or error}") from None


def write_whole(out: Path, data: bytes, *, overwrite: bool) -> None:
    """Write a small file. Raises as `check_target` and `replacing`."""
    with replacing(check_target(out, overwrite=overwrite), overwrite=overwrite) as fd:
        write_at(fd, data, 0)


@contextlib.contextmanager
def _written_back(fd: int) -> Iterator[None]:
    """Let the disk begin while a large file is still being written, so that the last sync waits less."""
    done = threading.Event()

    def work() -> None:
        synced = 0
        while not done.wait(0.02):
            size = os.fstat(fd).st_blocks * 512  # not its length: what stands last may be written first
            if size - synced >= CHUNK:
                synced = size
                with contextlib.suppress(OSError):  # the last sync is the one that counts, and that reports
                    SYNC_DATA(fd)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


FICLONE = 0x40049409  # linux/fs.h


def linked(source: Path, target: Path) -> bool:
    """Put at `target`, which is not there yet, what is at `source`, sharing its blocks: a clone where the file system
    has those, else a hard link. False where it can do neither.
    """
    try:
        with open(source, "rb") as old, replacing(target, overwrite=False, sync=False) as fd:
            fcntl.ioctl(fd, FICLONE, old.fileno())
        return True
    except (OSError, WriteFailed, OutputExists):
        pass
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        return False
    return True


def _open_new(folder: Path) -> tuple[int, Path | None]:
    """A new file in the folder, without a name if the file system can, else with a short one."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        try:
            fd = os.open(folder, flags | os.O_TMPFILE, 0o666)
            _lock(fd)  # it gets a temporary name for a moment when it replaces another file
            return fd, None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    path = folder / temporary_name()
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    _lock(fd)
    return fd, path


def temporary_name() -> str:
    """Short, and not made from the target's name, which may be as long as a name can be."""
    return f"{TEMPORARY}{secrets.token_hex(4)}"


@contextlib.contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """A new folder to fill and rename; what was not renamed goes."""
    place = folder / temporary_name()
    place.mkdir()
    fd = os.open(place, os.O_RDONLY)
    try:
        _lock(fd)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(fd)


def _lock(fd: int) -> bool:
    """Mark a temporary file or folder as in use, as long as it is open: a kill ends that, too. Whether it was free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # in use, or a file system without locks, where nothing is ever swept
        return False
    return True


def sweep(folder: Path) -> None:
    """Remove what killed runs left in a folder: temporary files and folders that no run has locked."""
    for left in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            fd = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if time.time() - os.fstat(fd).st_mtime < FRESH or not _lock(fd):
                    continue
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()
            finally:
                os.close(fd)


def _publish(fd: int, temporary: Path | None, target: Path, *, overwrite: bool) -> None:
    if temporary is None:
        name = target.parent / temporary_name() if overwrite else target
        # linkat, not link: only it follows /proc's link to the open file, and Python takes it for a dir_fd alone.
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)
        if overwrite:
            try:
                os.rename(name, target)
            except BaseException:
                os.unlink(name)
                raise
    elif overwrite:
        os.rename(temporary, target)
    else:
        try:
            os.link(temporary, target)  # unlike rename, it never replaces
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or os.path.lexists(target):
                raise
            os.rename(temporary, target)  # a file system without hard links
            return
        os.unlink(temporary)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def reserve(fd: int, size: int) -> None:
    """Take the whole size from the disk at once: a copy into reserved blocks is faster, and a full disk shows first.

    Raises OSError when the disk is full. Where the file system cannot reserve, nothing happens: libc's posix_fallocate
    would write every block instead.
    """
    if not sys.platform.startswith("linux") or size < CHUNK:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_longlong(0), ctypes.c_longlong(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(code, os.strerror(code))


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """os.pwrite until everything is written."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view[:CHUNK], at)
        view, at = view[written:], at + written


# ------------------------------------------------------------------ copying


class Range(NamedTuple):
    """`size` bytes of `file` from `start`, to be copied to `at` in another."""

    file: Path
    start: int
    size: int
    at: int


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in fewer pieces: neighbours that stay neighbours become one."""
    out: list[Range] = []
    for one in ranges:
        last = out[-1] if out else None
        if last and last.file == one.file and last.start + last.size == one.start and last.at + last.size == one.at:
            out[-1] = last._replace(size=last.size + one.size)
        else:
            out.append(one)
    return out


@contextlib.contextmanager
def copying(ranges: Iterable[Range], target: int, tick: Tick | None = None) -> Iterator[None]:
    """Copies the ranges to descriptor `target` while the block runs, and waits for what is left at its end.

    Raises what copying raises: BadFile if a source ends too early, OSError.
    """
    pieces: queue.SimpleQueue[Range] = queue.SimpleQueue()
    for whole in ranges:
        for piece in _pieces(whole):
            pieces.put(piece)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        buffer = memoryview(bytearray(BUFFER))
        try:
            while not stop.is_set():
                _copy(pieces.get_nowait(), target, buffer, tick)
        except queue.Empty:
            return
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work) for _ in range(min(THREADS, pieces.qsize()))]
    for thread in threads:
        thread.start()
    try:
        yield
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # in steps, so that an interrupt is heard
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def _pieces(whole: Range) -> Iterator[Range]:
    for done in range(0, whole.size, CHUNK):
        yield Range(whole.file, whole.start + done, min(CHUNK, whole.size - done), whole.at + done)


def _copy(piece: Range, target: int, buffer: memoryview, tick: Tick | None) -> None:
    """One piece: by the kernel where pages fall on pages (and file systems may share them), else through a buffer.

    The kernel's own copy of pages that fall across pages takes half as long again as a read and a write.
    """
    source = os.open(piece.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        aligned = (piece.start - piece.at) % PAGE == 0
        methods = (_copy_file_range, _read_write) if aligned else (_read_write,)
        done = 0
        for method in methods:
            while done < piece.size:
                moved = method(source, piece.start + done, piece.size - done, target, piece.at + done, buffer)
                if not moved:
                    break  # not between these two files: the next way
                done += moved
        if done < piece.size:
            short = piece.size - done
            raise BadFile(f"{piece.file} ends {short} bytes too early: truncated, or changed while it was read")
        if tick:
            tick(piece.size)
    finally:
        os.close(source)


UNABLE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF)


def _copy_file_range(source: int, start: int, size: int, target: int, at: int, _: memoryview) -> int:
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        return os.copy_file_range(source, target, size, offset_src=start, offset_dst=at)
    except OSError as error:
        if error.errno in UNABLE:
            return 0
        raise


def _read_write(source: int, start: int, size: int, target: int, at: int, buffer: memoryview) -> int:
    part = buffer[: min(size, len(buffer))]
    part = part[: os.preadv(source, [part], start)]
    write_at(target, part, at)
    return len(part)
