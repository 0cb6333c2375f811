"""Writing torch's pickled checkpoints. Everything here imports torch, and nothing else in `resize` does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from .store.pickle import TorchName
from .store.tensors import TensorInfo, Tree, read_bytes

NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


def tensor(raw: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    """A torch tensor of its own memory from bytes, in any dtype that torch knows under a safetensors name."""
    import torch

    kind = getattr(torch, NAMES[dtype])
    if not len(raw):
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)


def to_torch(tree: Tree, values: Mapping[str, tuple[memoryview, tuple[int, ...]]], dropped: frozenset[str]) -> Any:
    """A pickle's object with torch tensors in it.

    `values`: bytes and shape of the tensors that are edited, by name; `dropped`: those that are left out of their dict.
    """
    shared: dict[tuple[Any, ...], Any] = {}

    def build(node: Any) -> Any:
        if isinstance(node, TensorInfo):
            return leaf(node)
        if isinstance(node, TorchName):
            return _torch_object(node)
        if isinstance(node, dict):
            out = type(node)() if type(node) is not dict else {}
            for key, value in node.items():
                if not (isinstance(value, TensorInfo) and value.name in dropped):
                    out[build(key)] = build(value)
            for key, value in getattr(node, "__dict__", {}).items():  # a state dict's _metadata
                setattr(out, key, build(value))
            return out
        if isinstance(node, argparse.Namespace):
            return argparse.Namespace(**{key: build(value) for key, value in vars(node).items()})
        if type(node) in (list, tuple, set, frozenset):
            return type(node)(build(item) for item in node)
        return node

    def leaf(info: TensorInfo) -> Any:
        if info.name in values:
            raw, shape = values[info.name]
            return tensor(raw, info.dtype, shape)
        # Names on one storage stay on one: tied weights are tied again, and the file does not grow.
        key = (
            info.file,
            info.start,
            info.nbytes,
            info.shape,
            info.strides,
            id(info.data) if info.data is not None else 0,
        )
        if key not in shared:
            shared[key] = tensor(read_bytes(info), info.dtype, info.shape)
        return shared[key]

    return build(tree)


def _torch_object(node: TorchName) -> Any:
    import torch

    if node.name == "torch.device":
        return torch.device(*node.args)
    if node.name == "torch.Size":
        return torch.Size([int(n) for n in node.args])
    return getattr(torch, node.name.removeprefix("torch."))


def save(value: Any, fd: int) -> None:
    """torch.save to an open descriptor."""
    import torch

    with os.fdopen(os.dup(fd), "wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # on a full disk torch's zip writer complains on top of it
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
