"""The types that describe an architecture, and how they are held against a checkpoint's names and shapes.

An architecture is data: a `Family` says how its tensors are recognised, how many pixels a place of its grid spans, and
which tensors follow the grid, in which layout. `posinterp/families/` holds the families; nothing else knows a name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

from .errors import BadUsage, Mismatch
from .layout import Layout
from .method import NAMES, Method

Grid = Mapping[str, int]  # "h" and "w", and "t" of clips and volumes: places, not pixels
Windows = Mapping[int, Grid]  # stage -> the window that the model was built with


class Shaped(Protocol):
    """Anything with a shape: a TensorInfo, an array, a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Shapes = Mapping[str, Shaped]

TORCH_KERNELS = {4: Layout("o i h w"), 5: Layout("o i d h w")}  # of images, and of clips or volumes
BICUBIC = Method("bicubic", antialias=True)  # what timm does unless a model says otherwise


@lru_cache(maxsize=4096)
def _pattern(glob: str) -> re.Pattern[str]:
    """`*` is one part of a dotted name, `**` any run of parts, `{a,b}` either, `#` the number of a stage."""
    out = ""
    for token in re.findall(r"\*\*|\*|\{[^}]*\}|#|[^*{#]+", glob):
        if token == "**":
            out += ".*"
        elif token == "#":
            out += r"(?P<stage>\d{1,2})"
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
        return any(True for _ in self.named(tensors))

    def named(self, tensors: Shapes) -> Iterator[str]:
        """The tensors that it means."""
        shape = self.text.partition(" = ")[2].split()
        for name in named(self.glob, tensors):
            if not shape or (len(tensors[name].shape) == len(shape) and _same(shape, tensors[name].shape)):
                yield name


def _same(wanted: list[str], shape: tuple[int, ...]) -> bool:
    return all(want == "*" or str(n) in want.strip("{}").split(",") for want, n in zip(wanted, shape, strict=True))


def named(glob: str, tensors: Iterable[str]) -> Iterator[str]:
    """The names that a glob matches."""
    if not set(glob) & set("*{#"):
        if glob in tensors:
            yield glob
        return
    yield from (name for name in tensors if matches(glob, name))


class Cut(NamedTuple):
    """How an image is cut into the places of a grid. (vertical, horizontal) in pixels.

    `stride`: from one place to the next; `lap`: by how much the kernel is larger than its stride; `frames`: that a
    place spans, or slices of a volume; None: unknown.
    """

    stride: tuple[int, int]
    lap: tuple[int, int] = (0, 0)
    frames: int | None = None


@dataclass(frozen=True)
class Side:
    """How many places a side of a tensor's grid has, told from the image.

    `stride`: pixels that a place spans in stage 0, doubled with each stage that the rule's `#` counts, rounding the
    number of places up; None: the family's patch.
    `scale`: the branch sees the image times scale[0] / scale[1], cut to whole pixels as timm cuts it.
    `before`: the tensor sees the map of the stage before its own.
    `shorter`: both sides follow the shorter one of the image.
    `halvings`: of the map, rounding up, beside those of the stages that a `#` counts.
    """

    stride: int | None = None
    scale: tuple[int, int] = (1, 1)
    before: bool = False
    shorter: bool = False
    halvings: int = 0

    def places(self, image: Sequence[int], cut: Cut, stage: int = 0) -> Grid | None:
        """The sides of the grid at an image size (height, width), a rest of pixels let go; None without a place."""
        sides = (min(image),) * 2 if self.shorter else image
        counts = [
            max((self._seen(pixels) - lap) // step, 0)
            for pixels, step, lap in zip(sides, *self._steps(cut), strict=True)
        ]
        halvings = self.halvings + max(stage - self.before, 0)
        return None if 0 in counts else {axis: -(-n // (1 << halvings)) for axis, n in zip("hw", counts, strict=True)}

    def whole(self, image: Sequence[int], cut: Cut) -> bool:
        """Whether a branch that sees the image scaled has places to the pixel: timm builds others, which cannot run."""
        return self.scale == (1, 1) or not any(
            (self._seen(pixels) - lap) % step for pixels, step, lap in zip(image, *self._steps(cut), strict=True)
        )

    def _steps(self, cut: Cut) -> tuple[tuple[int, int], tuple[int, int]]:
        return (cut.stride, cut.lap) if self.stride is None else ((self.stride, self.stride), (0, 0))

    def _seen(self, pixels: int) -> int:
        return int(pixels * (self.scale[0] / self.scale[1]))


@dataclass(frozen=True)
class Rule:
    """One kind of tensor that follows the grid.

    `extra`: how many rows it may hold that belong to no place; None: as many as the family's prefix tokens allow.
    `side`: its own grid, told from the image; None: it grows as the image does, from the grid that its shape shows.
    `copies`: a table of the model of which each of its rows holds several, one behind the other.
    `offsets`: it holds offsets between places, 2n - 1 for n places a side.
    `window`: it spans a window: "free", whatever the map's size, or "capped" at its stage's map, which `side` says.
    `suffix`: a tensor for each of whose rows this one has a row behind the grid.
    `optional`: it follows the grid only where it shows it; others of its name span windows, and stay.
    `method`: what the home library does to this tensor; None: the family's method.
    """

    match: str
    layout: Layout
    extra: tuple[int, ...] | None = None
    offsets: bool = False
    method: Method | None = None
    side: Side | None = Side()
    window: Literal["", "free", "capped"] = ""
    suffix: str = ""
    optional: bool = False
    copies: str = ""

    def viewed(self, tensors: Shapes, name: str) -> tuple[int, ...]:
        """A tensor's shape as the layout speaks of it: its own, or one copy of the table an item.

        Raises Mismatch for a tensor that holds no whole number of copies.
        """
        shape = tuple(tensors[name].shape)
        if not self.copies:
            return shape
        table = tuple(tensors[self.copies].shape) if self.copies in tensors else ()
        size = math.prod(table)
        if not shape or not table or not size or shape[-1] % size:
            raise Mismatch(f"{name} of shape {shape} holds no copies of {self.copies}, whose shape is {table}")
        return (math.prod(shape) // size, *table)

    def behind(self, tensors: Shapes) -> int:
        """How many rows stand behind the grid, of a layout that has rows on both sides."""
        shape = tensors[self.suffix].shape if self.suffix in tensors else ()
        return shape[-2] if len(shape) >= 2 else len(shape)

    def stage(self, name: str) -> int:
        """The number that the glob's `#` stands for in a name; 0 where it has none."""
        found = _pattern(self.match).fullmatch(name)
        return int(found["stage"]) if found and "stage" in found.groupdict() else 0

    def sides(self, grid: Grid) -> dict[str, int]:
        """The sides of this tensor's grid, for so many places."""
        return {axis: 2 * n - 1 if self.offsets else n for axis, n in grid.items()}

    def readable(self, shape: tuple[int, ...]) -> dict[str, int]:
        """The places that this tensor's shape shows by itself."""
        found = self.layout.readable(shape)
        return {axis: (n + 1) // 2 for axis, n in found.items()} if self.offsets else found

    def squares(self, shape: tuple[int, ...]) -> Iterator[tuple[dict[str, int], int]]:
        """Every square of places that the shape allows, with the extra rows beside it."""
        yield from self.rectangles(shape, (1, 1))

    def rectangles(self, shape: tuple[int, ...], aspect: Sequence[int]) -> Iterator[tuple[dict[str, int], int]]:
        """Every grid of an aspect (height, width) that the shape allows, with the extra rows beside it."""
        common = math.gcd(*aspect)
        high, wide = aspect[0] // common, aspect[1] // common
        for n in range(1, max(shape, default=0) + 1):
            grid = {"h": n * high, "w": n * wide}
            if self.layout.exceeds(shape, self.sides(grid)):
                return
            if (extra := self.layout.fits(shape, self.sides(grid))) is not None:
                yield grid, extra


@dataclass(frozen=True)
class Window:
    """The windows of a family whose tables span them.

    `argument`: of the home library's constructor, `listed` if it always has one for each stage; `uniform`: one window
    for all stages; `usual`: those of published models, stage by stage: the first that the tables do not deny is taken
    where no argument says it; `pretrained`: the argument that keeps the meaning of coordinates when the window changes
    (SwinV2); `uncapped`: the argument that lets a window be larger than its map; `square`: the constructor takes one
    side; `within`: the model does not run with a window larger than a stage's map.
    """

    argument: str
    uniform: bool = False
    listed: bool = False
    usual: tuple[tuple[int, ...], ...] = ()
    pretrained: str = ""
    uncapped: str = ""
    square: bool = False
    within: bool = False


@dataclass(frozen=True)
class Patch:
    """How many pixels a place of the grid spans: `stem` x 2^(stages - 1) x the side of `kernel`.

    `kernel`: the convolution that cuts the patches; None when there is none, or its kernel is not its stride. One of
    five axes cuts clips or volumes. `axes`: its layout; None: torch's, which ends in h w.
    `stem`: pixels per place of the feature map which that convolution reads (1: it reads the image).
    `stages`: names of a convolutional backbone's stages, one match each, the later ones halving the map.
    `overlap`: the kernel is twice as large as its stride.
    `steps`: the kernel is larger than its stride, which these arguments of the constructor say, (vertical, horizontal).
    `pixels`: instead of a convolution, a tensor whose axes, but for the first, are a square patch's pixels; `copies`:
    of each of which it takes so many;
    `volume`: through several frames.
    """

    kernel: str | None = "patch_embed.proj.weight"
    axes: Layout | None = None
    stem: int = 1
    stages: str | None = None
    overlap: bool = False
    steps: tuple[str, str] | None = None
    pixels: str = ""
    copies: int = 1
    volume: bool = False

    @property
    def fixed(self) -> str:
        """Why the patch cannot have another size, where it cannot."""
        if self.pixels:
            return "a linear layer reads the pixels of a patch, and no resize of it is established"
        if self.steps is not None or self.overlap:
            return "its patches overlap"
        return "it has a convolutional stem" if self.kernel or self.stem > 1 else "no convolution cuts its patches"

    @property
    def resizable(self) -> bool:
        """Whether the patch can have another size: its kernel reads the image, and nothing else has its width."""
        return self.kernel is not None and self.stem == 1 and not self.overlap and self.steps is None

    def cuts(
        self,
        tensors: Shapes,
        arguments: Mapping[str, Any] | None = None,
        *,
        kernel: tuple[int, int] | None = None,
    ) -> list[Cut]:
        """Every way in which the tensors could cut an image: one, where nothing hides the stride.

        `arguments`: of the home library's constructor; `kernel` (height, width): instead of the stored one when it is
        to change.
        """
        if self.pixels:
            return self._flat_cuts(tensors)
        stem = self.stem << self._halvings(tensors)
        if self.kernel is None:
            return [Cut((stem, stem))]
        high, wide = kernel or self.size(tensors)
        frames = self.frames(tensors)
        if self.steps is not None:
            said = [(arguments or {}).get(name) for name in self.steps]
            if isinstance(said[0], int) and isinstance(said[1], int) and 0 < said[0] <= high and 0 < said[1] <= wide:
                return [Cut((said[0], said[1]), (high - said[0], wide - said[1]))]
            return [Cut((step, step), (high - step, wide - step)) for step in range(min(high, wide), 0, -1)]
        if self.overlap:
            high, wide = high // 2, wide // 2
        stride = stem * high, stem * wide
        return [Cut(stride, stride if self.overlap else (0, 0), frames)]

    def _halvings(self, tensors: Shapes) -> int:
        """How often the stages halve the map."""
        if self.stages is None:
            return 0
        stage = re.compile(_pattern(self.stages).pattern + r"(?=[./])")
        return max(len({found[0] for name in tensors if (found := stage.match(name))}) - 1, 0)

    def flat(self, tensors: Shapes) -> bool:
        """Whether a patch of a volume could be one of an image as well."""
        count = math.prod(tensors[self.pixels].shape[-1:]) if self.pixels in tensors else 0
        return not count or any(math.isqrt(area) ** 2 == area for area in self._areas(count))

    def _areas(self, count: int) -> Iterator[int]:
        """How many pixels a patch may have of which a layer takes so many values: of three channels, one, or four.

        Squares of three channels are none of one or four. Between these two the image's size decides.
        """
        yield from (count // (self.copies * n) for n in (3, 1, 4) if count and count % (self.copies * n) == 0)

    def _flat_cuts(self, tensors: Shapes) -> list[Cut]:
        """The cuts of a layer that takes a patch as one row of values."""
        shape = tensors[self.pixels].shape
        count = math.prod(shape[1:] if len(shape) > 1 else shape)
        patches = [
            (n, area // (n * n))
            for area in self._areas(count)
            for n in range(math.isqrt(area), 0, -1)
            if area % (n * n) == 0 and (self.volume or n * n == area)
        ]
        if not patches:
            raise Mismatch(
                f"{self.pixels} takes {count} values, which is no square patch of 1, 3 or 4 channels",
                hint="say the table with --rule and the size with --src-img",
            )
        if self.overlap:
            return [Cut((n // 2, n // 2), (n // 2, n // 2)) for n, _ in patches]
        halvings = self._halvings(tensors)
        return [Cut((n << halvings, n << halvings), frames=depth if self.volume else None) for n, depth in patches]

    def frames(self, tensors: Shapes) -> int | None:
        """Frames that a kernel of five axes spans; None for others."""
        shape = tensors[self.kernel].shape if self.kernel is not None and self.kernel in tensors else ()
        return shape[2] if len(shape) == 5 else None  # torch's alone

    def size(self, tensors: Shapes) -> tuple[int, int]:
        """The kernel's (height, width), in pixels when it reads the image."""
        assert self.kernel is not None
        shape = tensors[self.kernel].shape
        if len(shape) not in (4, 5) or 0 in shape:
            raise Mismatch(
                f"{self.kernel} has shape {tuple(shape)}; a patch convolution has 4 axes, (out, in, h, w), or one of "
                "frames more"
            )
        sides = self.kernel_axes(shape).readable(shape)
        return sides["h"], sides["w"]

    def kernel_axes(self, shape: Sequence[int]) -> Layout:
        """The layout of the kernel."""
        return self.axes or TORCH_KERNELS[len(shape)]


@dataclass(frozen=True)
class Family:
    """One kind of architecture.

    `has`, `lacks`: signs that must all, or must not be there, below the model's root in the file; the first of `has`
    is the one by which roots are found ("model/module.backbone." may stand before it).
    `archs`: globs of the home library's names; a checkpoint that says its architecture must be one of them.
    `unnamed`: further signs that must hold where nothing names the architecture; None: then it is never taken for
    this family, since its tensors look like another's.
    `unit`: sides of the image must be multiples of it; None: of the stride. `square`: both must be equal.
    `window`: for families whose tables span windows.
    `sized`: only its tensors' sizes tell it from the families after it: where they do not fit, those are tried.
    `other`: arguments of the constructor that make another model of it, of which the rules do not speak.
    `refuses`: why no size but its own can be had at all.
    `takes_img_size`: whether the home library's constructor has that argument.
    `tokens`: the prefix tokens, in the order of their rows: any leading run of them may own rows of the table.
    `drop`: buffers that the home library rebuilds and older files still hold.
    `leave`: look-alikes that do not follow the grid.
    `index`: the last parts of two names: of a table of distances, and of the buffer beside it that says which of its
    rows lies between which places, which the home library stores and does not rebuild.
    `example`: arguments of the home library's constructor for a small model, for the tests.
    `file`: the suffix of the only files that the home library reads.
    `fetches`: the home library asks the hub for a backbone's weights before it loads these.
    `home_does`, `differs`, `note`: columns of the families table: what the home library does to such a checkpoint, in
    what this package does otherwise, and what else there is to know.
    """

    name: str
    has: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    lacks: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    unnamed: tuple[str, ...] | None = ()
    patch: Patch = Patch()
    unit: int | None = None
    square: bool = False
    window: Window | None = None
    sized: bool = False
    other: tuple[str, ...] = ()
    refuses: str = ""
    takes_img_size: bool = True
    tokens: tuple[str, ...] = ()
    method: Method = BICUBIC
    drop: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    index: tuple[str, str] | None = None
    home: str = "timm"
    file: str = ""
    fetches: bool = False
    home_does: str = ""
    differs: str = ""
    note: str = ""
    example: Mapping[str, object] = field(default_factory=dict)

    @property
    def difference(self) -> str:
        """In what this package does otherwise than the home library; "" where in nothing."""
        cannot = self.home_does.startswith("cannot") and not self.refuses
        return self.differs or ("converted here" if cannot else "")

    @property
    def why_nothing(self) -> str:
        """Why no tensor of it follows the size, of a family without rules."""
        does = self.home_does.removeprefix("nothing to do: ").removeprefix("nothing to do")
        return (self.note if does.startswith("cannot") else does) or "no weight depends on the size"

    def knows(self, architecture: str) -> bool:
        """Whether one of the home library's names ("NAME", or several, of nested models) is this family's."""
        return any(fnmatchcase(word, glob) for word in architecture.split() for glob in self.archs)

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
        if not self.has:
            yield ""
            return
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

    def index_of(self, table: str) -> str | None:
        """The name of the buffer that says which row of a table lies between which places; None without one."""
        if self.index is None or not table.endswith(self.index[0]):
            return None
        return table.removesuffix(self.index[0]) + self.index[1]

    def ruled(self, tensors: Shapes) -> dict[str, Rule]:
        """The tensors that follow the grid, each with the first rule that names it."""
        found: dict[str, Rule] = {}
        for rule in self.rules:
            for name in named(rule.match, tensors):
                found.setdefault(name, rule)
        return found


def rule_of(text: str) -> Rule:
    """A rule from the notation "GLOB = LAYOUT", with "offsets", a method or its parts behind it, after commas.

    "encoder.pos = 1 (p h w) c", "blocks.*.bias = (h w s) c, offsets, geometric". A tensor of such a rule grows as the
    image does.

    Raises:
        BadUsage: for a text that is no rule.
    """
    glob, equals, rest = (part.strip() for part in text.partition("="))
    layout, *words = (word.strip() for word in rest.split(","))
    if not (glob and equals and layout):
        raise BadUsage(f"--rule {text!r} is no rule", hint="write it like 'encoder.pos = 1 (p h w) c'")
    offsets = "offsets" in words
    names = [word for word in words if word in NAMES]
    parts = [word for word in words if word in ("antialias", "align-corners")]
    unknown = [word for word in words if word not in ("offsets", *names, *parts)]
    if unknown or len(names) > 1 or (parts and not names):
        raise BadUsage(
            f"--rule {text!r}: {', '.join(unknown or words)} is no method",
            hint=f"behind the layout: offsets, and one of {', '.join(NAMES)}, with antialias or align-corners",
        )
    method = None
    if names:
        aligned = "align-corners" in parts
        method = Method(names[0], antialias="antialias" in parts, align_corners=aligned)
    return Rule(glob, Layout(layout), offsets=offsets, method=method, side=None)
