"""Every architecture this package knows, as data: one table per home library.

The first family that fits decides, so narrow ones stand before wide ones.
"""

from __future__ import annotations

from ..errors import UnknownFamily, did_you_mean
from ..rules import Family
from . import jax, open_clip, peg, research, timm, transformers, vit_pytorch

FAMILIES: tuple[Family, ...] = (
    *research.FAMILIES,
    *jax.FAMILIES,
    *open_clip.FAMILIES,
    *peg.FAMILIES,
    *timm.FAMILIES,
    *transformers.FAMILIES,
    *vit_pytorch.FAMILIES,
)


def family_named(name: str) -> tuple[Family, ...]:
    """The families that a user's word names: one by its own name, or all that know a home library's model name.

    Raises UnknownFamily with the nearest names.
    """
    own = tuple(family for family in FAMILIES if family.name == name)
    found = own or tuple(family for family in FAMILIES if family.knows(name.partition(".")[0]))
    if not found:
        hint = did_you_mean(name, (family.name for family in FAMILIES), cutoff=0.4)
        raise UnknownFamily(f"there is no family {name!r}", hint=hint + "`posinterp families` lists them")
    return found
