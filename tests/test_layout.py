"""Layouts: taking a tensor apart and putting it together is the identity, and each part is where it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from posinterp.errors import BadUsage, Mismatch
from posinterp.layout import GRID, Layout, Parts

torch = pytest.importorskip("torch")

Array = NDArray[np.int64]


def counted(*shape: int) -> Array:
    """Every element its own number."""
    return np.arange(math.prod(shape)).reshape(shape)


# ------------------------------------------------------------------ any layout


@dataclass(frozen=True)
class Case:
    """A layout, a grid, and a shape that it has."""

    layout: Layout
    grid: dict[str, int]
    shape: tuple[int, ...]
    prefix: int
    extras: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Letters in any order, those of the grid alone or together; extra rows where the whole grid is on one axis."""
    carried = draw(st.sampled_from(["", "c", "cl", "cln"]))
    letters = draw(st.permutations(draw(st.sampled_from(["h", "w", "hw", "thw", "tw"])) + carried))
    axes: list[list[str]] = []
    for letter in letters:
        if axes and letter in GRID and axes[-1][-1] in GRID and draw(st.booleans()):
            axes[-1].append(letter)
        else:
            axes.append([letter])
    sides = {letter: draw(st.integers(1, 4)) for letter in letters}
    shape = [math.prod(sides[letter] for letter in axis) for axis in axes]
    prefix = suffix = 0
    where = next((i for i, axis in enumerate(axes) if len(axis) == len(letters) - len(carried)), -1)
    if where >= 0 and axes[where][0] not in GRID:
        where = -1
    kind = draw(st.sampled_from(["", "p", "s", "ps"])) if where >= 0 else ""
    if kind:
        prefix = draw(st.integers(0, 3)) if "p" in kind else 0
        suffix = draw(st.integers(0, 3)) if "s" in kind else 0
        axes[where] = ["p"] * ("p" in kind) + axes[where] + ["s"] * ("s" in kind)
        shape[where] += prefix + suffix
    words = [f"({' '.join(axis)})" if len(axis) > 1 else axis[0] for axis in axes]
    for at in sorted(draw(st.sets(st.integers(0, len(words)), max_size=2)), reverse=True):
        words.insert(at, "1")
        shape.insert(at, 1)
    grid = {letter: side for letter, side in sides.items() if letter in GRID}
    return Case(Layout(" ".join(words)), grid, tuple(shape), prefix, prefix + suffix)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_join_undoes_split(case: Case) -> None:
    tensor = counted(*case.shape)
    parts = case.layout.split(tensor, case.grid, prefix=case.prefix)
    np.testing.assert_array_equal(case.layout.join(parts, case.shape, case.grid), tensor)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_torch_is_split_and_joined_as_numpy_is(case: Case) -> None:
    tensor = counted(*case.shape)
    ours = case.layout.split(tensor, case.grid, prefix=case.prefix)
    theirs = case.layout.split(torch.tensor(tensor), case.grid, prefix=case.prefix)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    np.testing.assert_array_equal(case.layout.join(theirs, case.shape, case.grid).numpy(), tensor)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_the_parts_hold_every_element_once(case: Case) -> None:
    parts = case.layout.split(counted(*case.shape), case.grid, prefix=case.prefix)
    assert parts.grid.shape[:-1] == tuple(case.grid[letter] for letter in GRID if letter in case.grid)
    rows = [parts.prefix, parts.suffix] if case.layout.has_extras else []
    everything = np.concatenate([part.reshape(-1) for part in (parts.grid, *rows)])
    assert sorted(everything) == list(range(math.prod(case.shape)))


@given(cases())
@settings(max_examples=150, deadline=None)
def test_a_shape_fits_its_own_grid_and_no_smaller_rank(case: Case) -> None:
    assert case.layout.fits(case.shape, case.grid) == case.extras
    assert case.layout.fits((*case.shape, 1), case.grid) is None
    assert case.layout.fits(case.shape[:-1], case.grid) is None


@given(cases(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_reshaped_is_the_shape_that_join_makes(case: Case, t: int, h: int, w: int) -> None:
    new = {letter: {"t": t, "h": h, "w": w}[letter] for letter in case.grid}
    parts = case.layout.split(counted(*case.shape), case.grid, prefix=case.prefix)
    grid = np.zeros([new[letter] for letter in case.layout.grid_axes] + [parts.grid.shape[-1]], dtype=np.int64)
    shape = case.layout.reshaped(case.shape, case.grid, new)
    assert case.layout.join(parts._replace(grid=grid), shape, new).shape == shape
    assert case.layout.fits(shape, new) == case.extras
    assert case.layout.reshaped(shape, new, case.grid) == case.shape


@given(cases())
@settings(max_examples=100, deadline=None)
def test_what_a_shape_shows_is_the_grid(case: Case) -> None:
    shown = case.layout.readable(case.shape)
    assert shown == {letter: case.grid[letter] for letter in shown}
    assert shown.keys() == {axis[0] for axis in case.layout.axes if len(axis) == 1 and axis[0] in GRID}
    assert case.layout.readable((*case.shape, 1)) == {}


# ------------------------------------------------------------------ by hand: who stands where


def ramp(grid: Any) -> bool:
    """Whether place (i, j, ...) holds 100 i + 10 j + ..., plus a thousand for each carried index."""
    sides = np.indices(grid.shape)
    tens = [10 ** (grid.ndim - 2 - axis) for axis in range(grid.ndim - 1)]
    return np.array_equal(grid, sum(n * axis for n, axis in zip(tens, sides, strict=False)) + 1000 * sides[-1])


def test_table() -> None:
    # 1 class row, then rows 0..2 of columns 0..3, row-major; two channels a thousand apart
    places = [[10 * i + j, 1000 + 10 * i + j] for i in range(3) for j in range(4)]
    parts = Layout("1 (p h w) c").split(np.array([[[-1, -2], *places]]), {"h": 3, "w": 4})
    assert parts.grid.shape == (3, 4, 2)
    assert ramp(parts.grid)
    np.testing.assert_array_equal(parts.prefix, [[[-1, -2]]])
    assert parts.suffix.shape == (1, 0, 2)


def test_grid_with_axes_of_its_own() -> None:
    tensor = np.array([[[[10 * i + j, 1000 + 10 * i + j] for j in range(4)] for i in range(3)]])
    parts = Layout("1 h w c").split(tensor, {"h": 3, "w": 4})
    assert parts.grid.shape == (3, 4, 2)
    assert ramp(parts.grid)


def test_channels_first() -> None:
    tensor = np.array([[[1000 * k + 10 * i + j for j in range(4)] for i in range(3)] for k in range(2)])
    parts = Layout("c h w").split(tensor, {"h": 3, "w": 4})
    assert parts.grid.shape == (3, 4, 2)
    assert ramp(parts.grid)
    np.testing.assert_array_equal(Layout("c h w").join(parts, (2, 3, 4), {"h": 3, "w": 4}), tensor)


def test_columns_before_rows() -> None:
    tensor = np.array([[10 * i + j] for j in range(4) for i in range(3)])
    parts = Layout("(w h) c").split(tensor, {"h": 3, "w": 4})
    assert ramp(parts.grid)


def test_rows_of_offsets_with_extras_behind() -> None:
    places = [[10 * i + j] for i in range(3) for j in range(5)]
    parts = Layout("(h w s) c").split(np.array([*places, [-1], [-2], [-3]]), {"h": 3, "w": 5})
    assert ramp(parts.grid)
    np.testing.assert_array_equal(parts.suffix, [[-1], [-2], [-3]])
    assert parts.prefix.shape == (0, 1)


def test_one_axis() -> None:
    parts = Layout("h c").split(np.array([[0, 1000], [1, 1001], [2, 1002]]), {"h": 3, "w": 99})
    assert parts.grid.shape == (3, 2)
    assert ramp(parts.grid)


def test_frames() -> None:
    places = [[100 * t + 10 * i + j] for t in range(2) for i in range(3) for j in range(4)]
    parts = Layout("1 (p t h w) c").split(np.array([[[-1], *places]]), {"t": 2, "h": 3, "w": 4})
    assert parts.grid.shape == (2, 3, 4, 1)
    assert ramp(parts.grid)
    np.testing.assert_array_equal(parts.prefix, [[[-1]]])


def test_layers_with_extras_on_both_ends() -> None:
    layer = [
        [[-1, -1]],
        [[-2, -2]],
        *([[10 * i + j, 5000 + 10 * i + j]] for i in range(2) for j in range(3)),
        [[-3, -3]],
    ]
    tensor = np.array([layer, np.array(layer) + 1]).transpose(0, 2, 1, 3)  # (2, 1, 9, 2)
    layout = Layout("l 1 (p h w s) c")
    parts = layout.split(tensor, {"h": 2, "w": 3}, prefix=2)
    assert parts.grid.shape == (2, 3, 4)
    # carried, in the tensor's order: layer 0 channel 0, layer 0 channel 1, layer 1 channel 0, ...
    np.testing.assert_array_equal(parts.grid[1, 2], [12, 5012, 13, 5013])
    np.testing.assert_array_equal(parts.prefix[:, 0, :, 0], [[-1, -2], [0, -1]])
    np.testing.assert_array_equal(parts.suffix[:, 0, :, 0], [[-3], [-2]])
    np.testing.assert_array_equal(layout.join(parts, tensor.shape, {"h": 2, "w": 3}), tensor)


GRID_23 = {"h": 2, "w": 3}


def test_split_gives_views_of_numpy_tables() -> None:
    tensor = counted(1, 7, 2)
    parts = Layout("1 (p h w) c").split(tensor, GRID_23)
    assert np.shares_memory(parts.grid, tensor)
    assert np.shares_memory(parts.prefix, tensor)


def test_join_with_another_grid_keeps_the_extras() -> None:
    layout = Layout("1 (p h w s) c")
    parts = layout.split(counted(1, 9, 2), GRID_23, prefix=1)
    out = layout.join(Parts(np.full((1, 2, 2), -1), parts.prefix, parts.suffix), (1, 5, 2), {"h": 1, "w": 2})
    np.testing.assert_array_equal(out[0, :, 0], [0, -1, -1, 14, 16])


# ------------------------------------------------------------------ shapes


@pytest.mark.parametrize(
    ("spec", "shape", "grid", "extras"),
    [
        ("1 (p h w) c", (1, 197, 768), {"h": 14, "w": 14}, 1),
        ("1 (p h w) c", (1, 196, 768), {"h": 14, "w": 14}, 0),
        ("1 (p h w) c", (1, 195, 768), {"h": 14, "w": 14}, None),
        ("1 (p h w) c", (2, 197, 768), {"h": 14, "w": 14}, None),
        ("1 (p h w) c", (197, 768), {"h": 14, "w": 14}, None),
        ("1 h w c", (1, 14, 16, 8), {"h": 14, "w": 16}, 0),
        ("1 h w c", (1, 14, 16, 8), {"h": 16, "w": 14}, None),
        ("1 (h w) c", (1, 197, 8), {"h": 14, "w": 14}, None),
        ("(h w s) c", (732, 12), {"h": 27, "w": 27}, 3),
        ("h c", (27, 64), {"h": 27, "w": 13}, 0),
        ("(h w) c", (64, 8), {"h": 4, "w": 16}, 0),
    ],
)
def test_fits(spec: str, shape: tuple[int, ...], grid: dict[str, int], extras: int | None) -> None:
    assert Layout(spec).fits(shape, grid) == extras


def test_readable_is_only_what_an_axis_says_alone() -> None:
    assert Layout("1 h w c").readable((1, 14, 16, 8)) == {"h": 14, "w": 16}
    assert Layout("1 (p h w) c").readable((1, 197, 8)) == {}
    assert Layout("(h t) w").readable((6, 5)) == {"w": 5}


def test_reshaped_by_hand() -> None:
    small, large = {"h": 14, "w": 14}, {"h": 24, "w": 32}
    assert Layout("1 (p h w) c").reshaped((1, 197, 768), small, large) == (1, 769, 768)
    assert Layout("c h w").reshaped((768, 14, 14), small, large) == (768, 24, 32)
    assert Layout("h c").reshaped((14, 64), small, large) == (24, 64)


def test_a_shape_that_is_not_the_layouts_is_said_with_both() -> None:
    with pytest.raises(Mismatch) as caught:
        Layout("1 (p h w) c").split(counted(1, 5, 2), {"h": 2, "w": 3})
    assert caught.value.kind == "shape_mismatch"
    assert caught.value.message == "a tensor of shape (1, 5, 2) is no 1 (p h w) c with a grid of 2×3"


@pytest.mark.parametrize("prefix", [None, 4])
def test_extras_on_both_ends_need_the_number_before(prefix: int | None) -> None:
    with pytest.raises(BadUsage, match="needs the number of prefix rows, of 3 extra rows"):
        Layout("1 (p h w s) c").split(counted(1, 9, 2), GRID_23, prefix=prefix)


# ------------------------------------------------------------------ notation


def test_the_notation_is_read_into_axes() -> None:
    layout = Layout("l  1 (p h w s)   c")
    assert layout.axes == (("l",), (), ("p", "h", "w", "s"), ("c",))
    assert layout.grid_axes == ("h", "w")
    assert layout.carried == ("l", "c")
    assert layout.has_extras
    assert str(layout) == "l  1 (p h w s)   c"
    assert Layout("c w h t").grid_axes == ("t", "h", "w")
    assert not Layout("c h w").has_extras


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "'' is no layout"),
        ("   ", "is no layout"),
        ("1 (p h w c", "is no layout"),
        ("1 p h w) c", "is no layout"),
        ("1 (p (h w)) c", "is no layout"),
        ("1 () h c", "is no layout"),
        ("2 h w c", "is no layout"),
        ("1 H W c", "is no layout"),
        ("1 h*w c", "is no layout"),
        ("b c", "has none of the grid's letters t, h, w"),
        ("1 (p s) c", "has none of the grid's letters t, h, w"),
        ("h w h c", "has h twice"),
        ("(h w) c c", "has c twice"),
        ("1 (h p w) c", "has p or s inside an axis"),
        ("1 (h w p) c", "has p or s inside an axis"),
        ("1 (s h w) c", "has p or s inside an axis"),
        ("1 (h s w) c", "has p or s inside an axis"),
        ("(p s) h w", "has p or s inside an axis"),
        ("(h w n)", "has another letter in parentheses"),
        ("1 (p h w c)", "has another letter in parentheses"),
        ("h w (c n)", "has another letter in parentheses"),
        ("(p h) (w s)", "has extra rows beside a part of the grid"),
        ("(p h) w c", "has extra rows beside a part of the grid"),
        ("p h w c", "has extra rows beside a part of the grid"),
        ("(h w) s c", "has extra rows beside a part of the grid"),
    ],
)
def test_what_is_no_layout_is_refused(spec: str, message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        Layout(spec)
    assert message in caught.value.message
    assert caught.value.hint
    assert caught.value.kind == "bad_usage"
