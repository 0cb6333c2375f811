"""At which size a model is: told from its names and shapes, and from what is said of it; never guessed."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import Ambiguous, BadConfig, BadFile, BadUsage, Mismatch, PosinterpError, UnknownFamily
from .rules import Cut, Family, Grid, Rule, Shapes, Side, Windows, matches
from .size import Size, shape_text

FRAMES = "num_frames"  # among the constructor's arguments
RECORDED = "posinterp windows"  # among the constructor's arguments: what a recipe says, if no argument does
NAMED_WINDOW = re.compile(r"window(?:\d+to)?(\d+)")
ROOT = "a square grid of its rows"  # the origin of a size that no side in a shape shows
UNEXPLAINED = 16  # prefix rows that no token in the file explains, when the user vouches for the size
POSITIONAL = re.compile(r"pos(ition(al)?)?_?emb|rel_?pos|relative_position|attention_bias|rope|freqs")


@dataclass(frozen=True)
class Model:
    """One model in a checkpoint: a file may hold several (teacher and student, weights and their average).

    `root`: what stands before its tensors' names; `tensors`: by their names below it; `cut`: of the image into places;
    `places`: of each ruled tensor, a side of its grid, {"h", "w"}; `extra`: its rows that belong to no place;
    `windows`: what the model was built with, stage by stage; `origin`: what says the source size; `architecture`,
    `arguments`: what is said of the home library's name and constructor.
    """

    root: str
    family: Family
    tensors: Shapes
    ruled: Mapping[str, Rule]
    cut: Cut
    src_img: Size | None = None
    origin: str = ""
    places: Mapping[str, Grid] = field(default_factory=dict)
    extra: Mapping[str, int] = field(default_factory=dict)
    windows: Windows = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    architecture: str | None = None

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels from one place to the next, (vertical, horizontal)."""
        return self.cut.stride

    @property
    def frames(self) -> int | None:
        """Frames of its clips, as its tables hold them; None for images."""
        times = next((grid["t"] for grid in self.places.values() if "t" in grid), None)
        return None if times is None else times * (self.cut.frames or 1)

    def shape(self, name: str) -> tuple[int, ...]:
        """A ruled tensor's shape as its layout speaks of it."""
        return self.ruled[name].viewed(self.tensors, name)

    @property
    def prefix(self) -> int:
        """Prefix rows of the position table."""
        return max((n for name, n in self.extra.items() if self.ruled[name].extra is None), default=0)

    @property
    def grid(self) -> Grid:
        """The position table's grid; without a table, that of the image's patches, as far as its size is known."""
        tables = [name for name in self.places if not (self.ruled[name].offsets or self.ruled[name].window)]
        if tables:
            return self.places[tables[0]]
        if self.src_img is None or self.stride == (1, 1):
            return {}
        return {axis: n // step for axis, n, step in zip("hw", self.src_img, self.stride, strict=True)}

    @property
    def methods(self) -> str:
        """What the home library does to its tensors."""
        return "; ".join(dict.fromkeys(str(rule.method or self.family.method) for rule in self.ruled.values()))

    @property
    def stages(self) -> int:
        """How many stages the windowed tables stand in."""
        return max((rule.stage(name) + 1 for name, rule in self.ruled.items() if rule.window), default=0)

    @property
    def unit(self) -> tuple[int, int]:
        """What sides of its image must be multiples of."""
        return (self.family.unit,) * 2 if self.family.unit is not None else self.stride


def measure(
    root: str,
    family: Family,
    tensors: Mapping[str, Any],
    *,
    claims: Sequence[tuple[str, Size]],
    src_img: Size | None,
    vouched: bool,
    arguments: Mapping[str, Any],
    architecture: str | None,
    own: Mapping[str, Rule],
) -> Model:
    """The model's source size, by the order of truth: the user, the config, the tensors themselves.

    `own`: tensors of which the user's rules speak.
    """
    ruled = {**own, **{name: rule for name, rule in family.ruled(tensors).items() if name not in own}}
    _check_unruled(family, tensors, ruled, vouched)
    for name in ruled:
        if 0 in tensors[name].shape:
            shape = shape_text(tensors[name].shape)
            raise BadFile(
                f"{root}{name} of shape {shape} has no elements: a shard of partitioned training?",
                hint="gather the weights first (DeepSpeed: zero_to_fp32.py)",
            )
    _check_width(family, tensors, ruled)
    if family.patch.volume and family.patch.flat(tensors) and (src_img is None or src_img.frames is None):
        raise Mismatch(
            f"{root}{family.patch.pixels} could take patches of an image as well as of a volume",
            hint="say the size of a volume with its slices: --src-img SLICESxHEIGHTxWIDTH",
        )
    found: list[Model] = []
    fault: PosinterpError | None = None
    for cut in family.patch.cuts(tensors, arguments):
        blank = Model(root, family, tensors, ruled, cut, arguments=arguments, architecture=architecture)
        try:
            found.append(_measured(blank, claims, src_img, vouched))
        except (Ambiguous, Mismatch, BadConfig) as error:
            fault = fault or error
    found = [one for at, one in enumerate(found) if not any(_alike(one, other) for other in found[:at])]
    tokens = family.prefix_counts(tensors)
    explained = [one for one in found if all(extra in tokens for extra in one.extra.values())]
    if len(found) > 1 and len(explained) != 1:
        raise _cut_anyhow(found)
    found = explained if len(found) > 1 else found
    if not found:
        assert fault is not None
        raise fault
    return found[0]


def _alike(one: Model, other: Model) -> bool:
    """Whether two ways to cut a volume differ in its channels and frames alone, of which nobody spoke."""
    return (one.places, one.cut.stride, one.src_img) == (other.places, other.cut.stride, other.src_img)


def _measured(model: Model, claims: Sequence[tuple[str, Size]], src_img: Size | None, vouched: bool) -> Model:
    """The model at its source size, its image being cut in one way."""
    if src_img is not None:
        return _claimed(model, src_img, "--src-img", vouched=True) or _contradicts(model, [("--src-img", src_img)])
    if not model.ruled:
        return replace(model, src_img=claims[0][1] if claims else None, origin=claims[0][0] if claims else "")
    for where, size in claims:
        if fitting := _claimed(model, size, where):
            return fitting
    if claims:
        return _contradicts(model, claims)
    sized = {name: rule for name, rule in model.ruled.items() if rule.side is not None}
    if sized and len(sized) < len(model.ruled):
        proven = _proven(replace(model, ruled=sized))
        size = Size(proven.src_img or ())
        return _claimed(model, size, proven.origin) or _contradicts(model, [(proven.origin, size)])
    if not sized:
        raise Ambiguous(
            f"the tensors do not show how many pixels a place of {next(iter(model.ruled))} spans",
            hint="say the image size that the checkpoint is for: --src-img HEIGHTxWIDTH (or one side)",
        )
    return _of_windows(model) if all(rule.window for rule in model.ruled.values()) else _proven(model)


def _cut_anyhow(found: Sequence[Model]) -> Ambiguous:
    """Several ways to cut the image agree with the tensors."""
    name = next(iter(found[0].ruled))
    grids = ("×".join(map(str, one.places[name].values())) for one in found)
    several = " or ".join(f"{grid} of {one.stride[0]} pixels" for grid, one in zip(grids, found, strict=True))
    return Ambiguous(
        f"{found[0].root}{name} of shape {shape_text(found[0].tensors[name].shape)} could hold {several}",
        hint="say the image size it was made for: --src-img HEIGHTxWIDTH (FRAMESxHEIGHTxWIDTH of a clip)",
    )


def _claimed(model: Model, size: Size, where: str, *, vouched: bool = False) -> Model | None:
    """The model at a size that something claims, if every tensor agrees with it."""
    return _fitted(replace(model, src_img=size, origin=where), vouched=vouched)


def _fitted(model: Model, *, vouched: bool = False) -> Model | None:
    """The model with each tensor's places and extra rows, if all of them hold what its image size and windows say."""
    own = _windows_shown(model)
    model = replace(model, windows=_windows_built_with(model, own))
    known = model.family.prefix_counts(model.tensors)
    places: dict[str, Grid] = {}
    extras: dict[str, int] = {}
    for name, rule in model.ruled.items():
        shape = model.shape(name)
        allowed = known if rule.extra is None else rule.extra
        if rule.side is None:
            grid, extra = _scaled(rule, shape, model.src_img)
        elif rule.window and model.src_img is None:
            grid, extra = own.get(rule.stage(name)), 0
        else:
            grid = places_at(model, name, model.src_img, model.windows)
            if grid is not None and "t" in rule.layout.grid_axes:
                grid = _timed(model, rule, shape, grid, allowed)
            extra = None if grid is None else rule.layout.fits(shape, rule.sides(grid))
        if rule.optional and extra is None:
            continue
        if grid is None or extra is None:
            return None
        before = extra - rule.behind(model.tensors)
        explained = rule.side is None or before in allowed
        if not explained and not (vouched and rule.extra is None and 0 <= before <= UNEXPLAINED):
            return None
        places[name], extras[name] = grid, extra
    if model.ruled and not places:  # all optional, and none shows the grid
        return None
    ruled = {name: rule for name, rule in model.ruled.items() if name in places}
    found = replace(model, ruled=ruled, places=places, extra=extras)
    if found.src_img is None or found.src_img.frames == found.frames:
        return found
    return replace(found, src_img=found.src_img.of_frames(found.frames))


def _timed(model: Model, rule: Rule, shape: tuple[int, ...], grid: Grid, allowed: Sequence[int]) -> Grid | None:
    """A grid with its places along time: those of the clip that is claimed, else the one number that the rows allow."""
    said = model.arguments.get(FRAMES)
    claimed = (model.src_img.frames if model.src_img is not None else None) or (said if isinstance(said, int) else None)
    shown = rule.readable(shape).get("t")
    if claimed is not None:
        return {"t": claimed // (model.cut.frames or 1), **grid}
    if shown is not None:
        return {"t": shown, **grid}
    behind = rule.behind(model.tensors)
    fitting = []
    for times in range(1, max(shape, default=0) + 1):
        timed = {"t": times, **grid}
        extra = rule.layout.fits(shape, rule.sides(timed))
        if extra is None:
            break
        if extra - behind in allowed:
            fitting.append(timed)
    return fitting[0] if len(fitting) == 1 else None


def places_at(model: Model, name: str, image: Size | None, windows: Windows, *, cut: Cut | None = None) -> Grid | None:
    """The places of a tensor's grid at an image size and windows, but for time; None where they would not be whole.

    `cut`: instead of the model's own.
    """
    rule = model.ruled[name]
    stage = rule.stage(name)
    window = model.family.window
    if rule.window == "free" or (window and window.uncapped and model.arguments.get(window.uncapped)):
        return windows.get(stage)
    assert rule.side is not None
    grid = None if image is None else rule.side.places(image, cut or model.cut, stage)
    if not rule.window or grid is None:
        return grid
    whole = windows.get(stage)
    return None if whole is None else {axis: min(grid[axis], whole[axis]) for axis in grid}


def _scaled(rule: Rule, shape: tuple[int, ...], image: Size | None) -> tuple[Grid | None, int | None]:
    """The grid of the image's aspect that a tensor holds beside the fewest extra rows."""
    shown = rule.readable(shape)
    if shown:
        grid = {axis: shown.get(axis, 1) for axis in ("h", "w")}
        return grid, rule.layout.fits(shape, rule.sides(grid))
    fitting = [(grid, extra) for grid, extra in rule.rectangles(shape, image or (1, 1)) if extra <= UNEXPLAINED]
    return fitting[-1] if fitting else (None, None)


# ------------------------------------------------------------------ windows


def _windows_shown(model: Model) -> dict[int, Grid]:
    """The window of each stage as its tables' shapes show it: a square, else one of the image's aspect."""
    shown: dict[int, Grid] = {}
    said = _windows_said(model)
    for name, rule in model.ruled.items():
        if not rule.window:
            continue
        shape, stage = model.shape(name), rule.stage(name)
        tries = [one[stage] for one in (said, _windows_recorded(model), _windows_named(model)) if stage in one]
        if model.src_img is not None and tries:
            seen = (places_at(model, name, model.src_img, {stage: grid}) for grid in tries)
            tries = [grid for grid in seen if grid is not None]
        readable = rule.readable(shape)
        tries += [readable] if len(readable) == 2 else []
        tries += [grid for grid, extra in rule.squares(shape) if not extra]
        if model.src_img is not None:
            tries += [grid for grid, extra in rule.rectangles(shape, model.src_img) if not extra]
            tries += _squares_capped(model, rule, stage)
        for grid in tries:
            if rule.layout.fits(shape, rule.sides(grid)) == 0:
                shown.setdefault(stage, grid)
                break
    return shown


def _squares_capped(model: Model, rule: Rule, stage: int) -> list[Grid]:
    """Square windows, cut to the map of a stage."""
    if rule.window != "capped" or rule.side is None or model.src_img is None:
        return []
    whole = rule.side.places(model.src_img, model.cut, stage) or {}
    sides = range(1, max(whole.values(), default=0) + 1)
    return [{axis: min(side, n) for axis, n in whole.items()} for side in sides]


def _windows_said(model: Model) -> dict[int, Grid]:
    """The windows that the constructor's arguments say."""
    window = model.family.window
    value = model.arguments.get(window.argument) if window else None
    if value is None:
        return {}
    try:
        listed = windows_listed(value, model.stages)
    except BadUsage:
        raise BadConfig(f"model_args.{window.argument if window else ''} is {value!r}, which is no window") from None
    return dict(enumerate(listed))


def _windows_recorded(model: Model) -> dict[int, Grid]:
    """The windows that its recipe says."""
    with contextlib.suppress(BadUsage, TypeError):
        return dict(enumerate(windows_listed(model.arguments.get(RECORDED), model.stages)))
    return {}


def _windows_named(model: Model) -> dict[int, Grid]:
    """The window that is part of the architecture's name, as "window12" of Swin's."""
    found = NAMED_WINDOW.search(model.architecture or "")
    return dict(enumerate(windows_listed(int(found[1]), model.stages))) if found else {}


def windows_listed(value: Any, stages: int) -> list[Grid]:
    """A window for each stage from what a constructor takes: one number, (height, width), or one of either a stage.

    Raises BadUsage for anything else.
    """
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, int) for one in value)
    if isinstance(value, int) or pair:
        value = [value] * stages
    if not isinstance(value, (list, tuple)) or len(value) != stages:
        count = len(value) if isinstance(value, (list, tuple)) else value
        raise BadUsage(f"{count} windows for {stages} stages", hint="say one for all, or one for each stage")
    sides = [(one, one) if isinstance(one, int) else one for one in value]
    for one in sides:
        if not (isinstance(one, (list, tuple)) and len(one) == 2 and all(isinstance(n, int) and n > 0 for n in one)):
            raise BadUsage(f"{value!r} is no window for {stages} stages")
    return [{"h": high, "w": wide} for high, wide in sides]


def _windows_built_with(model: Model, shown: Mapping[int, Grid]) -> Windows:
    """The windows that the model was built with. A map that is smaller than its window hides what that was."""
    window = model.family.window
    if window is None or not shown:
        return {}
    if said := _windows_said(model):
        return said
    tries = [_windows_recorded(model), _windows_named(model)]
    tries += [{stage: {"h": n, "w": n} for stage, n in enumerate(sides)} for sides in window.usual]
    if window.uniform:
        largest = {axis: max(grid[axis] for grid in shown.values()) for axis in ("h", "w")}
        tries.append(dict.fromkeys(range(model.stages), largest))
    for windows in tries:
        if windows and _could_be(model, windows, shown):
            return windows
    # A stage of convolutions shows none, and the constructor wants one for it all the same.
    return {stage: shown.get(stage, shown[min(shown)]) for stage in range(model.stages)}


def _could_be(model: Model, windows: Windows, shown: Mapping[int, Grid]) -> bool:
    """Whether a model of these windows would show those."""
    for name, rule in model.ruled.items():
        stage = rule.stage(name)
        if stage not in windows:
            return False
        if model.src_img is not None:
            if places_at(model, name, model.src_img, windows) != shown.get(stage):
                return False
        elif windows[stage] != shown.get(stage) and not (rule.window == "capped" and _hidden(stage, windows, shown)):
            return False
    return True


def _hidden(stage: int, windows: Windows, shown: Mapping[int, Grid]) -> bool:
    """Whether a map that nobody knows could have cut a window: then smaller maps of later stages cut theirs, too."""
    later = [shown[other] for other in shown if other >= stage]
    return all(grid[axis] <= min(windows[stage][axis], shown[stage][axis]) for grid in later for axis in ("h", "w"))


def _of_windows(model: Model) -> Model:
    """A model whose tables span windows only, and so do not say an image size."""
    if found := _fitted(replace(model, origin="its windows")):
        return found
    name = next(name for name in model.ruled if model.ruled[name].stage(name) not in _windows_shown(model))
    raise Ambiguous(
        f"{model.root}{name} of shape {shape_text(model.tensors[name].shape)} is no square window's",
        hint="say the image size it was made for (--src-img): its aspect is the window's",
    )


# ------------------------------------------------------------------ proof by the tensors


def _proven(model: Model) -> Model:
    """The model at the one size that its tensors allow: the sides they show, else a square."""
    shown = _sides_shown(model)
    if shown is None:
        longest = max(max(model.shape(name)) for name in model.ruled)
        steps = [max(pair) for pair in zip(model.unit, model.stride, strict=True)]
        tries = [(k * steps[0], k * steps[1]) for k in range(1, math.isqrt(longest) + 3)]
    else:
        tries = list(itertools.product(shown[0], shown[1]))
    origin = ROOT if shown is None else "its shape"
    fitting = [found for size in tries if (found := _claimed(model, Size(size), origin))]
    # Rows that could all be prefix rows prove no grid: a table of one row is one place, or a class token's row.
    known = model.family.prefix_counts(model.tensors)
    if shown is None:
        fitting = [one for one in fitting if not _prefix_alone(one, known)]
    if len(fitting) != 1:
        raise _ambiguous(model, [one.places[next(iter(one.places))] for one in fitting])
    return fitting[0]


def _prefix_alone(model: Model, known: Sequence[int]) -> bool:
    """Whether a table's places are no more than its prefix tokens."""
    return any(
        rule.extra is None and math.prod(model.places[name].values()) in known for name, rule in model.ruled.items()
    )


def _sides_shown(model: Model) -> list[list[int]] | None:
    """Heights and widths in pixels that agree with every side that stands in a shape by itself; None without any."""
    found: list[set[int] | None] = [None, None]
    for name, rule in model.ruled.items():
        if rule.side is None or rule.window or rule.optional:
            continue
        for axis, n in rule.readable(model.shape(name)).items():
            if axis == "t":
                continue
            at = "hw".index(axis)
            pixels = _pixels(rule.side, n, model.cut, at, max(model.unit[at], model.stride[at]), rule.stage(name))
            found[at] = pixels if found[at] is None else found[at] & pixels  # type: ignore[operator]
    return None if None in found else [sorted(side or ()) for side in found]


def _pixels(side: Side, places: int, cut: Cut, at: int, unit: int, stage: int) -> set[int]:
    """The sides of an image, multiples of `unit`, at which a tensor has so many places; `at`: which side, of (h, w)."""
    span = (side.stride or cut.stride[at]) << stage
    tries = {k * unit for k in range(1, (places + 2) * span // unit + 2)}
    return {n for n in tries if (grid := side.places((n, n), cut, stage)) and grid["hw"[at]] == places}


def _ambiguous(model: Model, grids: Sequence[Grid]) -> Ambiguous:
    name = next(iter(model.ruled))
    what = f"{model.root}{name} of shape {shape_text(model.tensors[name].shape)}"
    rows = _rows(model, name)
    hint = "say the image size it was made for: --src-img HEIGHTxWIDTH (or one side)"
    if grids:
        several = " or ".join(f"{grid['h']}×{grid['w']}" for grid in grids)
        return Ambiguous(f"{what} could be a grid of {several}{rows and f' with {rows}'}", hint=hint)
    return Ambiguous(f"{what} holds no square grid{rows and f' beside {rows}'}", hint=hint)


def _rows(model: Model, name: str) -> str:
    """How many extra rows a tensor may have, in words; "" where its layout has none."""
    rule = model.ruled[name]
    if not rule.layout.has_extras:
        return ""
    counts = model.family.prefix_counts(model.tensors) if rule.extra is None else rule.extra
    words = " or ".join(map(str, counts))
    return f"{words} {'prefix' if rule.extra is None else 'extra'} row{'' if words == '1' else 's'}"


def _contradicts(model: Model, claims: Sequence[tuple[str, Size]]) -> Model:
    """Raises: what is claimed of the size, and what the tensors say."""
    where, size = claims[0]
    name = _first_astray(model, size)
    shape = f"{model.root}{name} of shape {shape_text(model.tensors[name].shape)}"
    windows = _windows_said(model)
    grid = None if model.ruled[name].side is None else places_at(model, name, size, windows)
    message = f"{where} says {size}, {_grid_text(grid)}; {shape}"
    try:
        proven = _proven(model) if not any(r.window or r.side is None for r in model.ruled.values()) else None
    except Ambiguous:
        proven = None
    if proven is not None:
        message += f" is for {proven.src_img} ({proven.places[name]['h']}×{proven.places[name]['w']})"
    else:
        rows = _rows(model, name)
        message += f" disagrees{rows and f' ({rows} allowed)'}"
    right = str(proven.src_img) if proven is not None else "HEIGHTxWIDTH"
    if where == "--src-img":
        raise Mismatch(message, hint=f"leave --src-img out, or give the size the checkpoint is for ({right})")
    raise BadConfig(message, hint=f"--src-img {right} overrides that")


def _grid_text(grid: Grid | None) -> str:
    return "which gives no whole grid" if grid is None else f"a grid of {grid['h']}×{grid['w']}"


def _first_astray(model: Model, size: Size) -> str:
    """The first tensor that a claimed size does not fit."""
    model = replace(model, src_img=size)
    model = replace(model, windows=_windows_built_with(model, _windows_shown(model)))
    for name, rule in model.ruled.items():
        shape = model.shape(name)
        grid = _scaled(rule, shape, size)[0] if rule.side is None else places_at(model, name, size, model.windows)
        if grid is not None and "t" in rule.layout.grid_axes:
            known = model.family.prefix_counts(model.tensors)
            grid = _timed(model, rule, shape, grid, known if rule.extra is None else rule.extra)
        if grid is None or rule.layout.fits(shape, rule.sides(grid)) is None:
            return name
    return next(iter(model.ruled))


def _check_unruled(family: Family, tensors: Mapping[str, Any], ruled: Mapping[str, Rule], vouched: bool) -> None:
    """A position tensor that no rule speaks of would be left at its old size, in silence."""
    for name, info in tensors.items():
        spoken = name in ruled or name in family.tokens or any(matches(g, name) for g in family.drop + family.leave)
        if not vouched and not spoken and len(info.shape) > 1 and POSITIONAL.search(name):
            raise UnknownFamily(
                f"{name} {shape_text(info.shape)} looks like a position tensor; {family.name} has no rule for it",
                hint=f"--family {family.name} leaves it as it is",
            )


def _check_width(family: Family, tensors: Mapping[str, Any], ruled: Mapping[str, Rule]) -> None:
    """The table has the width of its tokens and its patches; a decoder's, which is not the family's first, its own."""
    kernel = family.patch.kernel
    out = -1 if family.patch.axes is not None else 0  # JAX's kernels end in the width
    parts = [(token, -1) for token in family.tokens] + ([] if kernel is None else [(kernel, out)])
    for name, rule in ruled.items():
        if rule.layout.spec != "1 (p h w) c" or rule not in family.rules[:1]:
            continue
        width = tensors[name].shape[-1]
        for part, axis in parts:
            if part in tensors and tensors[part].shape[axis:][:1] != (width,):
                raise Mismatch(
                    f"{name} is {width} wide, {part} of shape {shape_text(tensors[part].shape)} is not",
                    hint="the two are not of one model",
                )
