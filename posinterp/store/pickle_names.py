"""The closed table of names that a pickle may use, and what each stands for.

No name is ever imported: calling one runs a few lines below or in torch_tensors.py, on arguments that are checked
first. Compare torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadFile, Unsupported
from .checks import RESAVE, flat_key, need, numbers, shown
from .tensors import TensorInfo
from .torch_tensors import DTYPES, STORAGES, TorchName, parameter, rebuild, rebuild_v2, rebuild_v3, torch_device


@dataclass(frozen=True, slots=True)
class Name:
    """A name of the closed table, as it lies on the unpickler's stack. Only `Unpickler` can call it."""

    name: str


def plain_set(items: Any = ()) -> set[Any]:
    need(type(items) in (list, tuple), "a set")
    return {flat_key(item) for item in items}


def _counter(counts: Any = ()) -> Counter[Any]:
    need(counts == () or (type(counts) is dict and all(type(n) is int for n in counts.values())), "a Counter")
    return Counter(counts)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    need(type(text) is str and encoding in ("latin1", "latin-1"), "a byte string")  # how protocol 2 writes bytes
    return str(text).encode("latin1")


def _bytearray(data: Any = b"", *encoding: Any) -> bytearray:
    # bytearray(10**12) would allocate as much
    return bytearray(data if type(data) is bytes and not encoding else _encode(data or "", *encoding))


def _complex(real: Any, imag: Any) -> complex:
    need(type(real) is float and type(imag) is float, "a complex number")
    return complex(real, imag)


def _path(kind: type[PurePosixPath | PureWindowsPath]) -> Callable[..., str]:
    def join(*parts: Any) -> str:
        need(all(type(part) is str for part in parts), "a path")
        return str(kind(*parts))

    return join


def _no_arguments(kind: Callable[[], Any]) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        need(args in ((), (None,)), "an object with arguments")  # None: a defaultdict's missing factory
        return kind()

    return make


def _dtype(spec: Any, *_: object) -> np.dtype[Any]:
    plain = type(spec) is str and re.fullmatch(r"[<|=]?([biufc][1-9]\d?|[SU][1-9]\d{0,5})", spec)
    need(bool(plain), "a dtype")  # no objects, no structures, no other byte order
    return np.dtype(str(spec))


def _scalar(dtype: Any, raw: Any) -> Any:
    need(isinstance(dtype, np.dtype) and type(raw) is bytes and len(raw) == dtype.itemsize, "a number of numpy")
    return np.frombuffer(raw, dtype)[0]


def _empty_array(*_: object) -> NDArray[Any]:
    return np.empty(0, np.int8)  # BUILD fills it


def _with_attributes(func: Any, kind: Any, args: Any, state: Any) -> TensorInfo:
    """A tensor or parameter that carries Python attributes; those are dropped."""
    dense = type(func) is Name and func.name in REBUILD and type(kind) is Name and kind.name in CLASSES
    need(dense and type(args) is tuple, "a tensor subclass")
    return REBUILD[func.name](*args)


REBUILD: dict[str, Callable[..., TensorInfo]] = {
    "torch._utils._rebuild_tensor": rebuild,
    "torch._utils._rebuild_tensor_v2": rebuild_v2,
    "torch._utils._rebuild_tensor_v3": rebuild_v3,
    "torch._utils._rebuild_parameter": parameter,
    "torch._utils._rebuild_parameter_with_state": parameter,
}

CALLS: dict[str, Callable[..., Any]] = {
    **REBUILD,
    "torch._tensor._rebuild_from_type_v2": _with_attributes,
    "torch.Size": lambda shape: numbers(shape, "a shape"),
    "torch.device": torch_device,
    "collections.OrderedDict": _no_arguments(OrderedDict),
    "collections.defaultdict": _no_arguments(dict),
    "collections.Counter": _counter,
    "argparse.Namespace": _no_arguments(argparse.Namespace),
    "builtins.set": plain_set,
    "builtins.frozenset": lambda items=(): frozenset(plain_set(items)),
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

ALIASES = {"__builtin__.": "builtins.", "numpy.core.": "numpy._core.", "pathlib._local.": "pathlib.",
           "torch.cuda.": "torch.", "torch.tensor.": "torch._tensor."}  # fmt: skip


def find(full: str) -> Name | TorchName:
    """What a name stands for. Raises BadFile unless it is in the table."""
    known = _canonical(full)
    if known in TENSOR_KINDS:
        raise Unsupported(f"holds {TENSOR_KINDS[known]} ({shown(full)})", hint="make it a dense, plain tensor")
    if known in DTYPES:
        return TorchName(known)
    if known in CALLS or known in STORAGES or known in CLASSES:
        return Name(known)
    message = f"asks for {shown(full)}, which is not on the list of harmless names; nothing was executed"
    raise BadFile(message, hint=RESAVE)


def _canonical(full: str) -> str:
    """Today's spelling of a name that other versions of Python, numpy and torch write."""
    for old, new in ALIASES.items():
        if full.startswith(old):
            return new + full.removeprefix(old)
    return full


def set_state(target: Any, state: Any) -> None:
    """What the instruction BUILD may do: fill an object that calling a name has made."""
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


def _attribute(key: Any) -> str:
    need(type(key) is str and not key.startswith("__"), "a Namespace")
    return str(key)


def _check_dtype_state(state: Any) -> None:
    # Version, byte order, then three fields that only structures have. Sizes repeat the name.
    need(type(state) is tuple and state[1] in ("<", "|", "=") and state[2:5] == (None, None, None), "a dtype")


def _array_state(version: Any, shape: Any, dtype: Any, fortran: Any, raw: Any) -> tuple[Any, ...]:
    shape = numbers(shape, "an array's shape")
    need(isinstance(dtype, np.dtype) and type(raw) is bytes and version == 1, "an array of numpy")
    need(math.prod(shape) * dtype.itemsize == len(raw), "an array of numpy")
    return (1, shape, dtype, fortran is True, raw)
