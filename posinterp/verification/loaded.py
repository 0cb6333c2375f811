"""A model as its home library loads it: what it holds, and what it computes."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models import Model
from ..rules import named
from ..size import Size
from ..store import Checkpoint
from ..store.tensors import TensorInfo, read_bytes
from .case import largest_branch

if TYPE_CHECKING:
    from torch import Tensor, nn


class NotAsked(Exception):
    """The home library is not asked to load the checkpoint; says why."""


@dataclass(frozen=True)
class Loaded:
    """A model in its home library's memory.

    `run`: an image (1, c, h, w) -> everything that it computes, flattened, float32; `pooled`: the same -> one vector
    (1, d) that stands for the image; `tables`: the parameters that follow the image size, by name; `problems`: where
    the model is not the file's; `count`: how many of the file's tensors were compared with the model's; `said`: that,
    in words; `mean`, `std`: of the values that the model expects of a channel.
    """

    module: nn.Module
    run: Callable[[Tensor], Tensor]
    pooled: Callable[[Tensor], Tensor] | None
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    problems: Sequence[str] = ()
    count: int = 0
    said: str = ""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    @property
    def channels(self) -> int:
        """Channels of an image."""
        import torch

        return next((part.in_channels for part in self.module.modules() if isinstance(part, torch.nn.Conv2d)), 3)

    def noise(self, size: Size) -> Tensor:
        """An image (1, c, h, w) of normal numbers, the same at every call, in the dtype of the parameters."""
        import torch

        drawn = torch.Generator().manual_seed(0)
        return torch.randn(1, self.channels, *size, generator=drawn).to(next(self.module.parameters()).dtype)


def in_words(library: str, error: Exception) -> str:
    """What a library raised, on one line."""
    return f"{library}: {' '.join(str(error).split())[:300] or type(error).__name__}"


def below(ckpt: Checkpoint, model: Model | None) -> dict[str, TensorInfo]:
    """The tensors of one model, by the home library's names; of the largest branch where no model was found."""
    root = model.root if model is not None else largest_branch(ckpt)
    found = {name[len(root) :]: info for name, info in ckpt.tensors.items() if name.startswith(root)}
    drop = {name for glob in model.family.drop for name in named(glob, found)} if model is not None else set()
    return {name: info for name, info in found.items() if "/" not in name and name not in drop}


@contextlib.contextmanager
def with_config(ckpt: Checkpoint, name: str, data: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with the checkpoint's weights (links to them) and another config, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / name).write_text(json.dumps(data), "utf-8")
        for file in ckpt.files:
            (Path(place) / file.path.name).symlink_to(file.path.resolve())
        yield Path(place)


def as_tensor(info: TensorInfo) -> Tensor:
    """A stored tensor, in torch."""
    from ..torch_io import tensor

    read: Tensor = tensor(read_bytes(info), info.dtype, info.shape)
    return read


def as_tensors(stored: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {name: as_tensor(info) for name, info in stored.items()}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape hold the same values, the other's rounded as the one's are; NaN is NaN."""
    other = other.to(one.dtype)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def leaves(value: Any) -> Iterator[Tensor]:
    """The floating tensors of nested lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)


def flattened(value: Any) -> Tensor:
    """All of what a model computes, as one row of float32."""
    import torch

    return torch.cat([one.flatten().float() for one in leaves(value)])


def averaged(value: Tensor, width: int | None) -> Tensor:
    """Features (n, d), (n, rows, d), (n, d, h, w) or (n, h, w, d) -> (n, d), places averaged."""
    value = value.float()
    if value.ndim == 4:
        return value.mean((1, 2)) if value.shape[-1] == width and value.shape[1] != width else value.mean((2, 3))
    return value if value.ndim == 2 else value.flatten(1, -2).mean(1)
