"""What every part of a pickled checkpoint is held against, since its author may wish us harm.

Messages are predicates, since the file is always the subject; `read_pickle` puts its path in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import BadFile

MAX_STEPS = 3_000_000  # instructions run and things copied: 50 000 tensors, and under 1 GB whatever they are
MAX_DIMS = 32

RESAVE = (
    "if you trust where it comes from, load it where its code is installed, "
    "torch.load(path, weights_only=False), and torch.save only the state dict"
)


@dataclass(slots=True)
class Budget:
    """What a pickle may still cost: two hundred bytes can ask for 2^60 copies of a list."""

    left: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BadFile(f"holds too many objects beside its tensors: over {MAX_STEPS}", hint=RESAVE)

    def narrow(self) -> None:
        """From here on allow only a few times what was spent: nobody shares objects so much that copies cost more."""
        self.left = min(self.left, 100_000 + 8 * (MAX_STEPS - self.left))

    def spend_on(self, values: Iterable[object]) -> None:
        """The cost of copying each of the values."""
        for value in values:
            if isinstance(value, (str, bytes, bytearray)):
                self.spend(len(value) // 32)
            elif isinstance(value, (list, tuple, dict)):
                self.spend(len(value))


def need(condition: bool, what: str) -> None:
    if not condition:
        raise BadFile(f"holds {what} in a form that no training script writes: corrupt or hostile")


def whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63  # not isinstance: True is an int


def numbers(values: Any, what: str) -> tuple[int, ...]:
    need(type(values) is tuple and len(values) <= MAX_DIMS and all(map(whole, values)), what)
    return tuple(values)


def flat_key(key: Any) -> Any:
    """A key of a dict or an element of a set: flat, since hashing nested tuples takes exponential time."""
    for part in key if type(key) is tuple and len(key) <= 16 else (key,):
        small = type(part) is not int or abs(part) < 1 << 63
        need(type(part) in (str, int, float, bool, bytes, type(None)) and small, "a dict key")
    return key


def shown(text: str) -> str:
    """Text of the file in a message: no control characters, not endless."""
    plain = ascii(text[:100])[1:-1]
    return plain + "..." if len(text) > 100 else plain
