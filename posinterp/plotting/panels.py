"""What a figure is, before anybody draws it: panels of numbers, their axes, and the colour scales that they share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
DIGITS = 6  # significant ones of the numbers in JSON
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Text without what a terminal obeys, and no XML can hold: tensors may be called anything."""
    return UNPRINTABLE.sub("?", text)


@dataclass(frozen=True)
class Scale:
    """What colours mean. `signed`: zero is in the middle, and the map runs to both sides of it."""

    low: float
    high: float
    label: str
    signed: bool = False

    @classmethod
    def of(cls, values: Sequence[Values], label: str, *, signed: bool = False, high: float | None = None) -> Scale:
        """The scale on which all of several arrays are drawn."""
        finite = np.concatenate([one[np.isfinite(one)].ravel() for one in values])
        low, top = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if signed:
            low, top = -max(abs(low), abs(top)), max(abs(low), abs(top))
        top = top if high is None else high
        return cls(low, top if top > low else low + 1.0, label, signed)


@dataclass(frozen=True)
class Axis:
    """One axis of a panel. `names`: the number of each cell; `pixels`: of the image that a cell spans, if it does."""

    label: str
    names: tuple[int, ...]
    pixels: float | None = None


@dataclass(frozen=True)
class Panel:
    """One image of a figure.

    `values`: (rows, columns); or (rows, columns, h, w), tiles of numbers each; or (rows, columns, 3), red, green, blue
    from 0 to 1, where `scale` is "". `scale`: the name of the figure's that it is drawn on. `mark`: a cell of it.
    """

    title: str
    values: Values
    rows: Axis
    columns: Axis
    scale: str = ""
    mark: tuple[int, int] | None = None

    @property
    def mosaic(self) -> Values:
        """The values as one image: tiles with a cell of NaN between them."""
        if self.values.ndim != 4:
            return self.values
        down, across, high, wide = self.values.shape
        apart = np.full((down, high + 1, across, wide + 1), np.nan)
        apart[:, :high, :, :wide] = self.values.transpose(0, 2, 1, 3)
        return apart.reshape(down * (high + 1), across * (wide + 1))[:-1, :-1]


@dataclass(frozen=True)
class Figure:
    """A figure. `show`: its kind; `tensor`: what it is of; `panels`: row by row; `facts`: what else `--json` says."""

    show: str
    tensor: str
    title: str
    caption: str
    panels: tuple[tuple[Panel, ...], ...]
    scales: Mapping[str, Scale]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The figure as JSON has it, with every number that is drawn; its keys are a contract."""
        return {
            "show": self.show,
            "tensor": self.tensor,
            "title": self.title,
            "caption": self.caption,
            **self.facts,
            "scales": {name: vars(scale) for name, scale in self.scales.items()},
            "panels": [[_panel_fields(panel) for panel in row] for row in self.panels],
        }


def _panel_fields(panel: Panel) -> dict[str, Any]:
    axes = {
        key: {"label": axis.label, "cells": list(axis.names), "pixels": axis.pixels}
        for key, axis in (("rows", panel.rows), ("columns", panel.columns))
    }
    mark = None if panel.mark is None else list(panel.mark)
    return {"title": panel.title, **axes, "scale": panel.scale or None, "mark": mark, "values": _listed(panel.values)}


def _listed(values: Any) -> Any:
    """Numbers as nested lists; None for NaN, which no JSON has."""
    if values.ndim:
        return [_listed(one) for one in values]
    return None if not np.isfinite(values) else float(f"{values:.{DIGITS}g}")
