"""Python's unpickler, cut down to the instructions that plain data needs: it runs nothing that a file asks for."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import BadFile, PosinterpError, Unsupported
from .checks import RESAVE, Budget, flat_key, whole
from .pickle_names import CALLS, Name, find, plain_set, set_state
from .torch_tensors import Storage, Storages


class _Stream:
    """The pickle's bytes: every read is counted, and none is shorter than asked."""

    def __init__(self, stream: io.BytesIO, budget: Budget) -> None:
        self._read, self._line = stream.read, stream.readline
        self._budget = budget

    def readline(self) -> bytes:
        line = self._line()
        if not line.endswith(b"\n"):
            raise EOFError
        return line

    def read(self, size: int) -> bytes:
        budget = self._budget
        budget.left -= 1  # spend(1) without a call: a ViT-L comes here 15 000 times
        if budget.left < 0:
            budget.spend(0)
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


class Unpickler(pickle._Unpickler):
    """Python's own unpickler with fewer instructions, each of which can only make plain data.

    The one in C must not be used: it allocates its memo by index, 34 GB for a pickle of ten bytes.
    """

    stack: list[Any]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]
    value: Any = None

    def __init__(self, stream: io.BytesIO, storages: Storages) -> None:
        self.budget = Budget()
        super().__init__(_Stream(stream, self.budget), encoding="utf-8")
        self._storages = storages

    def read_all(self) -> Any:
        """The next pickled object of the stream. Whatever is wrong with it is a BadFile or Unsupported."""
        try:
            return self.load()
        except (PosinterpError, MemoryError):
            raise
        except Exception as error:  # no stack, no such memo, bad UTF-8: it can fail in any way
            raise BadFile(f"has a corrupt or truncated pickle ({type(error).__name__})") from None

    def find_class(self, module: str, name: str) -> Any:
        return find(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Storage:
        kind, cls, key, _, numel, *view = pid
        if view not in ([], [None]):
            raise Unsupported("holds a view of a storage as torch before 0.4 wrote them", hint=RESAVE)
        if kind != "storage" or type(cls) is not Name or type(key) is not str or not whole(numel):
            raise BadFile("names a storage in a way that torch does not")
        return self._storages.find(cls.name, key, numel)

    # Every instruction that calls, or that touches an object that is there already, is one of these.

    def load_frame(self) -> None:
        self.read(8)  # only a hint how much to buffer

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.stack.append(bytearray(self.read(size)))

    def load_reduce(self) -> None:
        args, name = self.stack.pop(), self.stack.pop()
        if type(name) is not Name or name.name not in CALLS or type(args) is not tuple:
            raise BadFile("calls something that is no function of the list; nothing was executed")
        self.budget.spend_on(args)
        self.stack.append(CALLS[name.name](*args))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        self.budget.spend_on([state, *state] if isinstance(state, tuple) else [state])
        set_state(target, state)

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
            target[flat_key(key)] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise BadFile("adds to what is no set: corrupt or hostile")
        self.stack[-1].update(plain_set(items))

    def load_frozenset(self) -> None:
        items = self.pop_mark()  # which replaces self.stack
        self.stack.append(frozenset(plain_set(items)))

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
