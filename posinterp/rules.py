"""The types that describe an architecture, and how they are held against a checkpoint's names and shapes.

An architecture is data: a `Family` says how its tensors are recognised, how many pixels a place of its grid spans, and
which tensors follow the grid, in which layout. `posinterp/families/` holds the families; nothing else knows a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

from .errors import Mismatch
from .layout import Layout
from .method import Method

Grid = Mapping[str, int]  # "h" and "w": places, not pixels


class Shaped(Protocol):
    """Anything with a shape: a TensorInfo, an array, a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Shapes = Mapping[str, Shaped]

BICUBIC = Method("bicubic", antialias=True)  # what timm does unless a model says otherwise


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> re.Pattern[str]:
    """`*` is one part of a dotted name, `**` any run of parts, `{a,b}` either."""
    out = ""
    for token in re.findall(r"\*\*|\*|\{[^}]*\}|[^*{]+", glob):
        if token == "**":
            out += ".*"
        elif token == "*":
            out += r"[^./]+"
        elif token.startswith("{"):
            out += "(?:" + "|".join(map(re.escape, token[1:-1].split(","))) + ")"
        else:
            out += re.escape(token)
    return re.compile(out)


def matches(glob: str, name: str) -> bool:
    """Whether a tensor name is one of the glob's."""
    return _pattern(glob).fullmatch(name) is not None


@dataclass(frozen=True)
class Sign:
    """A tensor by which a family is known: "NAME", or "NAME = SHAPE" ("reg_token = 1 {7,9} *": any width)."""

    text: str

    @property
    def glob(self) -> str:
        return self.text.partition(" = ")[0]

    def holds(self, tensors: Shapes) -> bool:
        shape = self.text.partition(" = ")[2].split()
        return any(
            not shape or (len(tensors[name].shape) == len(shape) and _same(shape, tensors[name].shape))
            for name in named(self.glob, tensors)
        )


def _same(wanted: list[str], shape: tuple[int, ...]) -> bool:
    return all(want == "*" or str(n) in want.strip("{}").split(",") for want, n in zip(wanted, shape, strict=True))


def named(glob: str, tensors: Iterable[str]) -> Iterator[str]:
    """The names that a glob matches."""
    if not set(glob) & set("*{"):
        if glob in tensors:
            yield glob
        return
    yield from (name for name in tensors if matches(glob, name))


@dataclass(frozen=True)
class Rule:
    """One kind of tensor that follows the grid.

    `extra`: how many rows it may hold that belong to no place; None: as many as the family's prefix tokens allow.
    `offsets`: it holds offsets between places, 2n - 1 for n places a side.
    `method`: what the home library does to this tensor; None: the family's method.
    """

    match: str
    layout: Layout
    extra: tuple[int, ...] | None = None
    offsets: bool = False
    method: Method | None = None

    def sides(self, grid: Grid) -> dict[str, int]:
        """The sides of this tensor's own grid, for a model with `grid` places."""
        return {axis: 2 * n - 1 if self.offsets else n for axis, n in grid.items()}

    def readable(self, shape: tuple[int, ...]) -> dict[str, int]:
        """The sides of the model's grid that this tensor's shape shows by itself."""
        found = self.layout.readable(shape)
        return {axis: (n + 1) // 2 for axis, n in found.items()} if self.offsets else found


@dataclass(frozen=True)
class Patch:
    """How many pixels a place of the grid spans: `stem` x 2^(stages - 1) x the side of `kernel`.

    `kernel`: the convolution that cuts the patches; None when there is none, or its kernel is not its stride.
    `stem`: pixels per place of the feature map which that convolution reads (1: it reads the image).
    `stages`: names of a convolutional backbone's stages, one match each, the later ones halving the map.
    """

    kernel: str | None = "patch_embed.proj.weight"
    stem: int = 1
    stages: str | None = None

    def stride(self, tensors: Shapes, *, kernel: tuple[int, int] | None = None) -> tuple[int, int]:
        """Pixels per place, (vertical, horizontal); `kernel` instead of the stored one when it is to change."""
        stem = self.stem
        if self.stages is not None:
            halved = re.compile(_pattern(self.stages).pattern + r"(?=\.)")
            stem <<= max(len({found[0] for name in tensors if (found := halved.match(name))}) - 1, 0)
        if self.kernel is None:
            return stem, stem
        sides = kernel or self.size(tensors)
        return stem * sides[0], stem * sides[1]

    def size(self, tensors: Shapes) -> tuple[int, int]:
        """The kernel's (height, width), in pixels when it reads the image."""
        assert self.kernel is not None
        shape = tensors[self.kernel].shape
        if len(shape) != 4 or 0 in shape:
            raise Mismatch(f"{self.kernel} has shape {tuple(shape)}; a patch convolution has 4 axes, (out, in, h, w)")
        return shape[-2], shape[-1]


@dataclass(frozen=True)
class Family:
    """One kind of architecture.

    `has`, `lacks`: signs that must all, or must not be there, below the model's root in the file; the first of `has`
    is the one by which roots are found ("model/module.backbone." may stand before it).
    `archs`: globs of the home library's names; a checkpoint that says its architecture must be one of them.
    `unnamed`: further signs that must hold where nothing names the architecture; None: then it is never taken for
    this family, since its tensors look like another's.
    `tokens`: the prefix tokens, in the order of their rows: any leading run of them may own rows of the table.
    `drop`: buffers that the home library rebuilds and older files still hold.
    `leave`: look-alikes that do not follow the grid.
    `example`: arguments of the home library's constructor for a small model, for the tests.
    `fetches`: the home library asks the hub for a backbone's weights before it loads these.
    `home_does`, `note`: columns of the families table.
    """

    name: str
    has: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    lacks: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    unnamed: tuple[str, ...] | None = ()
    patch: Patch = Patch()
    tokens: tuple[str, ...] = ()
    method: Method = BICUBIC
    drop: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    home: str = "timm"
    fetches: bool = False
    home_does: str = ""
    note: str = ""
    example: Mapping[str, object] = field(default_factory=dict)

    def knows(self, architecture: str) -> bool:
        """Whether the home library's name is one of this family's."""
        return any(fnmatchcase(architecture, glob) for glob in self.archs)

    def holds(self, tensors: Shapes, *, named: bool = True) -> bool:
        """Whether these tensors, named below the model's root, are this family's; `named`: its name says so too."""
        if not named and self.unnamed is None:
            return False
        wanted = self.has if named else (*self.has, *(self.unnamed or ()))
        return all(Sign(sign).holds(tensors) for sign in wanted) and not any(
            Sign(sign).holds(tensors) for sign in self.lacks
        )

    def missing(self, tensors: Shapes) -> list[str]:
        """The signs that are not there, for the near misses of an error."""
        return [sign for sign in self.has if not Sign(sign).holds(tensors)] + [
            f"no {sign}" for sign in self.lacks if Sign(sign).holds(tensors)
        ]

    def roots(self, names: Iterable[str]) -> Iterator[str]:
        """What may stand before the names of a model of this family: "", "model/", "module.backbone.", ..."""
        anchor = Sign(self.has[0]).glob
        found = re.compile(r"((?:.*[./])?)" + _pattern(anchor).pattern)
        for name in names:
            if hit := found.fullmatch(name):
                yield hit[1]

    def prefix_counts(self, tensors: Shapes) -> tuple[int, ...]:
        """How many prefix rows a table may have, given the tokens that are there."""
        counts, total = [0], 0
        for token in self.tokens:
            if token in tensors:
                shape = tensors[token].shape
                total += shape[-2] if len(shape) >= 2 else 1
                counts.append(total)
        return tuple(dict.fromkeys(counts))

    def ruled(self, tensors: Shapes) -> dict[str, Rule]:
        """The tensors that follow the grid, each with the first rule that names it."""
        found: dict[str, Rule] = {}
        for rule in self.rules:
            for name in named(rule.match, tensors):
                found.setdefault(name, rule)
        return found
