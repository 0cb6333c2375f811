"""Proving a resized checkpoint right, by other means than those that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One thing that was compared: its name, how it went, and what was found."""

    name: str
    status: Literal["pass", "fail", "skip"]
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The checks of one checkpoint. `ok`: none failed."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.status != "fail" for check in self.checks)


def verify(
    ckpt: str | Path,
    *,
    against: str | Path | None = None,
    img: int | Sequence[int] | str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
) -> Verdict:
    raise NotImplementedError
