"""Image sizes: parsing and printing. Always (height, width), with the frames of a clip where there are any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import index
from typing import Any

from .errors import BadSize

LARGEST = 1 << 20  # pixels a side: beyond it a table would not fit on any disk


class Size(tuple[int, ...]):
    """(height, width) in pixels. `frames`: of a clip, or slices of a volume; None where nobody speaks of them.

    >>> Size.parse("384"), str(Size.parse("384x512")), Size.parse("96x160x160").frames
    ((384, 384), '384x512', 96)
    """

    frames: int | None = None

    def of_frames(self, frames: int | None) -> Size:
        """The same size, of so many frames. Raises BadSize for a number that is none."""
        if frames is not None and not 1 <= frames <= LARGEST:
            raise BadSize(f"{frames} is no number of frames", hint=f"it is between 1 and {LARGEST}")
        size = Size(self)
        size.frames = frames
        return size

    @classmethod
    def of(cls, sides: int | Iterable[int]) -> Size:
        """A size from one side, from two, or from three with the frames first.

        Raises BadSize for others, and for sides out of range.
        """
        both: tuple[int, ...] = ()
        with suppress(TypeError):
            both = (_whole(sides),) * 2
        with suppress(TypeError):
            both = both or tuple(map(_whole, sides))  # type: ignore[arg-type]
        if len(both) == 3:
            return cls.of(both[1:]).of_frames(both[0])
        if len(both) != 2:
            raise BadSize(f"{sides!r} is no image size", hint="give one side, or height and width, in whole pixels")
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
        """A size from "384", "384x512" (height × width) or "96x160x160" (frames × height × width). Raises BadSize."""
        found = re.fullmatch(r"([+-]?\d{1,40})(?:[xX×]([+-]?\d{1,40}))?(?:[xX×]([+-]?\d{1,40}))?", text.strip())
        if found is None:
            raise BadSize(
                f"{text[:60]!r} is no image size: one, two or three whole numbers were expected",
                hint="write 384, or 384x512 for height x width, in pixels: positive multiples of the patch size",
            )
        sides = [int(side) for side in found.groups() if side]
        return cls.of(sides if len(sides) > 1 else sides * 2)

    @property
    def square(self) -> bool:
        return self[0] == self[1]

    def __str__(self) -> str:
        if self.frames is not None:
            return "x".join(map(str, (self.frames, *self)))
        return str(self[0]) if self.square else "x".join(map(str, self))


def _whole(side: Any) -> int:
    """A number that counts, numpy's and torch's too. Raises TypeError for 384.0, True and "384"."""
    if isinstance(side, bool):
        raise TypeError
    return index(side)


def as_size(value: int | Sequence[int] | str) -> Size:
    """A size from whatever a caller has. Raises BadSize."""
    return Size.parse(value) if isinstance(value, str) else Size.of(value)


def shape_text(shape: Iterable[int]) -> str:
    """A tensor's shape for people: 1×197×768."""
    return "×".join(map(str, shape)) or "a scalar"
