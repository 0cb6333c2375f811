"""timm's architectures (checked against timm 1.0.31: names, tensors, and what its loading path does to them).

`plain`: one grid for the whole model. `staged`: grids and windows that differ from stage to stage. `independent`: what
holds for every size, and what holds for one only.
"""

from __future__ import annotations

from ...rules import Family
from . import independent, plain, staged

FAMILIES: tuple[Family, ...] = (*staged.FAMILIES, *plain.FAMILIES, *independent.FAMILIES)
