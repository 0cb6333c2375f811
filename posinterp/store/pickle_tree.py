"""The object that a pickle holds, with a name for each of its tensors: the place where it stands."""

from __future__ import annotations

import argparse
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import BadFile
from .checks import RESAVE, Budget, flat_key, shown
from .pickle_names import Name
from .tensors import TensorInfo, Tree
from .torch_tensors import TorchName

MAX_DEPTH = 100  # containers inside one another

LEAVES = (str, int, float, bool, type(None), bytes, bytearray, complex, set, frozenset, Counter, TorchName)


@dataclass(slots=True)
class TreeNames:
    """Copies a tree and gives every tensor the name of its place.

    A copy, since a container or a tensor that stands in two places is one object in the pickle. A leaf that is neither
    ours nor plain is refused.
    """

    budget: Budget = field(default_factory=Budget)
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
        name = value.name if isinstance(value, Name) else type(value).__name__.lstrip("_")
        raise BadFile(f"holds {name} itself, which is neither a tensor nor plain data", hint=RESAVE)

    def _inside(self, key: Any, value: Any) -> Tree:
        if len(self.place) == MAX_DEPTH:
            raise BadFile(f"is nested more than {MAX_DEPTH} deep, which no state dict is")
        self.place.append(str(key))
        made = self.copy(value)
        self.place.pop()
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = type(value)((flat_key(key), self._inside(key, item)) for key, item in value.items())
        if isinstance(value, OrderedDict) and "_metadata" in vars(value):
            vars(made)["_metadata"] = self._inside("_metadata", vars(value)["_metadata"])
        return made

    def _named(self, tensor: TensorInfo) -> TensorInfo:
        self.budget.spend(sum(map(len, self.place)) // 16)
        name = "/".join(self.place)
        if name in self.tensors:
            raise BadFile(f"holds two tensors that are both called {shown(name)}")
        if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):  # could not be written or printed
            raise BadFile(f"holds a tensor whose name is no text: {shown(name)}")
        self.tensors[name] = replace(tensor, name=name)
        return self.tensors[name]
