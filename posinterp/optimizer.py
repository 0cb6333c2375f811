"""The state of an optimizer in a training checkpoint: its moments have the shapes of the parameters they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import BadUsage, Unsupported
from .size import shape_text
from .store import Checkpoint
from .store.tensors import TensorInfo

if TYPE_CHECKING:
    from .planning import Edit

SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum")  # of which a root is taken
FACTORED = ("exp_avg_sq_row", "exp_avg_sq_col")  # Adafactor's, which do not have the parameter's shape
CHOICES = ("drop", "keep")


def optimizers(tree: Any) -> tuple[str, ...]:
    """The keys of a pickle's top level under which optimizers stand: what `Optimizer.state_dict` returns."""
    held = tree.items() if isinstance(tree, dict) else ()
    return tuple(str(key) for key, value in held if isinstance(value, dict) and {"state", "param_groups"} <= {*value})


def moment_edits(source: Checkpoint, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits of every moment of a parameter that is edited: the parameter's own, a sum of squares kept above zero.

    An optimizer numbers parameters, and does not name them: a moment is known by its shape.

    Raises:
        BadUsage: the file has no optimizer.
        Unsupported: two parameters have that shape and become different things, or moments have other shapes.
    """
    roots = tuple(f"{key}/" for key in optimizers(source.files[0].tree))
    if not roots:
        raise BadUsage(f"{source.path} holds no optimizer whose state could be kept", hint="leave --optimizer out")
    becomes: dict[tuple[int, ...], Edit] = {}
    edited = {edit.name for edit in edits}
    for edit in edits:
        other = becomes.setdefault(edit.shape, edit)
        if edit.kernel:
            raise Unsupported(
                "moments of a patch kernel that is resized mean nothing for the new one", hint="use --optimizer drop"
            )
        if replace(edit, name="") != replace(other, name=""):
            raise Unsupported(f"{edit.name} and {other.name} have one shape, and {_whose(edit.shape)}", hint=DROP)
    for name, info in source.tensors.items():
        if info.shape in becomes and name not in edited and not name.startswith(roots):
            raise Unsupported(
                f"{name} has the shape of {becomes[info.shape].name}, and {_whose(info.shape)}", hint=DROP
            )
    return tuple(_edits(source.tensors, roots, becomes))


DROP = "use --optimizer drop: the optimizer starts anew"


def _whose(shape: tuple[int, ...]) -> str:
    return f"a moment of {shape_text(shape)} does not say whose it is"


def _edits(tensors: Mapping[str, TensorInfo], roots: tuple[str, ...], becomes: Mapping[tuple[int, ...], Edit]) -> Any:
    for name, info in tensors.items():
        leaf = name.rpartition("/")[2]
        if not name.startswith(roots):
            continue
        if leaf in FACTORED:
            raise Unsupported(f"{name} is a part of factored moments, which follow no single parameter", hint=DROP)
        if info.shape in becomes:
            yield replace(becomes[info.shape], name=name, floor=leaf in SQUARES)
