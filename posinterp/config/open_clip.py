"""The input size in OpenCLIP's open_clip_config.json."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Unsupported
from ..families.open_clip import TIMM_TOWERS
from ..size import Size
from ..store import Config
from .fields import ABSENT, ConfigEdit, edit_of, get, size_in

TOWER = ("model_cfg", "vision_cfg")
SIZE = (*TOWER, "image_size")
NAME = (*TOWER, "timm_model_name")
PREPARED = ("preprocess_cfg", "size")


def is_one(config: Config) -> bool:
    return isinstance(get(config.data, TOWER), dict)


def words(config: Config) -> str:
    """ "open_clip/native", or timm's name of the tower."""
    name = get(config.data, NAME)
    return name if isinstance(name, str) else "open_clip/native"


def source_sizes(config: Config) -> Iterator[tuple[str, Size]]:
    """The tower's image size. Raises BadConfig for a field that holds none."""
    value = get(config.data, SIZE)
    if value is not ABSENT:
        yield f"{config.path.name} {'.'.join(SIZE)}", size_in(config, ".".join(SIZE), value)


def edits(config: Config, new: Size, *, patch: tuple[int, int] | None, takes_img_size: bool) -> tuple[ConfigEdit, ...]:
    """The edits for a new size. A timm tower that is built for a size gets the name of the one for the new size.

    Raises Unsupported where timm has no such name: open_clip would build the old one.
    """
    found = [_resized(config, SIZE, new)]
    name = get(config.data, NAME)
    if isinstance(name, str) and (patch is not None or (takes_img_size and found[0].before != found[0].after)):
        found.insert(0, edit_of(config, NAME, _named(name, new, patch=patch)))
    elif patch is not None:
        found.append(edit_of(config, (*TOWER, "patch_size"), patch[0]))
    if get(config.data, PREPARED) is not ABSENT:
        found.append(_resized(config, PREPARED, new))
    return tuple(edit for edit in found if edit.before != edit.after)


def _resized(config: Config, keys: tuple[str, ...], new: Size) -> ConfigEdit:
    """A size, written back as it was: one number or two."""
    return edit_of(config, keys, list(new) if isinstance(get(config.data, keys), list) or not new.square else new[0])


def _named(name: str, new: Size, *, patch: tuple[int, int] | None) -> str:
    """timm's name of the same tower for another size."""
    stem, _, _ = name.rpartition("_")
    sizes = TIMM_TOWERS.get(stem, ())
    if patch is None and new.square and new[0] in sizes:
        return f"{stem}_{new[0]}"
    known = f"; timm has it for {', '.join(map(str, sizes))}" if sizes else ""
    raise Unsupported(
        f"open_clip builds its timm tower {name} at that name's own size, whatever the config says{known}",
        hint="resize its weights file by itself, to a file, and load what is below visual.trunk by timm with img_size=",
    )
