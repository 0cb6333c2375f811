"""The input size in Hugging Face configs: config.json, and what the preprocessor makes of an image.

A config nests others (`vision_config`, `backbone_config`, `encoder`), each with its `model_type`; the size stands in
the one of the vision tower, as one number or as (height, width), and is written back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import BadConfig
from ..size import Size
from ..store import Checkpoint, Config, read_json
from .fields import ABSENT, ConfigEdit, edit_of, get, size_in

SIZES = ("image_size", "input_size", "crop_size")
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
PREPARED = ("size", "crop_size", "pad_size")
SIDES = ("height", "width", "shortest_edge", "longest_edge")
TOKENS = ("image_seq_length", "num_image_tokens")  # of an image, in the prompt of a language model
DEEPEST = 6


def is_one(config: Config) -> bool:
    """Whether a config is of this kind: it, or one inside it, has a `model_type`."""
    return any(isinstance(section.get("model_type"), str) for _, section in _sections(config.data))


def words(config: Config) -> str:
    """The model types, the outer one first: "transformers/llava transformers/clip_vision_model"."""
    found = [section.get("model_type") for _, section in _sections(config.data)]
    return " ".join(dict.fromkeys(f"transformers/{name}" for name in found if isinstance(name, str)))


def _sections(data: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """A config and all that are nested in it, with the keys that lead there; not the text towers."""
    if not isinstance(data, dict) or len(keys) > DEEPEST:
        return
    yield keys, data
    for key, value in data.items():
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder")) and "text" not in key:
            yield from _sections(value, (*keys, key))


def _fields(config: Config) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field that says an image size, the innermost first: that is the vision tower's."""
    found = [
        ((*keys, name), section[name])
        for keys, section in _sections(config.data)
        for name in SIZES
        if section.get(name) is not None
    ]
    yield from sorted(found, key=lambda field: -len(field[0]))


def source_sizes(config: Config) -> Iterator[tuple[str, Size]]:
    """Every field that says the image size, with its value. Raises BadConfig for a field that holds no size."""
    for keys, value in _fields(config):
        name = ".".join(keys)
        yield f"{config.path.name} {name}", size_in(config, name, value)


def edits(
    source: Checkpoint,
    old: Size,
    new: Size,
    *,
    places: tuple[int, int],
    patch: tuple[int, int] | None,
    kernel: tuple[int, int] | None,
) -> tuple[ConfigEdit, ...]:
    """The edits of a folder's configs for a new input size.

    `places`: of the grid before and after, for the token counts that follow it; `patch`: the new one, if there is one;
    `kernel`: the patch convolution's sides, which a config may not deny.

    Raises BadConfig where it does.
    """
    config = source.config
    assert config is not None
    found: list[ConfigEdit] = []
    for keys, value in _fields(config):
        if size_in(config, ".".join(keys), value) == old:
            found.append(edit_of(config, keys, _as_it_was(value, new)))
            section = get(config.data, keys[:-1])
            _check_patch(config, (*keys[:-1], "patch_size"), kernel)
            if patch is not None and isinstance(section, dict) and isinstance(section.get("patch_size"), int):
                found.append(edit_of(config, (*keys[:-1], "patch_size"), patch[0]))
    text = config.data.get("text_config")
    for keys, section in (*_sections(config.data), *([(("text_config",), text)] if isinstance(text, dict) else [])):
        for name in TOKENS:
            more = section[name] - places[0] if isinstance(section.get(name), int) else -1
            if more in (0, 1):  # the class token is one more
                found.append(edit_of(config, (*keys, name), places[1] + more))
        if "image_embedding_size" in section:
            found.append(_scaled(config, (*keys, "image_embedding_size"), old, new))
    for preparation in preparations(source):
        found += _prepared(preparation, old, new)
    return tuple(edit for place, edit in enumerate(found) if edit.before != edit.after and edit not in found[:place])


def _check_patch(config: Config, keys: tuple[str, ...], kernel: tuple[int, int] | None) -> None:
    value = get(config.data, keys)
    if value is ABSENT or value is None or kernel is None:
        return
    sides = value if isinstance(value, list) else [value, value]
    if sides != list(kernel):
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
        own = "x".join(map(str, dict.fromkeys(kernel)))
        raise BadConfig(f"{config.path}: {'.'.join(keys)} is {shown}; the kernel that cuts the patches is {own} pixels")


def _as_it_was(value: Any, new: Size) -> Any:
    return list(new) if isinstance(value, list) or not new.square else new[0]


def _scaled(config: Config, keys: tuple[str, ...], old: Size, new: Size) -> ConfigEdit:
    value = get(config.data, keys)
    sides = size_in(config, ".".join(keys), value)
    scaled = [side * after // before for side, before, after in zip(sides, old, new, strict=True)]
    return edit_of(config, keys, scaled if isinstance(value, list) else scaled[0])


def preparations(source: Checkpoint) -> Iterator[Config]:
    """The files of a folder that say how an image is prepared."""
    for name in PREPROCESSORS if source.folder is not None else ():
        path = source.folder / name if source.folder is not None else None
        if path is not None and path.is_file():
            data = read_json(path, what="preprocessor", error=BadConfig)
            if isinstance(data, dict):
                yield Config(path, data)


def _prepared(config: Config, old: Size, new: Size) -> Iterator[ConfigEdit]:
    """Sizes and crops in proportion: what is 256 before a crop of 224 becomes 439 before one of 384."""
    for keys in ((), ("image_processor",)):
        section = get(config.data, keys)
        for name in PREPARED if isinstance(section, dict) else ():
            value = section.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                yield edit_of(config, (*keys, name), round(value * max(new) / max(old)))
            elif isinstance(value, dict):
                for side in SIDES:
                    if isinstance(value.get(side), int):
                        yield edit_of(config, (*keys, name, side), _side(value[side], side, old, new))


def _side(value: int, side: str, old: Size, new: Size) -> int:
    picked = {
        "height": (new[0], old[0]),
        "width": (new[1], old[1]),
        "shortest_edge": (min(new), min(old)),
        "longest_edge": (max(new), max(old)),
    }[side]
    return round(value * picked[0] / picked[1])


__all__ = ["ABSENT", "edits", "is_one", "preparations", "source_sizes", "words"]
