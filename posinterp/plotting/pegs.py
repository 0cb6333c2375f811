"""What a positional encoding generator (PEG) does: its kernels, and how its zero border tells places apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import BadUsage, BadValues, Unsupported
from ..families.peg import KERNELS
from ..measuring import Model
from ..rules import Sign
from ..size import shape_text
from ..store import Checkpoint
from ..store.tensors import read_float
from .panels import Axis, Figure, Panel, Scale, Values

SHOWN = (5, 5)  # kernels, in rows of so many
GRID = (14, 14)  # on which the response is shown where the checkpoint's own grid is not known


def kernels_of(models: Sequence[Model]) -> list[tuple[Model, str]]:
    """The depth-wise kernels of every PEG, by their names below the model's root."""
    return [(model, name) for model in models for sign in KERNELS for name in Sign(sign).named(model.tensors)]


def peg(source: Checkpoint, models: Sequence[Model], tensor: str | None) -> Figure:
    """The strongest kernels of a PEG, and its answer to an input that is the same everywhere.

    Raises Unsupported for a checkpoint without PEGs, BadUsage for a tensor that is none, BadValues for a PEG that is
    still zero or not finite.
    """
    found = {model.root + name: model for model, name in kernels_of(models)}
    if not found:
        raise Unsupported(
            f"there is no PEG in this {models[0].family.name}", hint="`posinterp peg` gives a ViT some; docs/peg.md"
        )
    if tensor is not None and tensor not in found:
        raise BadUsage(f"{tensor!r} is no kernel of a PEG", hint=f"there is {', '.join(list(found)[:4])}")
    name = tensor or next(iter(found))
    kernels = read_float(source.tensors[name])[:, 0]  # (channels, k, k)
    if not np.isfinite(kernels).all():
        raise BadValues(f"{name} holds values that are not finite (NaN or Inf)", hint="repair the checkpoint first")
    norm = float(np.linalg.norm(kernels))
    if not norm:
        raise BadValues(f"{name} is zero: this PEG is the identity", hint="train it, or fit it: docs/peg.md")
    grid = found[name].grid
    sides = (grid["h"], grid["w"]) if grid else GRID
    answer = response(kernels, sides)
    apart = np.linalg.norm(answer - answer[sides[0] // 2, sides[1] // 2], axis=-1) / norm
    strongest = np.argsort(-np.linalg.norm(kernels, axis=(1, 2)), kind="stable")[: SHOWN[0] * SHOWN[1]]
    count, side = kernels.shape[:2]
    pixels = found[name].stride
    panels = (
        Panel(f"{len(strongest)} strongest of {count} kernels", _tiled(kernels[strongest]), NONE, NONE, "kernel"),
        Panel(
            "output from a constant input",
            apart,
            Axis("patch row", tuple(range(sides[0])), float(pixels[0])),
            Axis("patch column", tuple(range(sides[1])), float(pixels[1])),
            "apart",
        ),
    )
    scales = {
        "kernel": Scale.of([kernels[strongest]], "weight", signed=True),
        "apart": Scale.of([apart, np.zeros(1)], "distance from the middle's output"),
    }
    model, outermost = found[name], "outermost" if side < 5 else f"{side // 2} outermost"
    at = f" at {model.src_img}" if model.src_img else ""
    caption = (
        f"{name} {shape_text(source.tensors[name].shape)} of {source.label}: {model.family.name} "
        f"({model.family.home}){at}. Left: depth-wise kernels, the strongest first. Right: what the convolution "
        f"answers to an input that is 1 everywhere, on a grid of {shape_text(sides)}: how far each place's output is "
        f"from the middle's, over all channels, relative to the kernels' norm. Only the {outermost} rows and columns, "
        "where the kernel reaches into the border of zeros, differ: that border is where positions come from."
    )
    channels = {"channels": [int(n) for n in strongest]}
    return Figure(
        "peg", name, f"{name}: kernels, and where they tell places apart", caption, (panels,), scales, channels
    )


NONE = Axis("", ())


def _tiled(kernels: Values) -> Values:
    """(n, k, k) as rows of tiles, the last filled with NaN: (rows, columns, k, k)."""
    rows = -(-len(kernels) // SHOWN[1])
    whole = np.full((rows * SHOWN[1], *kernels.shape[1:]), np.nan)
    whole[: len(kernels)] = kernels
    return whole.reshape(rows, SHOWN[1], *kernels.shape[1:])


def response(kernels: Values, sides: tuple[int, int]) -> Values:
    """What a depth-wise convolution with a border of zeros answers to ones.

    Args:
        kernels: (channels, k, k), k odd.
        sides: (h, w) of the grid.

    Returns:
        (h, w, channels): the sum of the taps that lie inside the grid.
    """
    side = kernels.shape[-1]
    ones = np.pad(np.ones(sides), side // 2)
    inside = np.lib.stride_tricks.sliding_window_view(ones, (side, side))  # (h, w, k, k)
    return np.asarray(np.tensordot(inside, kernels, axes=((2, 3), (1, 2))))
