"""JSON from strangers: no key twice, no NaN, no nesting that ends the interpreter, no number without end."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NotStrict(ValueError):
    """The text is no JSON, or JSON that two readers would read differently."""


def loads(raw: bytes) -> Any:
    """Parse UTF-8 JSON.

    Raises NotStrict for what Python's reader would let through or stumble over: a byte-order mark, a key twice, NaN
    and Infinity, nesting beyond the interpreter's stack, integers of thousands of digits, lone surrogates.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
        if "\\ud" in text.lower():  # an escaped surrogate decodes to a name that cannot be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except NotStrict:
        raise
    except RecursionError:
        raise NotStrict("nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are of this kind
        raise NotStrict(str(error)[:200]) from None
    return value


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(items)
    if len(out) != len(items):
        seen: set[str] = set()
        twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotStrict(f"duplicate key {twice[:80]!r}")
    return out


def _constant(name: str) -> NoReturn:
    raise NotStrict(f"{name} is no JSON number")
