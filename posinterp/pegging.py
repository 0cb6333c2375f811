"""From a learned position table to PEGs: what each tensor becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BadUsage

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Folded:
    """What takes the constant part of a table: the patch embedding's bias (C,), and prefix tokens (1, n, C) by name."""

    bias: Array
    tokens: dict[str, Array]


def folded(table: Array, bias: Array, tokens: Mapping[str, Array], *, prefix: int) -> Folded:
    """Fold a table (1, prefix + h·w, C): the mean over its places into the bias, its first rows into the tokens.

    `tokens` are in the order of their rows; none of them is changed if `prefix` is 0 (timm's `no_embed_class`).
    """
    rows = table[0, :prefix]
    new = {}
    for name, token in tokens.items():
        own, rows = rows[: token.shape[1]], rows[token.shape[1] :]
        new[name] = token + own if prefix else token
    return Folded(bias + table[0, prefix:].mean(0), new)


def check_places(after: Sequence[int], depth: int) -> None:
    """Raises BadUsage for places that are not blocks, or after which nothing would read what a PEG says."""
    wrong = [i for i in after if not 0 <= i <= depth - 2]
    if wrong or not after:
        what = f"no PEG can stand after block {wrong[0]}" if wrong else "no block was given after which a PEG stands"
        raise BadUsage(
            f"{what}: the model has {depth} blocks",
            hint=f"0 to {depth - 2}: after the last one, no block carries positions to the class token",
        )
