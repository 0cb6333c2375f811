"""The input size in a model's config: what it says, and the edits that make it say the new one.

timm's config.json (timm.models._hub.save_config_for_hub) has the size twice: `model_args.img_size` builds the model,
`pretrained_cfg.input_size` tells the loader what the weights are for. If only one of them changes, timm resamples the
resized table back, in silence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import BadConfig, BadSize
from .size import Size
from .store import Checkpoint, Config

ABSENT = object()


@dataclass(frozen=True)
class ConfigEdit:
    """One field: the path of keys to it, its value before (None when it was absent) and after (None: removed)."""

    keys: tuple[str, ...]
    before: Any
    after: Any

    @property
    def path(self) -> str:
        return ".".join(self.keys)


def architecture(config: Config | None) -> str | None:
    """The home library's name of the model, without its tag."""
    if config is None:
        return None
    name = config.data.get("architecture")
    return name.partition(".")[0] if isinstance(name, str) and name else None


def source_sizes(config: Config | None) -> Iterator[tuple[str, Size]]:
    """Every field that says the image size, with its value, the more trustworthy first.

    Raises BadConfig for a field that holds no size.
    """
    if config is None:
        return
    for keys in (("model_args", "img_size"), ("pretrained_cfg", "input_size"), ("input_size",)):
        value = _get(config.data, keys)
        if value is ABSENT or value is None:
            continue
        if keys[-1] == "input_size" and isinstance(value, list):
            value = value[-2:]  # (channels, height, width)
        yield f"{config.path.name} {'.'.join(keys)}", _size(config, ".".join(keys), value)


def arguments(config: Config | None) -> Mapping[str, Any]:
    """The arguments of the home library's constructor, as far as a config says them."""
    said = config.data.get("model_args") if config is not None else None
    return said if isinstance(said, dict) else {}


def recorded_size(source: Checkpoint) -> Iterator[tuple[str, Size]]:
    """The size that posinterp took the checkpoint to, as its recipe says."""
    said = source.recipe.get("to")
    try:
        if isinstance(said, list):
            yield "its recipe", Size.of(said)
    except BadSize:
        return


def _size(config: Config, where: str, value: Any) -> Size:
    try:
        return Size.of(value if isinstance(value, int) and not isinstance(value, bool) else tuple(value))
    except (BadSize, TypeError):
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
        raise BadConfig(f"{config.path}: {where} is {shown}, which is no image size") from None


def timm_edits(
    config: Config | None,
    size: Size,
    *,
    patch: tuple[int, int] | None,
    takes_img_size: bool = True,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[ConfigEdit, ...]:
    """The edits of a timm config for a new input size, and a new patch size if there is one.

    `takes_img_size`: whether the model's constructor has that argument; `arguments`: others that it must be told.
    """
    if architecture(config) is None:
        return ()
    assert config is not None
    edits = []
    both: int | list[int] = size[0] if size.square else list(size)
    if takes_img_size:
        edits.append(_edit(config, ("model_args", "img_size"), both))
    if patch is not None:
        edits.append(_edit(config, ("model_args", "patch_size"), patch[0] if patch[0] == patch[1] else list(patch)))
    edits += [_edit(config, ("model_args", key), value) for key, value in (arguments or {}).items()]
    holder = ("pretrained_cfg",) if isinstance(config.data.get("pretrained_cfg"), dict) else ()
    before = _get(config.data, (*holder, "input_size"))
    channels = before[0] if isinstance(before, list) and len(before) == 3 else 3
    edits.append(_edit(config, (*holder, "input_size"), [channels, *size]))
    pool = _get(config.data, (*holder, "pool_size"))  # the last map's size at input_size, which test-time pooling reads
    if isinstance(before, list) and isinstance(pool, list) and len(pool) == 2 and len(before) == 3:
        scaled = [(n * new, old) for n, new, old in zip(pool, size, before[1:], strict=True)]
        if all(old and product % old == 0 for product, old in scaled):
            edits.append(_edit(config, (*holder, "pool_size"), [product // old for product, old in scaled]))
    if _get(config.data, (*holder, "test_input_size")) not in (ABSENT, None):
        edits.append(_edit(config, (*holder, "test_input_size"), None))  # a larger size for the old weights
    return tuple(edit for edit in edits if edit.before != edit.after)


TOP = ("architecture", "num_features", "model_args")


def _unflattened(data: dict[str, Any]) -> dict[str, Any]:
    """An old config without `pretrained_cfg`, as timm writes them now: it takes model_args from no other kind."""
    rest = {key: value for key, value in data.items() if key not in (*TOP, "pretrained_cfg")}
    if "labels" in rest:
        rest["label_names"] = rest.pop("labels")
    return {**{key: data[key] for key in TOP if key in data}, "pretrained_cfg": rest}


def _nested(keys: tuple[str, ...]) -> tuple[str, ...]:
    return keys if keys[0] in TOP else ("pretrained_cfg", *keys)


def _edit(config: Config, keys: tuple[str, ...], after: Any) -> ConfigEdit:
    before = _get(config.data, keys)
    return ConfigEdit(keys, None if before is ABSENT else before, after)


def _get(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return ABSENT
        data = data[key]
    return data


def edited(data: dict[str, Any], edits: tuple[ConfigEdit, ...]) -> dict[str, Any]:
    """A copy of the config with the edits made."""
    out = copy.deepcopy(data)
    if edits and not isinstance(out.get("pretrained_cfg"), dict):
        out = _unflattened(out)
        edits = tuple(replace(edit, keys=_nested(edit.keys)) for edit in edits)
    for edit in edits:
        place = out
        for key in edit.keys[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        if edit.after is None:
            place.pop(edit.keys[-1], None)
        else:
            place[edit.keys[-1]] = edit.after
    return out
