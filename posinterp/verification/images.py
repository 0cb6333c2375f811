"""Images to compare features on: a folder's, or patterns that are the same at every size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import BadFile, BadUsage, NotFound
from ..size import Size

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
MOST = 64  # images of a folder that are looked at
WAVES = 24  # of a pattern
FINEST = 3.0  # cycles a side: what grids of few places can show
PATTERNS = 4
Pixels = NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    """Images by what draws each: (size, channels, mean, std) -> (channels, height, width), as a model expects them."""

    what: str
    draw: tuple[Callable[[Size, int, Sequence[float], Sequence[float]], Pixels], ...]


def patterns() -> Images:
    """Sums of slow waves, the slower the stronger, as in photographs; of mean 0 and standard deviation about 1."""

    def pattern(seed: int) -> Callable[[Size, int, Sequence[float], Sequence[float]], Pixels]:
        def draw(size: Size, channels: int, mean: Sequence[float], std: Sequence[float]) -> Pixels:
            drawn = np.random.default_rng(seed)
            cycles = drawn.uniform(-FINEST, FINEST, (WAVES, 2))
            phases = drawn.uniform(0, 2 * np.pi, (WAVES, channels))
            strength = 1 / (0.5 + np.hypot(*cycles.T))
            strength *= np.sqrt(2 / (strength**2).sum())
            rows, columns = ((np.arange(n) + 0.5) / n for n in size)
            angle = 2 * np.pi * (cycles[:, :1, None] * rows[:, None] + cycles[:, 1:, None] * columns)  # (waves, h, w)
            waves = np.sin(angle[:, None] + phases[..., None, None])  # (waves, channels, h, w)
            return np.asarray(np.tensordot(strength, waves, 1), dtype=np.float32)

        return draw

    return Images("patterns", tuple(map(pattern, range(PATTERNS))))


def of_folder(folder: str | Path) -> Images:
    """The first images of a folder, in the order of their names.

    Raises NotFound: there is no such folder; BadUsage: it holds no image.
    """
    place = Path(folder)
    if not place.is_dir():
        raise NotFound(f"there is no folder at {place}", hint="--images takes a folder of images")
    paths = sorted(path for path in place.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise BadUsage(f"{place} holds no image", hint=f"images end in {', '.join(SUFFIXES)}")

    def image(path: Path) -> Callable[[Size, int, Sequence[float], Sequence[float]], Pixels]:
        return lambda size, channels, mean, std: read_image(path, size, channels, mean, std)

    return Images("images", tuple(map(image, paths[:MOST])))


def read_image(path: Path, size: Size, channels: int, mean: Sequence[float], std: Sequence[float]) -> Pixels:
    """An image, squeezed to a size (bicubic) and normalised; mean and std of 0.5 where none are said."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return prepared(opened, size, channels, mean, std)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadFile(f"{path} cannot be read as an image: {error}", hint="take it out of the folder") from None


def prepared(opened: Image.Image, size: Size, channels: int, mean: Sequence[float], std: Sequence[float]) -> Pixels:
    """An image of PIL's as a model expects it: see `read_image`."""
    from PIL import Image

    image = opened.convert("L" if channels == 1 else "RGB").resize((size[1], size[0]), Image.Resampling.BICUBIC)
    values = np.asarray(image, dtype=np.float32).reshape(*size, -1) / 255
    centre, spread = ((said if len(said) == values.shape[-1] else (0.5,)) for said in (mean, std))
    return np.ascontiguousarray(((values - centre) / spread).transpose(2, 0, 1), dtype=np.float32)
