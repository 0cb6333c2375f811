"""The input size in timm's configs.

timm's config.json (timm.models._hub.save_config_for_hub) has the size twice: `model_args.img_size` builds the model,
`pretrained_cfg.input_size` tells the loader what the weights are for. If only one of them changes, timm resamples the
resized table back, in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..size import Size
from ..store import Config
from .fields import ABSENT, ConfigEdit, edit_of, get, size_in


def architecture(config: Config) -> str | None:
    """timm's name of the model, without its tag."""
    name = config.data.get("architecture")
    return name.partition(".")[0] if isinstance(name, str) and name else None


def source_sizes(config: Config) -> Iterator[tuple[str, Size]]:
    """Every field that says the image size, with its value, the more trustworthy first.

    Raises BadConfig for a field that holds no size.
    """
    for keys in (("model_args", "img_size"), ("pretrained_cfg", "input_size"), ("input_size",)):
        value = get(config.data, keys)
        if value is ABSENT or value is None:
            continue
        if keys[-1] == "input_size" and isinstance(value, list):
            value = value[-2:]  # (channels, height, width)
        yield f"{config.path.name} {'.'.join(keys)}", size_in(config, ".".join(keys), value)


def arguments(config: Config) -> Mapping[str, Any]:
    """The arguments of the home library's constructor, as far as a config says them."""
    said = config.data.get("model_args")
    return said if isinstance(said, dict) else {}


def edits(
    config: Config,
    size: Size,
    *,
    patch: tuple[int, int] | None,
    takes_img_size: bool = True,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[ConfigEdit, ...]:
    """The edits of a timm config for a new input size, and a new patch size if there is one.

    `takes_img_size`: whether the model's constructor has that argument; `arguments`: others that it must be told.
    """
    found = []
    both: int | list[int] = size[0] if size.square else list(size)
    if takes_img_size:
        found.append(edit_of(config, ("model_args", "img_size"), both))
    if patch is not None:
        found.append(edit_of(config, ("model_args", "patch_size"), patch[0] if patch[0] == patch[1] else list(patch)))
    found += [edit_of(config, ("model_args", key), value) for key, value in (arguments or {}).items()]
    holder = ("pretrained_cfg",) if isinstance(config.data.get("pretrained_cfg"), dict) else ()
    before = get(config.data, (*holder, "input_size"))
    channels = before[0] if isinstance(before, list) and len(before) == 3 else 3
    found.append(edit_of(config, (*holder, "input_size"), [channels, *size]))
    pool = get(config.data, (*holder, "pool_size"))  # the last map's size at input_size, which test-time pooling reads
    if isinstance(before, list) and isinstance(pool, list) and len(pool) == 2 and len(before) == 3:
        scaled = [(n * new, old) for n, new, old in zip(pool, size, before[1:], strict=True)]
        if all(old and product % old == 0 for product, old in scaled):
            found.append(edit_of(config, (*holder, "pool_size"), [product // old for product, old in scaled]))
    if get(config.data, (*holder, "test_input_size")) not in (ABSENT, None):
        found.append(edit_of(config, (*holder, "test_input_size"), None))  # a larger size for the old weights
    return tuple(edit for edit in found if edit.before != edit.after)


TOP = ("architecture", "num_features", "model_args")


def _unflattened(data: dict[str, Any]) -> dict[str, Any]:
    """An old config without `pretrained_cfg`, as timm writes them now: it takes model_args from no other kind."""
    rest = {key: value for key, value in data.items() if key not in (*TOP, "pretrained_cfg")}
    if "labels" in rest:
        rest["label_names"] = rest.pop("labels")
    return {**{key: data[key] for key in TOP if key in data}, "pretrained_cfg": rest}


def _nested(keys: tuple[str, ...]) -> tuple[str, ...]:
    return keys if keys[0] in TOP else ("pretrained_cfg", *keys)


def completed(data: dict[str, Any], edits: tuple[ConfigEdit, ...]) -> tuple[dict[str, Any], tuple[ConfigEdit, ...]]:
    """A config as timm writes them now, and the edits as they are there."""
    if not edits or isinstance(data.get("pretrained_cfg"), dict):
        return data, edits
    return _unflattened(data), tuple(replace(edit, keys=_nested(edit.keys)) for edit in edits)
