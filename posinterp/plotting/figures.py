"""The figures of a position table, as numbers: what is near what, and what a resize makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import BadUsage, BadValues
from ..measuring import Model
from ..method import Method
from ..planning import Edit, Plan
from ..rules import BICUBIC
from ..similarity import Place, cosine_maps, flat_place, principal_components
from ..size import shape_text
from ..store import Checkpoint
from ..tables import Table, resized_table
from .panels import Axis, Figure, Panel, Scale, Values

COSINE = "cosine similarity"
HEADS_A_ROW = 6
HEADS = 24  # that a figure has room for
TILES = 14  # a side, that a printed figure has room for: the grid of a ViT-B/16 at 224


@dataclass(frozen=True)
class Scene:
    """What figures are made of. `name`: the tensor's, below its model's root.

    `after`: the table resized, by `plan`, or in the checkpoint `other`; `at`: places of `before`; `beside`: before and
    after of the tables that hold the other axes of the same offsets.
    """

    source: Checkpoint
    model: Model
    name: str
    before: Table
    after: Table | None = None
    plan: Plan | None = None
    other: Checkpoint | None = None
    at: tuple[Place, ...] = ()
    beside: tuple[tuple[Table, Table | None], ...] = ()

    @property
    def edit(self) -> Edit | None:
        edits = () if self.plan is None else self.plan.edits
        return next((edit for edit in edits if edit.name == self.before.name), None)

    @property
    def both(self) -> list[tuple[str, Table]]:
        """The tables that are compared, with a word for each; one where nothing is resized."""
        if self.after is None:
            return [(_size_word(self.before, ""), self.before)]
        return [(_size_word(self.before, "before"), self.before), (_size_word(self.after, "after"), self.after)]

    @property
    def others(self) -> list[list[Table]]:
        """What stands beside each of `both`."""
        return [[before for before, _ in self.beside], [after for _, after in self.beside if after is not None]]


def _size_word(table: Table, word: str) -> str:
    size = "" if table.size is None else f"{word and ', '}{table.size} pixels"
    return f"{word}{size}" or "as stored"


# ------------------------------------------------------------------ words and axes


def described(scene: Scene, table: Table) -> str:
    """The table and its model in one sentence."""
    model, sides = table.model, "×".join(map(str, table.grid.shape[:-1]))
    count = table.grid.shape[-1]
    at = "" if table.size is None else f" at {table.size}"
    what = "offsets" if table.offsets else "places"
    spans = {f"{n:g}" for n in table.pixels.values()}
    pixels = f" of {spans.pop()} pixels" if len(spans) == 1 else ""
    each = f"{count} head{'s' * (count != 1)}" if table.bias and len(table.axes) > 1 else f"{count} channels"
    rule = model.ruled[table.name[len(model.root) :]]
    kind = "prefix" if "p" in str(rule.layout) and not rule.suffix else "extra"
    rows = f", {table.extra} {kind} row{'s' * (table.extra != 1)} left out" if table.extra else ""
    source = scene.source.label if table is not scene.after or scene.other is None else scene.other.label
    return (
        f"{table.name} {shape_text(table.shape)} of {source}: {model.family.name} ({model.family.home}){at}, "
        f"{sides} {what}{pixels}, {each}{rows}."
    )


def recipe(scene: Scene) -> str:
    """How `after` was made."""
    if scene.edit is not None and scene.plan is not None:
        return f"Resized {scene.plan.src_img or '?'} → {scene.plan.dst_img} by {scene.edit.method}."
    if scene.other is None:
        return ""
    said = scene.other.recipe.get("tensors")
    method = said.get(scene.before.name) if isinstance(said, dict) else None
    how = f"made by posinterp, {method}" if isinstance(method, str) else "which does not say how it was made"
    return f"After: {scene.other.label}, {how}."


def plane(table: Table) -> tuple[Values, str]:
    """The grid as (rows, columns, channels), and what to say if that is a part of it only."""
    if len(table.axes) == 3:
        return table.grid[0], f" Of {table.grid.shape[0]} places along time, the first."
    return table.grid, ""


def axes_of(table: Table) -> tuple[Axis, Axis]:
    """The rows and columns of a table's grid."""
    windowed = table.model.ruled[table.name[len(table.model.root) :]].window
    where = " in the window" if windowed and not table.bias else ""
    found = []
    for axis, word in zip("hw", ("row", "column"), strict=True):
        n = table.grid.shape[table.axes.index(axis)]
        if table.offsets:
            found.append(Axis(f"offset in {word}s", tuple(range(-(n // 2), n - n // 2)), table.pixels.get(axis)))
        elif table.bias and table.grid.shape[-1] > 1:
            found.append(Axis(f"distance in {word}s", tuple(range(n)), table.pixels.get(axis)))
        else:
            found.append(Axis(f"patch {word}{where}", tuple(range(n)), table.pixels.get(axis)))
    return found[0], found[1]


LINES = {"h": "patch row", "w": "patch column", "t": "place along time"}


def _line(table: Table) -> Axis:
    """The axis of a table that has one only."""
    (axis,) = table.axes
    return Axis(LINES[axis], tuple(range(table.grid.shape[0])), table.pixels.get(axis))


def _vectors_only(table: Table, show: str) -> None:
    if table.bias:
        raise BadUsage(
            f"{table.name} holds numbers added to attention, no vectors: --show {show} does not speak of it",
            hint="draw it with --show bias",
        )


def _has_plane(table: Table, show: str) -> None:
    if len(table.axes) == 1:
        raise BadUsage(
            f"{table.name} has one axis only: --show {show} wants rows and columns",
            hint=f"draw it with --show {'bias' if table.offsets else 'tiles'}",
        )


def _no_places(scene: Scene, show: str) -> None:
    if scene.at:
        raise BadUsage(f"--at says a place, and --show {show} draws all of them", hint="leave --at out")


def _needs_after(scene: Scene, show: str) -> Table:
    if scene.after is None:
        raise BadUsage(f"--show {show} compares two sizes", hint="say the other one with --img, or --against SOURCE")
    return scene.after


def _some_similarity(maps: Sequence[Values], table: Table) -> None:
    if not any(np.isfinite(one).any() for one in maps):
        raise BadValues(f"{table.name} is zero at every place: nothing is similar", hint="was it ever trained?")


def in_new_grid(place: Place, old: Sequence[int], new: Sequence[int]) -> Place:
    """The place of a grid that the middle of another grid's place lies in."""
    return tuple(int((n + 0.5) * after / before) for n, before, after in zip(place, old, new, strict=True))


# ------------------------------------------------------------------ the figures


def tiles(scene: Scene) -> Figure:
    """Cosine similarity of every place with all places: figure 7 of the ViT paper (arXiv 2010.11929)."""
    table = scene.after or scene.before
    _vectors_only(table, "tiles")
    if len(table.axes) == 1:
        return _matrices(scene, [("", table)], "tiles")
    grid, part = plane(table)
    sides = grid.shape[:2]
    rows, columns = axes_of(table)
    panels: tuple[Panel, ...]
    if scene.at:
        marks = _marks(scene, sides)
        maps = cosine_maps(grid, marks)
        panels = tuple(
            Panel(f"place {row},{column}", one, rows, columns, "similarity", (row, column))
            for one, (row, column) in zip(maps, marks, strict=True)
        )
        said = f"Cosine similarity of a place, marked, with all {sides[0] * sides[1]} places."
    else:
        down, across = (_spread(n, TILES) for n in sides)
        maps = cosine_maps(grid, [(row, column) for row in down for column in across])
        tiled = replace(rows, names=tuple(down)), replace(columns, names=tuple(across))
        panels = (Panel("", maps.reshape(len(down), len(across), *sides), *tiled, "similarity"),)
        said = (
            f"Each tile: the cosine similarity of the place at its row and column with all {sides[0] * sides[1]} "
            "places, laid out as the image."
        )
        if (len(down), len(across)) != sides:
            said += f" {len(down)}×{len(across)} of its {sides[0]}×{sides[1]} places have a tile."
    _some_similarity([maps], table)
    return Figure(
        "tiles",
        table.name,
        f"{table.name}: how similar each place is to all others",
        _joined([described(scene, table), recipe(scene), said, part]),
        (panels,),
        {"similarity": Scale.of([maps], COSINE, high=1.0)},
    )


def _marks(scene: Scene, sides: Sequence[int]) -> list[tuple[int, int]]:
    """The places that are asked for, which are of the source's grid, in a grid of other sides."""
    old = plane(scene.before)[0].shape[:2]
    found = (in_new_grid(place, old, sides) for place in _within(scene.at, old))
    return [(row, column) for row, column in found]


def _spread(n: int, most: int) -> list[int]:
    """At most so many of n places, evenly spaced, as far from one border as from the other."""
    step = -(-n // max(most, 1))
    return list(range((n - 1) % step // 2, n, step))


def _within(places: Sequence[Place], sides: Sequence[int]) -> Sequence[Place]:
    for place in places:
        flat_place(place, sides)
    return places


def resize(scene: Scene) -> Figure:
    """Before and after a resize, side by side on one colour scale: similarity with the same places of the image."""
    after = _needs_after(scene, "resize")
    if scene.before.bias:
        return bias(scene)
    if len(scene.before.axes) == 1:
        return _matrices(scene, scene.both, "resize")
    old, part = plane(scene.before)
    new = plane(after)[0]
    high, wide = old.shape[:2]
    usual = ((0, 0), (high // 2, wide // 2), (high - 1, wide // 2))
    places = _within(scene.at or tuple(dict.fromkeys(usual)), (high, wide))
    panels = []
    for (word, table), grid in zip(scene.both, (old, new), strict=True):
        marks = [in_new_grid(place, (high, wide), grid.shape[:2]) for place in places]
        rows, columns = axes_of(table)
        panels.append(
            tuple(
                Panel(f"{word}: place {row},{column}", one, rows, columns, "similarity", (row, column))
                for one, (row, column) in zip(cosine_maps(grid, marks), marks, strict=True)
            )
        )
    maps = [panel.values for row in panels for panel in row]
    _some_similarity(maps, scene.before)
    words = [
        described(scene, scene.before),
        recipe(scene),
        f"Cosine similarity of a place, marked, with all places of its own grid; columns are the same spot of the "
        f"image.{part}",
    ]
    return Figure(
        "resize",
        scene.before.name,
        f"{scene.before.name}: {_grid_text(scene.before)} → {_grid_text(after)} places",
        _joined(words),
        tuple(panels),
        {"similarity": Scale.of(maps, COSINE, high=1.0)},
    )


def _matrices(scene: Scene, tables: Sequence[tuple[str, Table]], show: str) -> Figure:
    """Of tables with one axis: all places with all."""
    maps = [cosine_maps(table.grid) for _, table in tables]
    _some_similarity(maps, scene.before)
    panels = [
        Panel(word, one, _line(table), _line(table), "similarity")
        for one, (word, table) in zip(maps, tables, strict=True)
    ]
    words = [described(scene, tables[0][1]), recipe(scene), "Cosine similarity of every place with every other."]
    title = f"{scene.before.name}: how similar each place is to all others"
    scales = {"similarity": Scale.of(maps, COSINE, high=1.0)}
    return Figure(show, scene.before.name, title, _joined(words), (tuple(panels),), scales)


def bias(scene: Scene) -> Figure:
    """Tables of numbers added to attention: an image for each head, or channels by offsets for tables of one axis."""
    table = scene.before
    if not table.bias and len(table.axes) > 1:
        raise BadUsage(
            f"{table.name} holds vectors added to tokens, no bias of attention", hint="draw it with --show tiles"
        )
    _no_places(scene, "bias")
    heads = range(min(table.grid.shape[-1], HEADS if scene.after is None else HEADS_A_ROW))
    rows = [
        [panel for one in (table, *more) for panel in _head_panels(one, word if scene.after else "", heads)]
        for (word, table), more in zip(scene.both, scene.others, strict=False)
    ]
    if scene.after is None and len(rows[0]) > HEADS_A_ROW:
        rows = [rows[0][first : first + HEADS_A_ROW] for first in range(0, len(rows[0]), HEADS_A_ROW)]
    left = table.grid.shape[-1] - len(heads) if len(table.axes) > 1 else 0
    words = [
        described(scene, table),
        recipe(scene),
        _bias_words(table),
        f"{left} more heads are not drawn." if left else "",
        plane(table)[1] if len(table.axes) > 1 else "",
    ]
    values = [panel.values for row in rows for panel in row]
    change = f"{_grid_text(table)}" + (f" → {_grid_text(scene.after)}" if scene.after else "")
    what = "offsets" if table.offsets else "distances" if table.grid.shape[-1] > 1 else "places"
    return Figure(
        "bias",
        table.name,
        f"{table.name}: {change} {what}",
        _joined(words),
        tuple(map(tuple, rows)),
        {"bias": Scale.of(values, "added to attention" if len(table.axes) > 1 else "value", signed=True)},
    )


def _head_panels(table: Table, word: str, heads: range) -> list[Panel]:
    before = f"{word}: " * bool(word)
    if len(table.axes) == 1:
        letter = {"h": "rows", "w": "columns", "t": "time"}[table.axes[0]]
        n, channels = table.grid.shape
        first = -(n // 2) if table.offsets else 0
        line = Axis(f"offset in {letter}", tuple(range(first, first + n)), table.pixels.get(table.axes[0]))
        leaf = table.name.rpartition(".")[2]
        return [
            Panel(
                f"{word}: {leaf}" if word else leaf, table.grid.T, Axis("channel", tuple(range(channels))), line, "bias"
            )
        ]
    grid, (rows, columns) = plane(table)[0], axes_of(table)
    return [Panel(f"{before}head {head}", grid[..., head], rows, columns, "bias") for head in heads]


def _bias_words(table: Table) -> str:
    if len(table.axes) == 1:
        return "A vector for each offset between a query and a key, multiplied with the query."
    if table.offsets:
        return "What a head adds to the attention of two places, by the offset between them; the middle is none."
    return "What a head adds to the attention of two places, by their distance; the upper left corner is none."


OTHERS = (Method("nearest"), Method("bilinear"), Method("bicubic"), BICUBIC, Method("lanczos3", antialias=True))


def methods(scene: Scene) -> Figure:
    """One resize by several methods: each one's result, and how far it is from what `resize` writes."""
    if scene.plan is None or scene.edit is None or scene.after is None:
        raise BadUsage("--show methods resamples a table", hint="say to which size with --img")
    _has_plane(scene.before, "methods")
    own, old = scene.edit.method, plane(scene.before)[0].shape[:2]
    if len(scene.at) > 1:
        raise BadUsage("--show methods draws one place", hint="say --at once")
    hows = [own, *(how for how in OTHERS if how != own)]
    tables = [resized_table(scene.plan, scene.model, scene.name, method=how) for how in hows]
    grids = [plane(table)[0] for table in tables if table is not None]
    length = float(np.sqrt((grids[0] ** 2).sum(-1).mean())) or 1.0
    apart = [100 * np.linalg.norm(grid - grids[0], axis=-1) / length for grid in grids]
    rows, columns = axes_of(scene.after)
    if scene.before.bias:
        _no_places(scene, "methods of a bias")
        maps, mark, what = [grid[..., 0] for grid in grids], None, "Above: head 0."
        scale = Scale.of(maps, "added to attention", signed=True)
    else:
        (place,) = _within(scene.at or [(old[0] // 2, old[1] // 2)], old)
        row, column = in_new_grid(place, old, grids[0].shape[:2])
        mark = (row, column)
        maps = [cosine_maps(grid, [mark])[0] for grid in grids]
        scale = Scale.of(maps, COSINE, high=1.0)
        what = f"Above: cosine similarity of place {row},{column}, marked, with all places."
    words = [
        described(scene, scene.before),
        f"Resized {scene.plan.src_img or '?'} → {scene.plan.dst_img}; the first column is what resize writes. {what} "
        "Below: the distance of each place's vector from the first column's, in percent of the vectors' length (root "
        f"mean square).{plane(scene.before)[1]}",
    ]
    panels = (
        tuple(Panel(str(how), one, rows, columns, "above", mark) for how, one in zip(hows, maps, strict=True)),
        tuple(Panel(f"mean {one.mean():.1f} %", one, rows, columns, "apart") for one in apart),
    )
    return Figure(
        "methods",
        scene.before.name,
        f"{scene.before.name}: {_grid_text(scene.before)} → {_grid_text(scene.after)} by {len(hows)} methods",
        _joined(words),
        panels,
        {"above": scale, "apart": Scale.of(apart, "distance, %")},
        {"methods": [str(how) for how in hows], "mean_distance": [float(one.mean()) for one in apart]},
    )


def components(scene: Scene) -> Figure:
    """The first three principal components of a table, together as red, green and blue, and each by itself."""
    _vectors_only(scene.before, "components")
    _has_plane(scene.before, "components")
    _no_places(scene, "components")
    grid, part = plane(scene.before)
    found = principal_components(grid)
    along = [found.of(plane(table)[0]) for _, table in scene.both]  # (rows, columns, 3)
    low, high = (np.stack([limit(one, axis=(0, 1)) for one in along]) for limit in (np.min, np.max))
    span = np.maximum(high.max(0) - low.min(0), np.finfo(np.float64).tiny)
    panels = []
    for (word, table), values in zip(scene.both, along, strict=True):
        rows, columns = axes_of(table)
        mixed = np.full((*values.shape[:2], 3), 0.5)
        mixed[..., : values.shape[-1]] = (values - low.min(0)) / span
        single = [
            Panel(f"component {n + 1}: {share:.0%}", values[..., n], rows, columns, "component")
            for n, share in enumerate(found.shares)
        ]
        panels.append((Panel(word, mixed, rows, columns), *single))
    kept = " The components are those of the table before." if scene.after else ""
    words = [
        described(scene, scene.before),
        recipe(scene),
        "Left: three principal components of the places' vectors as red, green and blue: places of a like colour have "
        f"like vectors. Right: each by itself, with its share of the variance.{kept}{part}",
    ]
    change = f" → {_grid_text(scene.after)}" if scene.after else ""
    return Figure(
        "components",
        scene.before.name,
        f"{scene.before.name}: principal components of {_grid_text(scene.before)}{change} places",
        _joined(words),
        tuple(panels),
        {"component": Scale.of(along, "along the component", signed=True)},
        {"shares": [float(share) for share in found.shares]},
    )


def _grid_text(table: Table) -> str:
    return "×".join(map(str, table.grid.shape[:-1]))


def _joined(words: Sequence[str]) -> str:
    return " ".join(word.strip() for word in words if word)


FIGURES: dict[str, Callable[[Scene], Figure]] = {
    "tiles": tiles,
    "resize": resize,
    "methods": methods,
    "components": components,
    "bias": bias,
}
