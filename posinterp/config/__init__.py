"""The input size in a model's configs: what they say, and the edits that make them say the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BadSize, Unsupported
from ..size import Size
from ..store import Checkpoint, Config
from . import huggingface, open_clip, timm
from .fields import ConfigEdit, applied

__all__ = [
    "Config",
    "ConfigEdit",
    "architecture",
    "arguments",
    "edited",
    "edits",
    "is_open_clip",
    "prepared_size",
    "recorded_size",
    "source_sizes",
]


def architecture(config: Config | None) -> str | None:
    """What the home library calls the model: timm's name, or model types, "transformers/clip_vision_model ...",
    or "open_clip/native"."""
    if config is None:
        return None
    if open_clip.is_one(config):
        return open_clip.words(config)
    return timm.architecture(config) or (huggingface.words(config) if huggingface.is_one(config) else None)


def is_open_clip(config: Config | None) -> bool:
    """Whether it is OpenCLIP's, which may have a timm tower."""
    return config is not None and open_clip.is_one(config)


def source_sizes(config: Config | None) -> Iterator[tuple[str, Size]]:
    """Every field that says the image size, with its value, the more trustworthy first.

    Raises BadConfig for a field that holds no size.
    """
    if config is None:
        return
    if open_clip.is_one(config):
        yield from open_clip.source_sizes(config)
    elif timm.architecture(config) is None and huggingface.is_one(config):
        yield from huggingface.source_sizes(config)
    else:
        yield from timm.source_sizes(config)


def arguments(config: Config | None) -> Mapping[str, Any]:
    """The arguments of the home library's constructor, as far as a config says them."""
    if config is None:
        return {}
    if not open_clip.is_one(config) and timm.architecture(config) is None and huggingface.is_one(config):
        return huggingface.arguments(config)
    return timm.arguments(config)


def recorded_size(source: Checkpoint) -> Iterator[tuple[str, Size]]:
    """The size that posinterp took the checkpoint to, as its recipe says."""
    said = source.recipe.get("to")
    try:
        if isinstance(said, list):
            yield "its recipe", Size.of(said).of_frames(source.recipe.get("frames"))
    except (BadSize, TypeError):
        return


def prepared_size(source: Checkpoint) -> Iterator[tuple[str, Size]]:
    """The size to which a preprocessor brings an image, of a folder whose config says none."""
    config = source.config
    if config is not None and huggingface.is_one(config) and not open_clip.is_one(config):
        for preparation in huggingface.preparations(source):
            if size := huggingface.prepared_size(preparation.data):
                yield preparation.path.name, size


def edits(
    source: Checkpoint,
    old: Size | None,
    new: Size,
    *,
    places: tuple[int, int],
    patch: tuple[int, int] | None,
    kernel: tuple[int, int] | None,
    takes_img_size: bool,
    arguments: Mapping[str, Any],
) -> tuple[ConfigEdit, ...]:
    """The edits of a checkpoint's configs for a new input size, and a new patch size if there is one.

    `places`: of the grid before and after; `kernel`: the patch convolution's sides; `takes_img_size`: whether timm's
    constructor has that argument; `arguments`: others that it must be told.
    """
    config = source.config
    if config is None:
        return ()
    if open_clip.is_one(config):
        try:
            return open_clip.edits(config, new, patch=patch, takes_img_size=takes_img_size)
        except Unsupported:
            if source.folder is not None:
                raise
            return ()  # from a file to a file, which takes no config with it
    if timm.architecture(config) is not None:
        return timm.edits(config, new, patch=patch, takes_img_size=takes_img_size, arguments=arguments)
    if huggingface.is_one(config) and old is not None:
        return huggingface.edits(source, old, new, places=places, patch=patch, kernel=kernel, arguments=arguments)
    return ()


def edited(config: Config, changes: tuple[ConfigEdit, ...]) -> dict[str, Any]:
    """A copy of a config with those of the edits made that are its own."""
    data, own = config.data, tuple(edit for edit in changes if edit.file == config.path.name)
    if timm.architecture(config) is not None:
        data, own = timm.completed(data, own)
    return applied(data, own)
