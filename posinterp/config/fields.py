"""A field of a JSON file: where it is, what it says, what it should say."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import BadConfig, BadSize
from ..size import Size
from ..store import CONFIG, Config

ABSENT = object()


@dataclass(frozen=True)
class ConfigEdit:
    """One field: the path of keys to it, its value before (None when it was absent) and after (None: removed)."""

    keys: tuple[str, ...]
    before: Any
    after: Any
    file: str = CONFIG

    @property
    def path(self) -> str:
        return ".".join(self.keys)


def edit_of(config: Config, keys: tuple[str, ...], after: Any) -> ConfigEdit:
    before = get(config.data, keys)
    return ConfigEdit(keys, None if before is ABSENT else before, after, config.path.name)


def get(data: Any, keys: tuple[str, ...]) -> Any:
    """The value at a path of keys; ABSENT without one."""
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return ABSENT
        data = data[key]
    return data


def size_in(config: Config, where: str, value: Any) -> Size:
    """An image size from a field. Raises BadConfig for what is none."""
    try:
        return Size.of(value if isinstance(value, int) and not isinstance(value, bool) else tuple(value))
    except (BadSize, TypeError):
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
        raise BadConfig(f"{config.path}: {where} is {shown}, which is no image size") from None


def applied(data: dict[str, Any], edits: Iterable[ConfigEdit]) -> dict[str, Any]:
    """A copy with the edits made."""
    out = copy.deepcopy(data)
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
