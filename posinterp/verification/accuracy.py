"""How many images with known classes a classifier gets right: the source at its own size, the checkpoint at its."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadFile, BadUsage, NotFound, PosinterpError, Unsupported
from ..size import Size
from . import timm
from .case import Case
from .home import origin_of
from .images import SUFFIXES, Pixels, prepared, read_image
from .loaded import Loaded, in_words

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
Draw = Callable[[Size, int, Sequence[float], Sequence[float]], Pixels]


@dataclass(frozen=True)
class Labelled:
    """Images with their classes. `draw`: as `images.Images.draw`; `labels`: the class of each, counted from 0."""

    name: str
    draw: tuple[Draw, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Accuracy:
    """How many of `of` images were classified right by a model at `size`."""

    what: str
    size: Size
    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of

    @property
    def error(self) -> float:
        """The standard error of the share (binomial)."""
        return math.sqrt(self.share * (1 - self.share) / self.of)


def read_labelled(place: str | Path) -> Labelled:
    """Images with their classes.

    Args:
        place: a folder with a folder of images for each class, classes in the order of their names; or an .npz with
            `images`, uint8 (n, h, w) or (n, h, w, 3), and `labels`, integers (n,).

    Raises:
        NotFound: it is not there; BadFile: it is damaged, or holds other arrays; BadUsage: a folder without such
        images.
    """
    path = Path(place)
    if path.is_dir():
        return _of_folders(path)
    if not path.is_file():
        raise NotFound(f"there are no images at {path}", hint="name a folder with a folder for each class, or an .npz")
    try:
        with np.load(path, allow_pickle=False) as held:
            images, labels = held["images"], held["labels"]
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise BadFile(f"{path} holds no labelled images: {error}", hint="an .npz with images and labels does") from None
    shaped = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)
    if not shaped or images.dtype != np.uint8 or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise BadFile(
            f"{path} holds images of shape {images.shape} and dtype {images.dtype}, and labels of shape {labels.shape}",
            hint="images are uint8 (n, h, w) or (n, h, w, 3), labels integers (n,)",
        )

    def image(pixels: np.ndarray) -> Draw:
        from PIL.Image import fromarray

        return lambda size, *how: prepared(fromarray(pixels), size, *how)

    return Labelled(path.name, tuple(map(image, images)), tuple(int(n) for n in labels))


def _of_folders(path: Path) -> Labelled:
    classes = sorted(folder for folder in path.iterdir() if folder.is_dir())
    found = [
        (file, n)
        for n, folder in enumerate(classes)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES and file.is_file()
    ]
    if not found:
        raise BadUsage(f"{path} holds no folder of images", hint="it has one for each class: DATA/cat/1.jpg")

    def image(file: Path) -> Draw:
        return lambda size, *how: read_image(file, size, *how)

    return Labelled(path.name, tuple(image(file) for file, _ in found), tuple(n for _, n in found))


def accuracies(case: Case, data: Labelled) -> tuple[Accuracy, Accuracy]:
    """Of the source, and of the checkpoint, on all of the images, each squeezed to the model's size (bicubic).

    Raises Unsupported where the model is no classifier of timm's, or has fewer classes than the labels ask for.
    """
    model = case.models[0] if case.models else None
    origin = None if model is None else origin_of(case, model)
    if (
        model is None
        or origin is None
        or origin.src_img is None
        or model.family.home != "timm"
        or not case.architecture
    ):
        raise Unsupported("accuracy is measured of timm's models only, whose architecture a config says")
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            before = _measured("source", timm.source(case, origin), origin.src_img, data)
            after = _measured("this", timm.result(case, model), case.size, data)
        except PosinterpError:
            raise
        except Exception as error:  # the home library's
            raise Unsupported(f"accuracy was not measured: {in_words('timm', error)}") from None
    return before, after


def _measured(what: str, loaded: Loaded, size: Size, data: Labelled) -> Accuracy:
    import torch

    kind = next(loaded.module.parameters()).dtype
    right = 0
    for first in range(0, len(data.draw), BATCH):
        drawn = [draw(size, loaded.channels, loaded.mean, loaded.std) for draw in data.draw[first : first + BATCH]]
        logits: Tensor = loaded.module(torch.from_numpy(np.stack(drawn)).to(kind))
        if logits.ndim != 2 or logits.shape[1] <= max(data.labels):
            raise Unsupported(
                f"the model tells {logits.shape[-1]} classes apart, and {data.name} has class {max(data.labels)}"
            )
        right += int((logits.argmax(1) == torch.tensor(data.labels[first : first + BATCH])).sum())
    return Accuracy(what, size, right, len(data.labels))
