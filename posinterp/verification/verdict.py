"""What a verification says: checks, the verdict they make, and the words they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .case import Case


@dataclass(frozen=True)
class Check:
    """One thing that was compared: its name, how it went, and what was found.

    `compared`: of how many things (tensors, fields, images; the detail says which), 0 where of none; `difference`: the
    largest that was found, absolute, for `similarity` one less the cosine; None where nothing was measured.
    """

    name: str
    status: Literal["pass", "fail", "skip"]
    detail: str
    compared: int = 0
    difference: float | None = None

    @classmethod
    def of(
        cls, name: str, problems: Iterable[str], fine: str, *, compared: int = 0, difference: float | None = None
    ) -> Check:
        """A check that fails with its first problems, or passes with `fine` where there are none."""
        found = list(problems)
        measured = difference if difference is not None and math.isfinite(difference) else None
        return cls(name, "fail" if found else "pass", some(found, "; ") if found else fine, compared, measured)


@dataclass(frozen=True)
class Verdict:
    """The checks of one checkpoint. `ok`: none failed.

    `case`: what was held against what; None where that could not be told, and for PEG models.
    """

    checks: tuple[Check, ...]
    case: Case | None = field(default=None, compare=False, repr=False)

    @property
    def ok(self) -> bool:
        return all(check.status != "fail" for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "fail")


def some(words: Sequence[str], mark: str = ", ") -> str:
    """The first words of many, and how many more there are."""
    return mark.join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def counted(n: int, what: str) -> str:
    """A number of things: "1 tensor", "2 tensors"."""
    return f"{n} {what}{'s' * (n != 1)}"


def sides_text(value: Any) -> str:
    """A size, as JSON or a model has it, for people: 96x160, or 96 where both sides are."""
    return "x".join(map(str, dict.fromkeys(value))) if isinstance(value, list) else "a size that is not said"
