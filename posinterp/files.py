"""Putting a file where it belongs: the old one or the new one is there, whole, at any moment.

A new file is written in the target's folder, synced, and renamed. Where the system can, it has no name until then
(O_TMPFILE), so that not even a kill leaves anything behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import BadFile, OutputExists, WriteFailed

CHUNK = 64 << 20  # bytes a copy moves at a time: large enough to be cheap, small enough to show progress
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


@contextlib.contextmanager
def _written_back(fd: int) -> Iterator[None]:
    """Let the disk begin while a large file is still being written, so that the last sync waits less."""
    done = threading.Event()

    def work() -> None:
        synced = 0
        while not done.wait(0.02):
            size = os.fstat(fd).st_size
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


def _open_new(folder: Path) -> tuple[int, Path | None]:
    """A new file in the folder, without a name if the file system can, else with a short one."""
    flags = os.O_WRONLY | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        try:
            return os.open(folder, flags | os.O_TMPFILE, 0o666), None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    path = folder / temporary_name()
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), path


def temporary_name() -> str:
    """Short, and not made from the target's name, which may be as long as a name can be."""
    return f".posinterp-{secrets.token_hex(4)}"


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


def write_all(fd: int, data: bytes | memoryview) -> None:
    """os.write until everything is written."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view[:CHUNK]) :]


def copy_range(source: int, start: int, count: int, target: int, tick: Tick | None = None) -> None:
    """Append `count` bytes of descriptor `source` from `start` to descriptor `target`, in the kernel where it can.

    Raises BadFile if the source ends too early.
    """
    for method in (_copy_file_range, _sendfile, _read_write):
        while count > 0:
            moved = method(source, start, min(count, CHUNK), target)
            if moved is None:
                break  # not between these two files: the next way
            if moved == 0:
                if method is _read_write:
                    raise BadFile(f"the source ends {count} bytes too early: truncated, or changed while it was read")
                break
            start, count = start + moved, count - moved
            if tick:
                tick(moved)


UNABLE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ENOTSOCK)


def _copy_file_range(source: int, start: int, count: int, target: int) -> int | None:
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        return os.copy_file_range(source, target, count, offset_src=start)
    except OSError as error:
        if error.errno in UNABLE:
            return None
        raise


def _sendfile(source: int, start: int, count: int, target: int) -> int | None:
    if not hasattr(os, "sendfile"):
        return None
    try:
        return os.sendfile(target, source, start, count)
    except OSError as error:
        if error.errno in UNABLE:
            return None
        raise


def _read_write(source: int, start: int, count: int, target: int) -> int:
    data = os.pread(source, min(count, 8 << 20), start)
    write_all(target, data)
    return len(data)
