"""The matrices: laws that any resampler must keep, golden values, and the libraries whose definitions are followed."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posinterp.errors import BadUsage
from posinterp.resampling import (
    ANTIALIASED,
    NAMES,
    Matrix,
    Method,
    apply_weights,
    axis_weights,
    patch_weights,
    resample,
)
from posinterp.resampling import _weights as shared_weights

torch = pytest.importorskip("torch")

CUBIC_AA = Method("bicubic", antialias=True)
CUBIC = Method("bicubic")
LINEAR = Method("bilinear")
LINEAR_AA = Method("bilinear", antialias=True)
CORNERS = Method("bilinear", align_corners=True)
COLUMNS = {"bicubic aa": CUBIC_AA, "bicubic": CUBIC, "bilinear": LINEAR, "bilinear aa": LINEAR_AA}

METHODS = [
    *(Method(name) for name in NAMES),
    *(Method(name, antialias=True) for name in ANTIALIASED),
    *(Method(name, align_corners=True) for name in ("bilinear", "bicubic")),
    *(Method(name, antialias=True, align_corners=True) for name in ("bilinear", "bicubic")),
    Method("bicubic", offset=0.1),
    Method("bicubic", antialias=True, offset=0.1),
    Method("bilinear", offset=0.1),
]
SIZES = (1, 2, 3, 7, 8, 14, 16, 23, 37)
CENTRED = [m for m in METHODS if m.offset is None and m.name != "nearest" and not (m.antialias and m.align_corners)]


def pairs(method: Method) -> Iterator[tuple[int, int]]:
    """Lengths before and after; axes of offsets are odd."""
    for src, dst in itertools.product(SIZES, SIZES):
        if method.name != "geometric" or src % 2 == dst % 2 == 1:
            yield src, dst


def noise(*shape: int) -> Matrix:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def counted(*sides: int) -> Matrix:
    """Cell k of n, in row-major order, holds k / n."""
    return (np.arange(np.prod(sides)) / np.prod(sides)).reshape(*sides, 1)


def kept(method: Method, grid: Any, size: Sequence[int]) -> Any:
    return resample(grid, size, method=method)[..., 0]


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_rows_sum_to_one(method: Method) -> None:
    for src, dst in pairs(method):
        matrix = axis_weights(src, dst, method)
        assert matrix.shape == (dst, src)
        assert matrix.dtype == np.float64
        assert np.abs(matrix.sum(1) - 1).max() < 1e-12, (src, dst)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_constant_stays_constant(method: Method) -> None:
    for src, dst in pairs(method):
        out = resample(np.full((src, src, 2), 0.3), (dst, dst), method=method)
        assert np.abs(out - 0.3).max() < 1e-12, (src, dst)


@pytest.mark.parametrize("method", CENTRED, ids=str)
def test_a_flip_before_is_a_flip_after(method: Method) -> None:
    for src, dst in pairs(method):
        if method.name == "nearest-exact" and any((2 * i + 1) * src % (2 * dst) == 0 for i in range(dst)):
            continue  # a tie goes right from either side
        if method.align_corners and dst == 1:
            continue  # one cell cannot lie on both corners: it lies on the first
        matrix = axis_weights(src, dst, method)
        np.testing.assert_allclose(matrix[::-1, ::-1], matrix, atol=1e-12, err_msg=f"{src} -> {dst}")


def test_methods_that_are_not_symmetric_are_seen_by_the_flip() -> None:
    matrix = axis_weights(14, 23, Method("nearest"))
    assert np.abs(matrix[::-1, ::-1] - matrix).max() == 1


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equal_size_gives_the_same_object(method: Method) -> None:
    grid = noise(7, 9, 2)
    assert resample(grid, (7, 9), method=method) is grid


@pytest.mark.parametrize("method", [m for m in METHODS if m.offset is None and m != Method("geometric")], ids=str)
def test_the_matrix_of_equal_size_is_the_identity(method: Method) -> None:
    for n in SIZES:
        if method.antialias and method.align_corners and n == 1:
            continue
        np.testing.assert_allclose(axis_weights(n, n, method), np.eye(n), atol=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_transposing_before_is_transposing_after(method: Method) -> None:
    grid = noise(7, 13, 3)
    straight = resample(grid, (23, 9), method=method)
    turned = resample(grid.transpose(1, 0, 2), (9, 23), method=method)
    np.testing.assert_allclose(turned.transpose(1, 0, 2), straight, atol=1e-13)


def test_axes_behind_the_grid_are_carried() -> None:
    grid = noise(5, 6, 2, 3)
    out = resample(grid, (7, 4))
    assert out.shape == (7, 4, 2, 3)
    np.testing.assert_allclose(out[:, :, 1, 2], resample(grid[:, :, 1, 2], (7, 4)), atol=1e-14)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(METHODS))
@settings(max_examples=200, deadline=None)
def test_any_lengths_give_rows_that_sum_to_one(src: int, dst: int, method: Method) -> None:
    if method.name == "geometric":
        src, dst = 2 * src - 1, 2 * dst - 1
    matrix = axis_weights(src, dst, method)
    assert np.isfinite(matrix).all()
    assert np.abs(matrix.sum(1) - 1).max() < 1e-12


@pytest.mark.parametrize("name", ["nearest", "nearest-exact", "area", "bilinear", "geometric"])
def test_methods_without_negative_lobes_never_overshoot(name: str) -> None:
    assert all(axis_weights(src, dst, name).min() >= 0 for src, dst in pairs(Method(name)))


# ------------------------------------------------------------------ golden values

GOLDEN = """
4x16 -> 8x8 | -0.013560 0.112283 0.570312 0.997935 | -0.020020 0.118164 0.558594 1.004395 | 0.007812 0.132812 0.570312 0.976562 | 0.011161 0.132812 0.570312 0.973214
2x8 -> 4x4 | -0.010122 0.387355 0.680212 0.947622 | -0.027344 0.394531 0.667969 0.964844 | 0.031250 0.406250 0.656250 0.906250 | 0.044643 0.406250 0.656250 0.892857
14x14 -> 24x24 | -0.005950 0.024964 0.519770 1.000847 | -0.007494 0.025821 0.516089 1.002392 | 0.000000 0.031675 0.519770 0.994898 | 0.000000 0.031675 0.519770 0.994898
37x37 -> 16x16 | 0.019664 0.082760 0.531784 0.979605 | 0.015623 0.083743 0.532987 0.983647 | 0.018216 0.084094 0.531729 0.981054 | 0.023603 0.084051 0.532206 0.975666
37x37 -> 39x43 | -0.000357 0.026013 0.499635 0.999626 | -0.000527 0.025206 0.499635 0.999796 | 0.000000 0.026154 0.499635 0.999269 | 0.000000 0.026154 0.499635 0.999270
12x101 -> 5x24 | 0.063794 0.262706 0.501323 0.935381 | 0.052199 0.269609 0.501354 0.946976 | 0.059657 0.266601 0.501324 0.939518 | 0.078320 0.266745 0.501334 0.920855
32x54 -> 50x84 | -0.002221 0.012148 0.509897 1.001642 | -0.002889 0.012204 0.508393 1.002310 | 0.000000 0.015016 0.509897 0.999421 | 0.000000 0.015016 0.509897 0.999421
64x64 -> 32x32 | 0.008632 0.039528 0.515747 0.991124 | 0.006447 0.040161 0.515747 0.993309 | 0.007935 0.040161 0.515747 0.991821 | 0.011335 0.040161 0.515747 0.988421
16x12 -> 14x14 | 0.004728 0.083354 0.535110 0.990064 | 0.003113 0.087285 0.536971 0.991678 | 0.004464 0.084449 0.535342 0.990327 | 0.010417 0.088418 0.537457 0.984375
14x14 -> 32x32 | -0.007287 0.009459 0.514190 1.002185 | -0.008340 0.010978 0.510806 1.003238 | 0.000000 0.014190 0.514190 0.994898 | 0.000000 0.014190 0.514190 0.994898
24x24 -> 35x35 | -0.002727 0.020599 0.499132 1.000991 | -0.003634 0.020248 0.499132 1.001898 | 0.000000 0.024132 0.499132 0.998264 | 0.000000 0.024132 0.499132 0.998264
27x27 -> 63x63 | -0.003693 0.003857 0.499314 1.002321 | -0.004199 0.004647 0.499314 1.002827 | 0.000000 0.006075 0.499314 0.998628 | 0.000000 0.006075 0.499314 0.998628
13x13 -> 23x23 | -0.006639 0.024979 0.497041 1.000722 | -0.008272 0.026054 0.497041 1.002355 | 0.000000 0.032158 0.497041 0.994083 | 0.000000 0.032158 0.497041 0.994083
14x14 -> 6x50 | 0.050708 0.211406 0.581229 0.944190 | 0.040441 0.215061 0.578686 0.954457 | 0.047619 0.215306 0.581497 0.947279 | 0.061224 0.215306 0.578520 0.933673
21x10 -> 32x16 | -0.003551 0.023849 0.514732 0.998789 | -0.004652 0.023834 0.516310 0.999890 | 0.000000 0.028125 0.514732 0.995238 | 0.000000 0.028125 0.514732 0.995238
14x14 -> 24x32 | -0.006039 0.022733 0.519398 1.000937 | -0.007551 0.023570 0.515737 1.002449 | 0.000000 0.029815 0.519398 0.994898 | 0.000000 0.029815 0.519398 0.994898
"""  # fmt: skip


def golden() -> Iterator[Any]:
    for line in GOLDEN.strip().splitlines():
        title, *columns = line.split(" | ")
        src, dst = ([int(n) for n in side.split("x")] for side in title.split(" -> "))
        for name, column in zip(COLUMNS, columns, strict=True):
            yield pytest.param(src, dst, COLUMNS[name], [float(n) for n in column.split()], id=f"{title} {name}")


@pytest.mark.parametrize(("src", "dst", "method", "values"), golden())
def test_golden_tables(src: list[int], dst: list[int], method: Method, values: list[float]) -> None:
    out = kept(method, counted(*src), dst)
    probes = [out[0, 0], out[1, 2], out[dst[0] // 2, dst[1] // 2], out[-1, -1]]
    assert probes == pytest.approx(values, abs=2e-5)


@pytest.mark.parametrize(
    ("src", "dst", "values"),
    [
        (127, 63, [0.003999, 0.019873, 0.496063, 0.988126]),
        (27, 63, [0.0, 0.005291, 0.481481, 0.962963]),
        (27, 31, [0.0, 0.029869, 0.481481, 0.962963]),
        (8, 16, [0.0, 0.031250, 0.468750, 0.875]),
        (4, 8, [0.0, 0.0625, 0.4375, 0.75]),
    ],
)
def test_golden_axes(src: int, dst: int, values: list[float]) -> None:
    out = kept(LINEAR, counted(src), (dst,))
    assert [out[0], out[1], out[dst // 2], out[-1]] == pytest.approx(values, abs=2e-5)


@pytest.mark.parametrize(
    ("src", "dst", "values"),
    [
        ((8, 8, 8), (20, 20, 20), [0.0, 0.002539, 0.527539, 0.998047]),
        ((3, 14, 14), (3, 28, 28), [0.0, 0.007228, 0.505527, 0.998299]),
        ((6, 6, 6), (8, 8, 8), [0.0, 0.023727, 0.572338, 0.995370]),
        ((14, 10, 10), (32, 10, 10), [0.0, 0.008571, 0.519196, 0.999286]),
    ],
)
def test_golden_volumes(src: tuple[int, ...], dst: tuple[int, ...], values: list[float]) -> None:
    out = kept(LINEAR, counted(*src), dst)
    centre = tuple(n // 2 for n in dst)
    assert [out[0, 0, 0], out[0, 1, 2], out[centre], out[-1, -1, -1]] == pytest.approx(values, abs=2e-5)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        (CUBIC, [-0.002691, 0.330643, 0.504331, 1.000990]),
        (CUBIC_AA, [-0.002251, 0.331082, 0.505527, 1.000550]),
        (LINEAR, [0.0, 0.333333, 0.505527, 0.998299]),
    ],
    ids=str,
)
def test_golden_frames(method: Method, values: list[float]) -> None:
    out = kept(method, counted(3, 14, 14), (3, 28, 28))  # frames stay: that axis is the identity
    assert [out[0, 0, 0], out[1, 0, 0], out[1, 14, 14], out[-1, -1, -1]] == pytest.approx(values, abs=2e-5)


RAMP = np.stack(np.meshgrid(np.arange(14.0), np.arange(14.0), indexing="ij"), -1)  # (h, w): its own place


@pytest.mark.parametrize(
    ("method", "inside", "corner"),
    [
        (LINEAR, (6.791667, 6.718750), (0, 0)),
        (CUBIC_AA, (6.791667, 6.718750), (-0.0777, -0.0952)),
        (CUBIC, (6.743562, 6.674529), (-0.0979, -0.1090)),
        (CORNERS, (6.782609, 6.709677), (0, 0)),
    ],
    ids=str,
)
def test_a_ramp_stays_a_ramp(method: Method, inside: tuple[float, float], corner: tuple[float, float]) -> None:
    out = resample(RAMP, (24, 32), method=method)
    assert out[12, 16] == pytest.approx(inside, abs=1e-5)
    assert out[0, 0] == pytest.approx(corner, abs=1e-4)
    assert np.ptp(out[..., 0], axis=1).max() < 1e-12
    assert np.ptp(out[..., 1], axis=0).max() < 1e-12


@pytest.mark.parametrize("method", [LINEAR, CUBIC_AA, CUBIC, LINEAR_AA, CORNERS, Method("geometric")], ids=str)
def test_a_spike_in_the_middle_stays_there(method: Method) -> None:
    spike = np.zeros((13, 13, 1))
    spike[6, 6] = 1
    out = resample(spike, (23, 23), method=method).reshape(-1)
    assert out.argmax() == 264
    assert out[264] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("method", [LINEAR, LINEAR_AA, CUBIC, Method("geometric")], ids=str)
def test_the_zero_offset_stays_in_the_middle(method: Method) -> None:
    for src, dst in ((27, 63), (127, 63)):
        row = axis_weights(src, dst, method)[31]
        assert row.argmax() == src // 2
        np.testing.assert_allclose(row, row[::-1], atol=1e-12)


@pytest.mark.parametrize(("method", "ratio"), [(LINEAR, 0.684), (CUBIC, 0.863), (CUBIC_AA, 0.824)], ids=str)
def test_how_much_of_white_noise_is_left(method: Method, ratio: float) -> None:
    norms = np.sqrt(np.square(axis_weights(14, 24, method)).sum(1))  # of a row of the new axis, for unit noise
    assert np.outer(norms, norms).mean() == pytest.approx(ratio, abs=2e-3)


# ------------------------------------------------------------------ torch

TORCH: dict[Method, dict[str, Any]] = {
    Method("nearest"): {"mode": "nearest"},
    Method("nearest-exact"): {"mode": "nearest-exact"},
    Method("area"): {"mode": "area"},
    LINEAR: {"mode": "bilinear"},
    LINEAR_AA: {"mode": "bilinear", "antialias": True},
    CUBIC: {"mode": "bicubic"},
    CUBIC_AA: {"mode": "bicubic", "antialias": True},
    CORNERS: {"mode": "bilinear", "align_corners": True},
    Method("bicubic", align_corners=True): {"mode": "bicubic", "align_corners": True},
    # What torch itself does with the two together: another step, half-pixel places.
    Method("bilinear", antialias=True, align_corners=True): {
        "mode": "bilinear", "antialias": True, "align_corners": True,
    },
    Method("bicubic", antialias=True, align_corners=True): {
        "mode": "bicubic", "antialias": True, "align_corners": True,
    },
}  # fmt: skip
SHAPES = list(itertools.product([(1, 3), (2, 8), (7, 4), (14, 14), (37, 12)], [(2, 2), (3, 5), (16, 7), (24, 32)]))


def by_torch(grid: Matrix, **options: Any) -> Matrix:
    """torch's own resize of (h, w, c), in float64."""
    planes = torch.tensor(grid).permute(2, 0, 1)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = torch.nn.functional.interpolate(planes, **options)
    array: Matrix = out[0].permute(1, 2, 0).numpy()
    return array


@pytest.mark.parametrize("method", TORCH, ids=str)
def test_equals_torch(method: Method) -> None:
    # No target of width 1 here: torch's antialiased kernel repeats the first row of an output that is one wide.
    for src, dst in SHAPES:
        tie = method.name == "nearest-exact" and any(
            (2 * i + 1) * n % (2 * m) == 0 for n, m in zip(src, dst, strict=True) for i in range(m)
        )
        if tie:
            continue  # torch's float32 scale decides
        grid = noise(*src, 3)
        np.testing.assert_allclose(
            resample(grid, dst, method=method), by_torch(grid, size=dst, **TORCH[method]), atol=5e-14, err_msg=f"{src}"
        )


@pytest.mark.parametrize("method", [m for m in TORCH if m.antialias and not m.align_corners], ids=str)
def test_a_target_one_wide_is_what_torch_has_in_one_row(method: Method) -> None:
    grid = noise(9, 6, 2)
    right = by_torch(grid.transpose(1, 0, 2), size=(1, 4), **TORCH[method])
    np.testing.assert_allclose(resample(grid, (4, 1), method=method), right.transpose(1, 0, 2), atol=5e-14)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_equals_torch_through_a_scale_factor_with_an_offset(name: str, antialias: bool) -> None:
    method = Method(name, antialias=antialias, offset=0.1)
    for src, dst in ((14, 61), (14, 115), (14, 122), (37, 39), (37, 43), (37, 78), (37, 16), (16, 9)):
        grid = noise(src, src, 2)
        scale = (dst + 0.1) / src
        theirs = by_torch(grid, scale_factor=(scale, scale), mode=name, antialias=antialias)
        out = resample(grid, (dst, dst), method=method)
        np.testing.assert_allclose(out, theirs, atol=5e-14, err_msg=f"{src} -> {dst}")
        step = 1 / scale
        alone = axis_weights(src, dst, name, antialias=antialias, step=step)
        np.testing.assert_allclose(apply_weights(grid, [alone, alone]), theirs, atol=5e-14)


@pytest.mark.parametrize(("src", "dst"), [(14, 61), (14, 115), (14, 122), (37, 39), (37, 43), (37, 78)])
def test_the_size_asked_for_where_torch_comes_out_one_short(src: int, dst: int) -> None:
    grid = noise(src, src, 1)
    assert by_torch(grid, scale_factor=dst / src, mode="bicubic").shape == (dst - 1, dst - 1, 1)
    for method in (CUBIC, Method("bicubic", offset=0.0), Method("bicubic", offset=0.1)):
        assert resample(grid, (dst, dst), method=method).shape == (dst, dst, 1)
    np.testing.assert_array_equal(axis_weights(src, dst, CUBIC), axis_weights(src, dst, Method("bicubic", offset=0.0)))


def test_an_offset_changes_the_numbers() -> None:
    assert np.abs(axis_weights(37, 16, Method("bicubic", offset=0.1)) - axis_weights(37, 16, CUBIC)).max() > 1e-2


# ------------------------------------------------------------------ other definitions


def by_jax(src: int, dst: int, name: str, antialias: bool) -> Matrix:
    """One axis of `jax.image.resize`, cell by cell, from its definition (jax/_src/image/scale.py)."""

    def kernel(x: float) -> float:
        x = abs(x)
        if name == "bilinear":
            return max(0.0, 1 - x)
        if name == "bicubic":
            near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
            return near if x < 1 else far if x < 2 else 0.0
        if x > 3:
            return 0.0
        return 3 * np.sin(np.pi * x) * np.sin(np.pi * x / 3) / (np.pi * x) ** 2 if x > 1e-3 else 1.0

    scale = max(src / dst, 1) if antialias else 1
    rows = [[kernel(((i + 0.5) * src / dst - 0.5 - k) / scale) for k in range(src)] for i in range(dst)]
    return np.array([[value / sum(row) for value in row] for row in rows])


@pytest.mark.parametrize(("name", "antialias"), [(n, True) for n in ANTIALIASED] + [("lanczos3", False)])
def test_equals_the_definition_of_jax(name: str, antialias: bool) -> None:
    for src, dst in itertools.product((1, 2, 5, 14, 37), (1, 2, 7, 24, 41)):
        ours = axis_weights(src, dst, Method(name, antialias=antialias))
        # jax calls the kernel one below a thousandth of a cell.
        np.testing.assert_allclose(ours, by_jax(src, dst, name, antialias), atol=1e-6, err_msg=f"{src} -> {dst}")


def test_area_is_the_mean_of_the_cells_that_are_touched() -> None:
    np.testing.assert_array_equal(
        axis_weights(5, 3, "area"), [[0.5, 0.5, 0, 0, 0], [0, 1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 0.5, 0.5]]
    )


def test_geometric_equals_timm() -> None:
    from timm.layers import resize_rel_pos_bias_table

    for old, new in itertools.product((2, 4, 7, 14), (3, 7, 8, 12, 16, 24, 32)):
        if old == new:
            continue
        grid = noise(2 * old - 1, 2 * old - 1, 3)
        rows = torch.tensor(np.concatenate([grid.reshape(-1, 3), noise(3, 3)]))
        shape = ((2 * new - 1) ** 2 + 3, 3)
        theirs = resize_rel_pos_bias_table(rows, (new, new), shape)[:-3].numpy()
        ours = resample(grid, (2 * new - 1, 2 * new - 1), method="geometric").reshape(-1, 3)
        # timm evaluates at q, the last halving of its search; both stop at 1e-6 of it
        np.testing.assert_allclose(ours, theirs, atol=2e-5, err_msg=f"{old} -> {new}")


def test_geometric_equals_timm_at_sides_that_differ() -> None:
    from timm.layers import resize_rel_pos_bias_table

    grid = noise(13, 27, 2)
    rows = torch.tensor(grid.reshape(-1, 2))
    theirs = resize_rel_pos_bias_table(rows, (12, 8), (23 * 15, 2), old_window_size=(7, 14)).numpy()
    ours = resample(grid, (23, 15), method="geometric").reshape(-1, 2)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_geometric_of_a_single_offset_is_that_value() -> None:
    np.testing.assert_array_equal(axis_weights(1, 5, "geometric"), np.ones((5, 1)))


@pytest.mark.parametrize("method", [CUBIC_AA, CUBIC, LINEAR, LINEAR_AA], ids=str)
@pytest.mark.parametrize(("src", "dst"), [((8, 8), (12, 12)), ((8, 6), (5, 9)), ((7, 7), (4, 4))])
def test_patch_kernels_equal_timm(method: Method, src: tuple[int, int], dst: tuple[int, int]) -> None:
    from timm.layers import resample_patch_embed

    kernel = torch.randn(3, 2, *src, generator=torch.Generator().manual_seed(0))
    theirs = resample_patch_embed(kernel, list(dst), interpolation=method.name, antialias=method.antialias).numpy()
    across, along = (patch_weights(old, new, method) for old, new in zip(src, dst, strict=True))
    ours = across @ kernel.double().numpy() @ along.T
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("method", [CUBIC_AA, CUBIC, LINEAR, LINEAR_AA], ids=str)
@pytest.mark.parametrize(("src", "dst"), [(8, 12), (14, 16), (16, 32), (5, 5)])
def test_a_larger_kernel_on_larger_patches_says_the_same(method: Method, src: int, dst: int) -> None:
    kernel, patch = noise(src, src), noise(src + 1, src)[1:]
    grown = patch_weights(src, dst, method) @ kernel @ patch_weights(src, dst, method).T
    assert np.vdot(grown, resample(patch, (dst, dst), method=method)) == pytest.approx(np.vdot(kernel, patch), abs=1e-9)


def test_a_smaller_kernel_is_the_nearest_in_the_least_squares_sense() -> None:
    resize = axis_weights(16, 10, CUBIC_AA)
    both = np.kron(resize, resize)
    kernel = noise(16, 16)
    best = np.linalg.lstsq(both.T, kernel.reshape(-1), rcond=None)[0].reshape(10, 10)
    ours = patch_weights(16, 10, CUBIC_AA) @ kernel @ patch_weights(16, 10, CUBIC_AA).T
    np.testing.assert_allclose(ours, best, atol=1e-10)


# ------------------------------------------------------------------ numpy and torch, and what is rounded


@pytest.mark.parametrize("method", [CUBIC_AA, LINEAR, Method("area")], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numpy_and_torch_agree_to_the_bit(method: Method, dtype: str) -> None:
    grid = noise(7, 9, 5).astype(dtype)
    ours, theirs = resample(grid, (12, 4), method=method), resample(torch.tensor(grid), (12, 4), method=method)
    assert ours.dtype == grid.dtype
    assert theirs.dtype == getattr(torch, dtype)
    assert theirs.is_contiguous()
    np.testing.assert_allclose(ours.astype(float), theirs.double().numpy(), rtol=2 * np.finfo(dtype).eps, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_is_rounded_once(dtype: str) -> None:
    grid = noise(14, 14, 64).astype(dtype)
    exact = resample(grid.astype(np.float64), (24, 24))
    np.testing.assert_array_equal(resample(grid, (24, 24)), exact.astype(dtype))


def rounded_to_bfloat16(exact: Matrix) -> Matrix:
    """The nearest bfloat16 of each, ties to even, found by comparing with its neighbours."""
    mantissa, exponent = np.frexp(exact)
    return np.ldexp(np.round(mantissa * 256), exponent - 8)  # np.round is to even; no subnormals here


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_is_rounded_once(dtype: str) -> None:
    kind = getattr(torch, dtype)
    grid = torch.tensor(noise(14, 14, 512)).to(kind)
    exact = resample(grid.double(), (24, 24))
    right = rounded_to_bfloat16(exact.numpy()) if dtype == "bfloat16" else exact.numpy().astype(dtype)
    out = resample(grid, (24, 24))
    assert out.dtype == kind
    np.testing.assert_array_equal(out.double().numpy(), right.astype(float))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_overshoot_past_the_range_is_clipped_to_it(dtype: str) -> None:
    top = np.finfo(dtype).max
    grid = np.full((4, 4, 1), top, dtype=dtype)
    grid[:, 2:] = -top
    for out in (resample(grid, (9, 9)), resample(torch.tensor(grid), (9, 9)).numpy()):
        assert out.max() == top
        assert out.min() == -top


@pytest.mark.parametrize("method", [CUBIC_AA, LINEAR, Method("geometric")], ids=str)
def test_gradients_flow_through(method: Method) -> None:
    grid = torch.randn(3, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resample(x, (7, 3), method=method), (grid,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_gradient_is_the_transpose(dtype: str) -> None:
    grid = torch.zeros(4, 5, 1, dtype=getattr(torch, dtype), requires_grad=True)
    resample(grid, (8, 3)).sum().backward()
    right = axis_weights(4, 8).sum(0)[:, None] * axis_weights(5, 3).sum(0)
    assert grid.grad is not None
    np.testing.assert_allclose(grid.grad[..., 0].double().numpy(), right, rtol=1e-2)


@pytest.mark.gpu
def test_a_gpu_gives_the_same() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    grid = torch.tensor(noise(14, 14, 8)).float()
    out = resample(grid.cuda(), (24, 24))
    assert out.device.type == "cuda"
    torch.testing.assert_close(out.cpu(), resample(grid, (24, 24)), atol=1e-6, rtol=0)


def test_the_source_is_not_changed() -> None:
    grid = noise(5, 5, 2)
    before = grid.copy()
    resample(grid, (9, 9))
    np.testing.assert_array_equal(grid, before)


def test_cached_matrices_cannot_be_written_to() -> None:
    matrix = shared_weights(14, 24, CUBIC_AA)
    with pytest.raises(ValueError, match="read-only"):
        matrix[0, 0] = 1


# ------------------------------------------------------------------ what is asked for


def test_the_words_mean_the_method() -> None:
    grid = noise(9, 9, 1)
    for name, antialias, method in (
        ("bicubic", True, CUBIC_AA),
        ("bicubic", False, CUBIC),
        ("bilinear", True, LINEAR_AA),
        ("nearest", True, Method("nearest")),
        ("area", True, Method("area")),
    ):
        np.testing.assert_array_equal(
            resample(grid, (5, 12), method=name, antialias=antialias), resample(grid, (5, 12), method=method)
        )
        np.testing.assert_array_equal(axis_weights(9, 5, name, antialias), axis_weights(9, 5, method))
    np.testing.assert_array_equal(resample(grid, (5, 12)), resample(grid, (5, 12), method=CUBIC_AA))
    corners = axis_weights(9, 5, "bilinear", antialias=False, align_corners=True)
    np.testing.assert_array_equal(corners, axis_weights(9, 5, CORNERS))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: axis_weights(3, 4, "cubic"), "there is no method 'cubic'"),
        (lambda: resample(noise(3, 3), (4, 4), method="lanczos"), "there is no method 'lanczos'"),
        (lambda: Method("area", antialias=True), "area has no antialiased form"),
        (lambda: Method("nearest", align_corners=True), "nearest has no align-corners form"),
        (lambda: axis_weights(0, 4), "an axis of 0 cells cannot be resampled"),
        (lambda: axis_weights(4, 0), "an axis of 0 cells cannot be resampled"),
        (lambda: axis_weights(4, -3), "an axis of -3 cells cannot be resampled"),
        (lambda: axis_weights(0, 4, step=2.0), "an axis of 0 cells cannot be resampled"),
        (lambda: axis_weights(4, 4, step=0.0), "a step of 0.0 source cells per target cell is not positive"),
        (lambda: axis_weights(4, 4, step=float("nan")), "a step of nan source cells per target cell is not positive"),
        (lambda: resample(noise(3, 3), (4, 4, 4)), "a grid of 2 axes has no 3 leading axes"),
        (lambda: resample(np.ones((3, 3), np.int64), (4, 4)), "a grid of int64 is not of real numbers"),
        (lambda: resample(torch.ones(3, 3).long(), (4, 4)), "a grid of torch.int64 is not of real numbers"),
        (lambda: resample(noise(3, 0), (4, 4)), "an axis of 0 cells cannot be resampled"),
        (lambda: axis_weights(4, 7, "geometric"), "geometric resampling 4 -> 7 needs odd lengths"),
        (lambda: axis_weights(5, 8, "geometric"), "geometric resampling 5 -> 8 needs odd lengths"),
    ],
)
def test_mistakes_are_said(call: Any, message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        call()
    assert caught.value.kind == "bad_usage"
    assert message in caught.value.message


def test_an_unknown_method_names_those_that_are() -> None:
    with pytest.raises(BadUsage, match="the methods are nearest, nearest-exact, bilinear, bicubic, area"):
        Method("trilinear")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (CUBIC_AA, "bicubic, antialias"),
        (CORNERS, "bilinear, align-corners"),
        (Method("bicubic", offset=0.1), "bicubic, offset 0.1"),
    ],
)
def test_a_method_reads_as_words(method: Method, text: str) -> None:
    assert str(method) == text


def test_a_changed_method_brings_its_usual_form() -> None:
    assert LINEAR.changed("bicubic") == CUBIC_AA
    assert CUBIC_AA.changed("bilinear", antialias=False) == LINEAR
    assert CUBIC_AA.changed("nearest") == Method("nearest")
    assert CUBIC_AA.changed("bilinear", align_corners=True) == CORNERS
    assert CUBIC_AA.changed(antialias=False) == CUBIC
    assert CUBIC_AA.changed() == CUBIC_AA
