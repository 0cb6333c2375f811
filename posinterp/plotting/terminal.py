"""Figures as text: two rows of an image in one of characters, each its own colour; shades of ASCII without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..resampling import Method, apply_weights, axis_weights
from .colours import coloured
from .panels import Figure, Panel, Scale, Values, printable

SHADES = ".:-=+*#%@"  # from the lowest to the highest
SHADE = 2  # characters of a cell without colour, about a square; half a character with it
SIDE = 28  # characters to which a small panel grows
GAP = 3  # characters between panels
LEGEND = 24  # characters of a scale's colours

Pixels = NDArray[np.float64]  # (rows, columns, 3), from 0 to 255, NaN where nothing is


def terminal_lines(figure: Figure, *, columns: int = 80, colour: bool = True) -> list[str]:
    """A figure for a terminal of so many columns. `colour`: 24-bit colours and half blocks; else ASCII shades."""
    lines = [printable(figure.title), ""]
    for row in figure.panels:
        for some in _fitting([_Drawn.of(panel, figure, columns, colour) for panel in row], columns):
            lines += [*_side_by_side(some), ""]
    for scale in figure.scales.values():
        lines.append(_legend(scale, colour))
    return [*lines, *textwrap.wrap(printable(figure.caption), columns)]


class _Drawn:
    """A panel as lines of equal width."""

    def __init__(self, title: str, lines: Sequence[str], width: int) -> None:
        self.title, self.lines, self.width = title, lines, width

    @classmethod
    def of(cls, panel: Panel, figure: Figure, columns: int, colour: bool) -> _Drawn:
        cell = 1 if colour else SHADE
        panel = _with_room(panel, columns // cell)
        growth = 1 if panel.values.ndim == 4 else max(SIDE // cell // panel.values.shape[1], 1)
        values = _sized(panel.mosaic, columns // cell, growth)
        scale = figure.scales.get(panel.scale)
        if colour:
            shown = coloured(values, scale).astype(float) if scale else values * 255
            shown[np.isnan(values if scale else values.sum(-1))] = np.nan
            lines = [_half_blocks(upper, lower) for upper, lower in _pairs(shown)]
            return cls(printable(panel.title), lines, values.shape[1])
        flat, scale = (values, scale) if scale else (values.mean(-1), Scale(0, 1, ""))
        return cls(printable(panel.title), [_shades(row, scale) for row in flat], SHADE * values.shape[1])


def _with_room(panel: Panel, columns: int) -> Panel:
    """A panel without the tiles that so many columns have no room for, taken out evenly."""
    if panel.values.ndim != 4:
        return panel
    down, across, _, wide = panel.values.shape
    every = -(-across // max((columns + 1) // (wide + 1), 1))
    if every == 1:
        return panel
    drawn = [slice((n - 1) % every // 2, None, every) for n in (down, across)]
    kept = panel.values[drawn[0], drawn[1]]
    said = f"{kept.shape[0]}×{kept.shape[1]} of {down}×{across} tiles: there is no room for more"
    return replace(panel, values=kept, title=f"{panel.title} {said}".strip())


def _sized(values: Values, columns: int, factor: int) -> Values:
    """An image made larger by repeating cells, or smaller, to fit, by means over them."""
    high, wide = values.shape[:2]
    if wide > columns:
        sides = [(high, max(high * columns // wide, 1)), (wide, columns)]
        return apply_weights(values, [axis_weights(old, new, Method("area")) for old, new in sides])
    factor = min(factor, columns // wide)
    return values.repeat(factor, 0).repeat(factor, 1)


def _pairs(image: Pixels) -> Iterator[tuple[Pixels, Pixels]]:
    """Its rows two by two, a row of nothing below an odd last one."""
    if len(image) % 2:
        image = np.concatenate([image, np.full_like(image[:1], np.nan)])
    yield from zip(image[::2], image[1::2], strict=True)


def _half_blocks(upper: Pixels, lower: Pixels) -> str:
    """Two rows of an image in one of text: the upper half block in the upper's colour, on the lower's."""
    text, last = "", ""
    for top, bottom in zip(upper, lower, strict=True):
        above, below = not np.isnan(top[0]), not np.isnan(bottom[0])
        if above and below:
            code = f"{_code(38, top)};{_code(48, bottom)}"
        else:  # back to the terminal's own ground
            code = f"0;{_code(38, top if above else bottom)}" if above or below else "0"
        text += f"\033[{code}m" * (code != last) + ("▀" if above else "▄" if below else " ")
        last = code
    return text + "\033[0m"


def _code(ground: int, colour: Pixels) -> str:
    return f"{ground};2;" + ";".join(str(int(part + 0.5)) for part in colour)


def _shades(row: Values, scale: Scale) -> str:
    at = (np.nan_to_num(row, nan=scale.low) - scale.low) / (scale.high - scale.low)
    steps = np.clip((at * len(SHADES)).astype(int), 0, len(SHADES) - 1)
    return "".join(SHADE * (" " if np.isnan(value) else SHADES[step]) for value, step in zip(row, steps, strict=True))


def _fitting(drawn: Sequence[_Drawn], columns: int) -> Iterator[list[_Drawn]]:
    """Panels in rows as wide as the terminal."""
    some: list[_Drawn] = []
    for one in drawn:
        if some and sum(max(each.width, len(each.title)) + GAP for each in (*some, one)) - GAP > columns:
            yield some
            some = []
        some.append(one)
    yield some


def _side_by_side(drawn: Sequence[_Drawn]) -> list[str]:
    widths = [max(one.width, len(one.title)) for one in drawn]
    lines = []
    if any(one.title for one in drawn):
        lines.append(
            (" " * GAP).join(one.title.ljust(width) for one, width in zip(drawn, widths, strict=True)).rstrip()
        )
    for n in range(max(len(one.lines) for one in drawn)):
        parts = [
            (one.lines[n] + " " * (width - one.width)) if n < len(one.lines) else " " * width
            for one, width in zip(drawn, widths, strict=True)
        ]
        lines.append((" " * GAP).join(parts).rstrip(" "))
    return lines


def _legend(scale: Scale, colour: bool) -> str:
    ramp = np.linspace(scale.low, scale.high, LEGEND)
    bar = (
        "".join(f"\033[{_code(38, one)}m█" for one in coloured(ramp, scale).astype(float)) + "\033[0m"
        if colour
        else f"[{SHADES}]"
    )
    return f"{scale.low:.3g} {bar} {scale.high:.3g}   {printable(scale.label)}"
