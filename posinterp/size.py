"""Image sizes: parsing and printing. Always (height, width)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .errors import BadSize

LARGEST = 1 << 20  # pixels a side: beyond it a table would not fit on any disk


class Size(tuple[int, ...]):
    """(height, width) in pixels.

    >>> Size.parse("384"), str(Size.parse("384x512"))
    ((384, 384), '384x512')
    """

    __slots__ = ()

    @classmethod
    def of(cls, sides: int | Iterable[int]) -> Size:
        """A size from one side, or from two. Raises BadSize for others, and for sides out of range."""
        both = (sides, sides) if isinstance(sides, int) else tuple(sides)
        if len(both) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in both):
            raise BadSize(f"{sides!r} is no image size", hint="give one side, or height and width")
        for side in both:
            if not 1 <= side <= LARGEST:
                shown = str(side) if abs(side) < 10**12 else "a number of more than twelve digits"
                raise BadSize(
                    f"an image side of {shown} pixels is {'too large' if side > LARGEST else 'not positive'}",
                    hint=f"sides are between 1 and {LARGEST}, and multiples of the patch size",
                )
        return cls(both)

    @classmethod
    def parse(cls, text: str) -> Size:
        """A size from "384" or "384x512" (height × width). Raises BadSize."""
        found = re.fullmatch(r"([+-]?\d{1,40})(?:[xX×]([+-]?\d{1,40}))?", text.strip())
        if found is None:
            raise BadSize(
                f"{text[:60]!r} is no image size: one or two whole numbers were expected",
                hint="write 384, or 384x512 for height x width, in pixels: positive multiples of the patch size",
            )
        height = int(found[1])
        return cls.of((height, int(found[2]) if found[2] else height))

    @property
    def square(self) -> bool:
        return self[0] == self[1]

    def __str__(self) -> str:
        return str(self[0]) if self.square else "x".join(map(str, self))


def as_size(value: int | Sequence[int] | str) -> Size:
    """A size from whatever a caller has. Raises BadSize."""
    return Size.parse(value) if isinstance(value, str) else Size.of(value)


def shape_text(shape: Iterable[int]) -> str:
    """A tensor's shape for people: 1×197×768."""
    return "×".join(map(str, shape)) or "a scalar"
