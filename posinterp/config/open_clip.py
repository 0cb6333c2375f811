"""The input size in OpenCLIP's open_clip_config.json."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Unsupported
from ..size import Size
from ..store import Config
from .fields import ABSENT, ConfigEdit, edit_of, get, size_in

TOWER = ("model_cfg", "vision_cfg")
SIZE = (*TOWER, "image_size")
PREPARED = ("preprocess_cfg", "size")


def is_one(config: Config) -> bool:
    return isinstance(get(config.data, TOWER), dict)


def words(config: Config) -> str:
    """ "open_clip/native", or timm's name of the tower."""
    name = get(config.data, (*TOWER, "timm_model_name"))
    return name if isinstance(name, str) else "open_clip/native"


def source_sizes(config: Config) -> Iterator[tuple[str, Size]]:
    """The tower's image size. Raises BadConfig for a field that holds none."""
    value = get(config.data, SIZE)
    if value is not ABSENT:
        yield f"{config.path.name} {'.'.join(SIZE)}", size_in(config, ".".join(SIZE), value)


def edits(config: Config, new: Size, *, patch: tuple[int, int] | None) -> tuple[ConfigEdit, ...]:
    """The edits for a new size. Raises Unsupported for a timm tower, which open_clip builds at its name's size."""
    name = words(config)
    if name != "open_clip/native":
        raise Unsupported(
            f"open_clip builds its timm tower {name} at that name's own size, whatever the config says",
            hint="name a file as the output (-o NAME.safetensors), and load it by a timm name of the new size",
        )
    both = new[0] if new.square else list(new)
    found = [edit_of(config, SIZE, both)]
    if patch is not None:
        found.append(edit_of(config, (*TOWER, "patch_size"), patch[0]))
    if get(config.data, PREPARED) is not ABSENT:
        found.append(edit_of(config, PREPARED, both))
    return tuple(edit for edit in found if edit.before != edit.after)
