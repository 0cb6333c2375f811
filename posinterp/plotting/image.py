"""Figures as files, drawn by matplotlib: the only module that imports it."""

from __future__ import annotations

import io
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import BadUsage, PosinterpError
from ..files import check_target, write_whole
from ..version import VERSION
from .colours import NAMES
from .panels import Axis, Figure, Panel, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.image import AxesImage

FORMATS = ("png", "svg", "pdf")
WIDTH = 8.0  # inches; at 100 pixels an inch as wide as a README is shown, at DPI as sharp as most screens
DPI = 130
LETTERS = 140  # of the caption in a line
TICKS = 21  # along the figure's width, at most


def save_figure(figure: Figure, out: str | Path, *, overwrite: bool = False) -> None:
    """Draw a figure to a .png, .svg or .pdf file. The same figure gives the same bytes.

    Raises:
        BadUsage: for another suffix; PosinterpError: matplotlib is not installed; OutputExists, WriteFailed.
    """
    path = Path(out)
    kind = figure_format(path)
    check_target(path, overwrite=overwrite)
    write_whole(path, rendered(figure, kind), overwrite=overwrite)


def figure_format(path: Path) -> str:
    """The format that a file's suffix says. Raises BadUsage for one that is not drawn."""
    kind = path.suffix[1:].lower()
    if kind not in FORMATS:
        raise BadUsage(f"{path} ends in no format of figures", hint=f"name it FIG.{', FIG.'.join(FORMATS)}")
    return kind


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file of that format. Raises PosinterpError where matplotlib is not installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise PosinterpError(
            f"figures are drawn by matplotlib, which cannot be imported ({error})",
            hint="pip install matplotlib, or show the figure here with --term",
        ) from None
    settings = {
        **matplotlib.rcParamsDefault,  # not those of the user's own matplotlibrc
        "svg.hashsalt": "posinterp",
        "font.size": 9,
        "axes.titlesize": 9,
    }
    settings.pop("backend", None)
    about: dict[str, Any] = {
        "png": {"Software": f"posinterp {VERSION}", "Description": printable(figure.caption)},
        "svg": {
            "Date": None,
            "Creator": None,
            "Title": printable(figure.title),
            "Description": printable(figure.caption),
        },
        "pdf": {"CreationDate": None, "Title": printable(figure.title), "Subject": printable(figure.caption)},
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters in a tensor's name that the font has not
        canvas = Canvas(figsize=(WIDTH, _height(figure)), dpi=DPI, layout="constrained")
        _draw(canvas, figure)
        file = io.BytesIO()
        small: dict[str, Any] = {"pil_kwargs": {"optimize": True}} if kind == "png" else {}
        canvas.savefig(file, format=kind, metadata=about[kind], **small)
    return file.getvalue()


def _height(figure: Figure) -> float:
    """Inches: panels as high as their widths ask for, and room for words."""
    height = 0.5 + 0.15 * len(_caption(figure).splitlines())
    across = max(map(len, figure.panels))
    most = 1.6 * WIDTH / len(figure.panels)
    for down, row in enumerate(figure.panels):
        sides = [_sides(figure, down, at) for at in range(len(row))]
        words = 0.25 + 0.4 * any(side.above for side in sides) + 0.4 * any(side.below for side in sides)
        height += words + min(max((WIDTH - 1.6) / across * max(map(_aspect, row)), 1.0), most)
    return height


def _aspect(panel: Panel) -> float:
    high, wide = panel.mosaic.shape[:2]
    return 1.0 if _stretched(panel) else high / wide


def _stretched(panel: Panel) -> bool:
    """Whether its two axes have nothing to do with each other: channels by offsets."""
    return panel.rows.label == "channel"


def _caption(figure: Figure) -> str:
    return "\n".join(textwrap.wrap(printable(figure.caption), LETTERS))


# ------------------------------------------------------------------ drawing


def _draw(canvas: Canvas, figure: Figure) -> None:
    across = max(map(len, figure.panels))
    grid = canvas.add_gridspec(len(figure.panels), across)
    last: dict[str, AxesImage] = {}
    shown: dict[str, list[Axes]] = {}
    for down, row in enumerate(figure.panels):
        for at, panel in enumerate(row):
            axes = canvas.add_subplot(grid[down, at])
            image = _draw_panel(axes, figure, panel, _sides(figure, down, at))
            if panel.scale:
                last[panel.scale] = image
                shown.setdefault(panel.scale, []).append(axes)
    for name, image in last.items():
        bar = canvas.colorbar(image, ax=shown[name], shrink=0.9, aspect=30, pad=0.02)
        bar.set_label(printable(figure.scales[name].label), parse_math=False)
    canvas.suptitle(printable(figure.title), fontsize=11, fontweight="bold", parse_math=False)
    canvas.supxlabel(_caption(figure), fontsize=8, x=0.02, ha="left", parse_math=False)


class _Sides(NamedTuple):
    """Which sides of a panel carry numbers and words: those within a block of like panels do not."""

    left: bool
    below: bool
    right: bool
    above: bool


def _sides(figure: Figure, down: int, at: int) -> _Sides:
    def like(row: int, column: int, axis: Literal["rows", "columns"]) -> bool:
        there = row >= 0 and column >= 0 and row < len(figure.panels) and column < len(figure.panels[row])
        return there and getattr(figure.panels[row][column], axis) == getattr(figure.panels[down][at], axis)

    return _Sides(
        left=not like(down, at - 1, "rows"),
        below=not like(down + 1, at, "columns"),
        right=not like(down, at + 1, "rows"),
        above=not like(down - 1, at, "columns"),
    )


def _draw_panel(axes: Axes, figure: Figure, panel: Panel, sides: _Sides) -> AxesImage:
    how: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto" if _stretched(panel) else "equal"}
    if panel.scale:
        scale = figure.scales[panel.scale]
        how |= {"vmin": scale.low, "vmax": scale.high, "cmap": NAMES[scale.signed]}
    image = axes.imshow(panel.mosaic, **how)
    if panel.mark is not None:
        row, column = panel.mark
        axes.plot([column], [row], marker="s", markersize=4, markerfacecolor="none", markeredgecolor="red")
    if panel.title:
        small = max(map(len, figure.panels)) > 3
        axes.set_title(printable(panel.title), fontsize=7 if small else 9, parse_math=False)
    if panel.values.ndim == 4:
        for side in axes.spines.values():
            side.set_visible(False)
    high, wide = panel.values.shape[2:] if panel.values.ndim == 4 else (None, None)
    room = TICKS // max(map(len, figure.panels))
    _label(axes, "y", panel.rows, high, room=room, near=sides.left, far=sides.right)
    _label(axes, "x", panel.columns, wide, room=room, near=sides.below, far=sides.above)
    return image


def _label(
    axes: Axes, which: Literal["x", "y"], axis: Axis, tile: int | None, *, room: int, near: bool, far: bool
) -> None:
    """Numbers of cells, or tiles of so many cells, on the near side; the pixels of their middles on the far one.

    `room`: for how many."""
    own: Any = getattr(axes, f"{which}axis")
    count = len(axis.names)
    if not count:
        own.set_ticks([])
        return
    every = -(-count // room)
    named = range(axis.names.index(0) % every if 0 in axis.names else 0, count, every)
    ticks = [float(n) if tile is None else n * (tile + 1) + (tile - 1) / 2 for n in named]
    own.set_ticks(ticks, [str(axis.names[n]) for n in named] if near else [""] * len(ticks))
    own.set_tick_params(labelsize=7, length=2)
    if near:
        own.set_label_text(printable(axis.label), parse_math=False)
    if far and axis.pixels is not None and min(axis.names) == 0 and axis.label.startswith("patch"):
        second: Any = axes.secondary_xaxis("top") if which == "x" else axes.secondary_yaxis("right")
        other = getattr(second, f"{which}axis")
        other.set_ticks(ticks, [f"{(axis.names[n] + 0.5) * axis.pixels:g}" for n in named])
        other.set_tick_params(labelsize=7, length=2)
        other.set_label_text("pixels", fontsize=8)
        if tile is not None:
            second.spines[:].set_visible(False)
