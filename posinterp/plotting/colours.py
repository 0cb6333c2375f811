"""Colour maps that the colour-blind can read, without matplotlib: viridis, and ColorBrewer's RdBu for signed values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .panels import Scale, Values

# Anchors, evenly spaced, between which colours are mixed: viridis (van der Walt and Smith, matplotlib) at 17 places,
# and RdBu (Brewer) from blue to red.
VIRIDIS = (
    "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 84d44b addc30 d8e219 "
    "fde725"
)
RED_BLUE = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f"
NAMES = {False: "viridis", True: "RdBu_r"}  # matplotlib's, by whether the values are signed


def coloured(values: Values, scale: Scale) -> NDArray[np.uint8]:
    """Values on a scale as 24-bit colours: (...) -> (..., 3). What lies outside the scale has the colour of its end."""
    anchors = _anchors(RED_BLUE if scale.signed else VIRIDIS)
    at = np.clip((values - scale.low) / (scale.high - scale.low), 0, 1)
    spots = np.linspace(0, 1, len(anchors))
    mixed = np.stack([np.interp(np.nan_to_num(at), spots, anchors[:, k]) for k in range(3)], -1)
    return np.rint(mixed).astype(np.uint8)


def _anchors(text: str) -> Values:
    return np.array([[int(word[i : i + 2], 16) for i in (0, 2, 4)] for word in text.split()], dtype=np.float64)
