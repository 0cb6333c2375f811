"""The conventions of resampling, by name: everything another implementation needs to get the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import BadUsage, did_you_mean

NAMES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area", "lanczos3", "geometric")
SINES = "sincos"
DISTANCES = "index of distances"  # which nobody can ask for: a family does
FORMULAS = (SINES, DISTANCES)  # no resampling: fixed tables, and indices of tables of distances, are computed anew
ANTIALIASED = ("bilinear", "bicubic", "lanczos3")
ALIGNABLE = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Method:
    """One convention of resampling.

    `antialias`: widen the kernel by the scale when shrinking (and, for bicubic, take a = -0.5 at any scale).
    `align_corners`: first and last cells of both grids coincide. With `antialias` it does what torch does: the step
    becomes (source - 1) / (target - 1) but places stay half-pixel, so that no corners coincide; nobody relies on it.
    `offset`: None for size-based steps (source / target); else the step is source / (target + offset), as in
    DINO and DINOv2, whose scale factor carries 0.1.
    """

    name: str = "bicubic"
    antialias: bool = False
    align_corners: bool = False
    offset: float | None = None

    def __post_init__(self) -> None:
        if self.name not in (*NAMES, *FORMULAS):
            near = did_you_mean(self.name, (*NAMES, SINES))
            raise BadUsage(
                f"there is no method {self.name!r}", hint=f"{near}the methods are {', '.join(NAMES)}, {SINES}"
            )
        if self.antialias and self.name not in ANTIALIASED:
            raise BadUsage(f"{self.name} has no antialiased form", hint=f"only {', '.join(ANTIALIASED)} have one")
        if self.align_corners and self.name not in ALIGNABLE:
            raise BadUsage(f"{self.name} has no align-corners form", hint=f"only {', '.join(ALIGNABLE)} have one")

    @property
    def computes(self) -> bool:
        """Whether it computes a tensor anew, by a formula, instead of resampling it."""
        return self.name in FORMULAS

    def __str__(self) -> str:
        parts = [self.name]
        if self.antialias:
            parts.append("antialias")
        if self.align_corners:
            parts.append("align-corners")
        if self.offset is not None:
            parts.append(f"offset {self.offset:g}")
        return ", ".join(parts)

    def changed(
        self, name: str | None = None, *, antialias: bool | None = None, align_corners: bool | None = None
    ) -> Method:
        """This method with what the user asked for put in; a new name brings that name's usual form with it."""
        base = self
        if name is not None:
            aligned = bool(align_corners)
            aa = name in ANTIALIASED and not aligned and antialias is not False
            base = Method(name, antialias=aa)
        if antialias is not None:
            base = replace(base, antialias=antialias)
        if align_corners is not None:
            base = replace(base, align_corners=align_corners)
        return base
