"""What is held against what: a checkpoint, what it should be, and which of its tensors is which of the source's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models import Model
from ..optimizer import optimizers
from ..planning import Edit, Plan, Wish
from ..size import Size
from ..store import Checkpoint, Config
from ..store.tensors import TensorInfo


@dataclass(frozen=True)
class Case:
    """What is held against what.

    `own`: the checkpoint's config, if it is certainly its own; `size`: the size it should be for, said by `origin`;
    `models`: what it holds at that size, empty if `misfit` says why not; `plan`: what should have become of the
    source, or `unplanned` says why there is none; `names`: the source's tensor names -> the checkpoint's.
    """

    out: Checkpoint
    own: Config | None
    size: Size
    origin: str
    made_by: Mapping[str, Any] | None = None
    recipe_fault: str = ""
    models: tuple[Model, ...] = ()
    misfit: str = ""
    source: Checkpoint | None = None
    plan: Plan | None = None
    unplanned: str = "no --against: nothing to compare with"
    wish: Wish = field(default_factory=Wish)
    names: Mapping[str, str] = field(default_factory=dict)
    architecture: str | None = None
    arguments: Mapping[str, Any] | None = None
    allow_nonfinite: bool = False

    def edits(self) -> Iterator[tuple[Edit, TensorInfo, TensorInfo | None]]:
        """Each edit that concerns the checkpoint, with the source's tensor and what became of it."""
        if self.plan is not None and self.source is not None:
            tensors, found = self.source.tensors, self.out.tensors
            for edit in (*self.plan.edits, *self.plan.moments):
                if edit.name in self.names:
                    yield edit, tensors[edit.name], found.get(self.names[edit.name])


# ------------------------------------------------------------------ branches of a pickle


def branch_of(name: str) -> str:
    """The branch of a pickle that a tensor stands in: "model/" of "model/pos_embed"."""
    return name[: name.rfind("/") + 1]


def within_branch(name: str) -> str:
    """A tensor's name in its branch."""
    return name[len(branch_of(name)) :]


def largest_branch(ckpt: Checkpoint) -> str:
    """The branch with the most tensors."""
    return Counter(map(branch_of, ckpt.tensors)).most_common(1)[0][0]


def optimizer_branches(ckpt: Checkpoint) -> tuple[str, ...]:
    """Branches of a pickle that hold an optimizer's state: no weights, and of the checkpoint's own making."""
    return tuple(f"{key}/" for key in optimizers(ckpt.files[0].tree))
