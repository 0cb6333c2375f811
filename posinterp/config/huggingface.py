"""The input size in Hugging Face configs: config.json, and what the preprocessor makes of an image.

A config nests others (`vision_config`, `backbone_config`, `encoder`), each with its `model_type`; the size stands in
the one of the vision tower, as one number or as (height, width), and is written back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..errors import BadConfig, BadSize
from ..size import Size
from ..store import Checkpoint, Config, read_json
from .fields import ABSENT, ConfigEdit, edit_of, get, size_in

SIZES = ("image_size", "img_size", "input_size", "crop_size", "image_default_input_size")
SPECTROGRAM = ("num_mel_bins", "max_length")  # height and width of what audio models take for an image
STEPS = "frequency_stride"  # by which a config of such a model is known: others have a max_length of text
FRAMES = "num_frames"
PATCH, TUBE = "patch_size", "tubelet_size"  # the latter (frames, height, width)
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
PREPARED = ("size", "crop_size", "pad_size")
SIDES = ("height", "width", "shortest_edge", "longest_edge")
MAPS = ("image_embedding_size", "backbone_feature_sizes", "memory_attention_rope_feat_sizes")  # of SAM, in places
# Of an image, in the prompt of a language model; and the rows of a table, in a vision tower's own section.
TOKENS = ("image_seq_length", "num_image_tokens", "num_position_embeddings", "image_num_pos")
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


def _fields(config: Config) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Any]]:
    """Every section that says an image size, the innermost first: that is the vision tower's.

    The keys that lead to it; the names of its fields, one, or one a side; and what they say.
    """
    found: list[tuple[tuple[str, ...], tuple[str, ...], Any]] = []
    for keys, section in _sections(config.data):
        found += [(keys, (name,), section[name]) for name in SIZES if section.get(name) is not None]
        if STEPS in section and all(section.get(name) is not None for name in SPECTROGRAM):
            found.append((keys, SPECTROGRAM, [section[name] for name in SPECTROGRAM]))
    yield from sorted(found, key=lambda field: -len(field[0]))


def _size(config: Config, keys: tuple[str, ...], names: tuple[str, ...], value: Any) -> tuple[str, Size]:
    where = " × ".join(".".join((*keys, name)) for name in names)
    return where, size_in(config, where, value)


def source_sizes(config: Config) -> Iterator[tuple[str, Size]]:
    """Every field that says the image size, with its value. Raises BadConfig for a field that holds no size."""
    for field in _fields(config):
        where, size = _size(config, *field)
        yield f"{config.path.name} {where}", size


def arguments(config: Config) -> Mapping[str, Any]:
    """What the vision tower's own config says."""
    keys = next((keys for keys, _, _ in _fields(config)), ())
    section = get(config.data, keys)
    return section if isinstance(section, dict) else {}


def edits(
    source: Checkpoint,
    old: Size,
    new: Size,
    *,
    places: tuple[int, int],
    patch: tuple[int, int] | None,
    kernel: tuple[int, int] | None,
    arguments: Mapping[str, Any],
) -> tuple[ConfigEdit, ...]:
    """The edits of a folder's configs for a new input size.

    `places`: of the grid before and after, for the token counts that follow it; `patch`: the new one, if there is one;
    `kernel`: the patch convolution's sides, which a config may not deny; `arguments`: what else the model's own config
    must say.

    Raises BadConfig where it does.
    """
    config = source.config
    assert config is not None
    found: list[ConfigEdit] = []
    for keys, names, value in _fields(config):
        if _size(config, keys, names, value)[1] == old:
            both = _as_it_was(value, new)
            found += [
                edit_of(config, (*keys, name), new[at] if len(names) > 1 else both) for at, name in enumerate(names)
            ]
            section = get(config.data, keys)
            _check_patch(config, (*keys, PATCH), kernel)
            if patch is not None and isinstance(section, dict):
                found += _patch_edits(config, keys, section, patch)
            found += [edit_of(config, (*keys, name), told) for name, told in arguments.items()]
            if new.frames is not None and isinstance(section, dict) and section.get(FRAMES) == old.frames:
                found.append(edit_of(config, (*keys, FRAMES), new.frames))
    text = config.data.get("text_config")
    for keys, section in (*_sections(config.data), *([(("text_config",), text)] if isinstance(text, dict) else [])):
        for name in TOKENS:
            more = section[name] - places[0] if isinstance(section.get(name), int) else -1
            if more in (0, 1):  # the class token is one more
                found.append(edit_of(config, (*keys, name), places[1] + more))
        for name in MAPS:
            if section.get(name) is not None:
                found.append(
                    edit_of(config, (*keys, name), _scaled(config, ".".join((*keys, name)), section[name], old, new))
                )
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


def _patch_edits(
    config: Config, keys: tuple[str, ...], section: Mapping[str, Any], patch: tuple[int, int]
) -> Iterator[ConfigEdit]:
    """The patch wherever a config says it: by itself, as one number or two, and behind the frames of a clip."""
    tube, value = section.get(TUBE), section.get(PATCH)
    tubes = isinstance(tube, list) and len(tube) == 3
    if tubes:
        yield edit_of(config, (*keys, TUBE), [tube[0], *patch])  # type: ignore[index]
    if value is not None or not tubes:
        both = isinstance(value, list) or patch[0] != patch[1]
        yield edit_of(config, (*keys, PATCH), list(patch) if both else patch[0])


def _as_it_was(value: Any, new: Size) -> Any:
    return list(new) if isinstance(value, list) or not new.square else new[0]


def _scaled(config: Config, where: str, value: Any, old: Size, new: Size) -> Any:
    """The sides of one map, or of several, at the new size. Raises BadConfig for what are none."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [_scaled(config, where, one, old, new) for one in value]
    sides = size_in(config, where, value)
    scaled = [side * after // before for side, before, after in zip(sides, old, new, strict=True)]
    return scaled if isinstance(value, list) else scaled[0]


def preparations(source: Checkpoint) -> Iterator[Config]:
    """The files of a folder that say how an image is prepared."""
    for name in PREPROCESSORS if source.folder is not None else ():
        path = source.folder / name if source.folder is not None else None
        if path is not None and path.is_file():
            data = read_json(path, what="preprocessor", error=BadConfig)
            if isinstance(data, dict):
                yield Config(path, data)


def prepared_size(data: Mapping[str, Any]) -> Size | None:
    """The size that an image comes out as, where what prepares it says that: cut, padded, or resized to it."""
    inner = data.get("image_processor")
    section: Mapping[str, Any] = inner if isinstance(inner, dict) else data
    crops = section.get("do_center_crop", True)
    for name in ("crop_size", "pad_size", "size") if crops else ("pad_size", "size"):
        value: Any = section.get(name)
        if isinstance(value, dict):
            sides = [value.get("height"), value.get("width")]
            value = value.get("shortest_edge") if sides == [None, None] and "longest_edge" not in value else sides
        if value is not None:
            with suppress(BadSize):
                return Size.of(value)
    return None


def _prepared(config: Config, old: Size, new: Size) -> Iterator[ConfigEdit]:
    """Sizes and crops in proportion: what is 256 before a crop of 224 becomes 439 before one of 384."""
    sides = [config.data.get(name) for name in SPECTROGRAM]
    if sides == list(old):
        yield from (edit_of(config, (name,), side) for name, side in zip(SPECTROGRAM, new, strict=True))
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


__all__ = ["ABSENT", "arguments", "edits", "is_one", "preparations", "prepared_size", "source_sizes", "words"]
