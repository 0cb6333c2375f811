"""Resampling as one small matrix per axis: `out = A_h @ grid @ A_w^T`, the same line for numpy and torch.

A matrix depends on the two lengths and the method only. It is built in float64, so a table resampled here is nearer to
the exact answer than the float32 kernels of the libraries whose definitions are followed: torch's
`upsample_*` / `_upsample_*_aa` kernels (half-pixel centres, a = -0.75 for the plain and a = -0.5 for the antialiased
cubic), `jax.image.resize` (the antialiased kernels and lanczos3), and the geometric resize of BEiT's bias tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .errors import BadUsage
from .method import ALIGNABLE, ANTIALIASED, NAMES, Method

Matrix = NDArray[np.float64]
Array = TypeVar("Array", bound=Any)  # numpy.ndarray or torch.Tensor

__all__ = ["ALIGNABLE", "ANTIALIASED", "NAMES", "Method", "apply_weights", "axis_weights", "patch_weights", "resample"]


def resample(grid: Array, size: Sequence[int], *, method: str | Method = "bicubic", antialias: bool = True) -> Array:
    """Resample the leading axes of `grid` to `size`.

    Args:
        grid: (h, w, ...), or (t, h, w, ...): as many leading axes as `size` has numbers. numpy or torch, real
            floating point. Torch tensors keep their gradient.
        size: the new length of each of those axes.
        method: a name of `NAMES`, or a `Method` (then `antialias` is not looked at).
        antialias: low-pass when shrinking; ignored for methods without such a form.

    Returns:
        (*size, ...) of the kind, dtype and device of `grid`; computed in float64 and rounded once. A grid that has
        that size already is returned as it is.

    Raises:
        BadUsage: for an unknown method, fewer axes than numbers in `size`, or integers.
    """
    how = method if isinstance(method, Method) else Method(method, antialias=antialias and method in ANTIALIASED)
    if not (grid.dtype.kind == "f" if isinstance(grid, np.ndarray) else grid.is_floating_point()):
        raise BadUsage(f"a grid of {grid.dtype} is not of real numbers", hint="cast it to a float first")
    if len(size) > grid.ndim:
        raise BadUsage(f"a grid of {grid.ndim} axes has no {len(size)} leading axes to resample")
    if tuple(grid.shape[: len(size)]) == tuple(size):
        return grid
    matrices = [_weights(int(old), int(new), how) for old, new in zip(grid.shape, size, strict=False)]
    return apply_weights(grid, matrices)


def apply_weights(grid: Array, weights: Sequence[Matrix]) -> Array:
    """Contract leading axis k of `grid` with weights[k], (new, old): (*new, ...), in float64, rounded once."""
    if isinstance(grid, np.ndarray):
        out: Any = grid.astype(np.float64, copy=False)
        for axis, matrix in enumerate(weights):
            out = np.moveaxis(np.tensordot(matrix, out, axes=(1, axis)), 0, axis)
        limit = float(np.finfo(grid.dtype).max)  # an overshoot of the cubic kernel past the dtype is no Inf
        return cast(Array, np.clip(out, -limit, limit).astype(grid.dtype, copy=False))
    return cast(Array, _apply_torch(grid, weights))


def _apply_torch(grid: Any, weights: Sequence[Matrix]) -> Any:
    import torch

    exact = torch.float32 if grid.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    out = grid.to(exact)
    for axis, matrix in enumerate(weights):
        factor = torch.tensor(matrix, dtype=exact, device=grid.device)
        out = torch.tensordot(factor, out, dims=([1], [axis])).movedim(0, axis)
    limit = torch.finfo(grid.dtype).max
    return _rounded_once(out.clamp(-limit, limit), grid.dtype).contiguous()


def _rounded_once(exact: Any, dtype: Any) -> Any:
    """To a narrower dtype. torch takes float64 to 16 bits by way of float32, and so rounds what is near a tie twice."""
    import torch

    if dtype.itemsize == 2 and exact.dtype == torch.float64:
        # What float32 would round off is cut and kept as one odd bit: there is no tie then, and the second rounding
        # is the only one. The difference is added, so that the gradient passes.
        bits = exact.detach().view(torch.int64)
        tail = (1 << 29) - 1
        odd = (bits & ~tail) | ((bits & tail != 0).long() << 29)
        exact = exact + (odd.view(torch.float64) - exact).detach()
    return exact.to(dtype)


def axis_weights(
    src: int,
    dst: int,
    method: str | Method = "bicubic",
    antialias: bool = True,
    align_corners: bool = False,
    step: float | None = None,
) -> Matrix:
    """The matrix that resamples one axis.

    Args:
        src, dst: lengths before and after, in cells; both at least 1.
        method: a name of `NAMES`, or a `Method` (then the next two are not looked at).
        antialias: ignored for methods without such a form.
        align_corners: first and last cells coincide (bilinear and bicubic).
        step: source cells per target cell, when it is not src / dst: torch's 1 / scale_factor.

    Returns:
        (dst, src) float64; each row sums to one.

    Raises:
        BadUsage: for an unknown method, a length below one, or a step that is not positive.
    """
    if not isinstance(method, Method):
        aa = antialias and method in ANTIALIASED
        method = Method(method, antialias=aa, align_corners=align_corners)
    if step is None:
        return _weights(src, dst, method)
    if not step > 0:
        raise BadUsage(f"a step of {step} source cells per target cell is not positive")
    return _build(_length(src), _length(dst), method, (step, 1))


@lru_cache(maxsize=256)
def _weights(src: int, dst: int, method: Method) -> Matrix:
    step = (_length(src), _length(dst) + (method.offset or 0))
    matrix = _build(src, dst, method, step)
    matrix.setflags(write=False)  # it is shared
    return matrix


def _length(n: int) -> int:
    if n < 1:
        raise BadUsage(f"an axis of {n} cells cannot be resampled")
    return n


Step = tuple[
    float, float
]  # numerator and denominator: i * 2 / 98 is exact where i * (2 / 98) is not, and nearest shows it


def _build(src: int, dst: int, method: Method, step: Step) -> Matrix:
    if method.computes:
        raise BadUsage(f"{method.name} computes a fixed table anew", hint=f"what resamples is {', '.join(NAMES)}")
    if method.name == "geometric":
        return _geometric(src, dst)
    if method.name == "area":
        return _area(src, dst)
    if method.align_corners:
        step = (src - 1, dst - 1) if dst > 1 else (0, 1)
    if method.antialias or method.name == "lanczos3":
        return _windowed(src, dst, KERNELS[method.name], step, widen=method.antialias)
    centre = 0.0 if method.align_corners or method.name == "nearest" else 0.5
    return _interpolating(src, dst, method.name, step, centre)


# ------------------------------------------------------------------ kernels: values at a distance, in source cells


def _triangle(x: Matrix) -> Matrix:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: Matrix, a: float) -> Matrix:
    """Keys' cubic convolution kernel (1981) with free parameter a."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _lanczos3(x: Matrix) -> Matrix:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


Kernel = tuple[Callable[[Matrix], Matrix], float]  # the function and its support on one side
KERNELS: dict[str, Kernel] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (lambda x: _cubic(x, -0.5), 2.0),
    "lanczos3": (_lanczos3, 3.0),
}


def _windowed(src: int, dst: int, kernel: Kernel, step: Step, *, widen: bool) -> Matrix:
    """torch's antialiased kernels: taps outside the axis are left out and the rest made to sum to one."""
    function, support = kernel
    scale = max(step[0] / step[1], 1.0) if widen else 1.0
    places = (np.arange(dst) + 0.5) * step[0] / step[1]
    first = np.maximum((places - support * scale + 0.5).astype(np.int64), 0)
    last = np.minimum((places + support * scale + 0.5).astype(np.int64), src)
    cells = np.arange(src)
    weights = function((cells - places[:, None] + 0.5) / scale)
    weights[(cells < first[:, None]) | (cells >= last[:, None])] = 0.0
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _interpolating(src: int, dst: int, name: str, step: Step, centre: float) -> Matrix:
    """torch's plain kernels: taps outside the axis fall on its border cell."""
    places = (np.arange(dst) + centre) * step[0] / step[1]
    if name.startswith("nearest"):
        return _scatter(src, places.astype(np.int64)[:, None], np.ones((dst, 1)))
    places = places - centre
    if name == "bilinear":
        places = np.maximum(places, 0.0)
    low = np.floor(places).astype(np.int64)
    reach = np.arange(2) if name == "bilinear" else np.arange(-1, 3)
    distance = (places - low)[:, None] - reach
    weights = _triangle(distance) if name == "bilinear" else _cubic(distance, -0.75)
    return _scatter(src, low[:, None] + reach, weights)


def _scatter(src: int, cells: NDArray[np.int64], weights: Matrix) -> Matrix:
    matrix = np.zeros((len(cells), src))
    np.add.at(matrix, (np.arange(len(cells))[:, None], np.clip(cells, 0, src - 1)), weights)
    return matrix


def _area(src: int, dst: int) -> Matrix:
    """Means over the source cells that a target cell touches: torch's adaptive average pooling."""
    target, cells = np.arange(dst)[:, None], np.arange(src)
    inside = (cells >= target * src // dst) & (cells < -(-(target + 1) * src // dst))
    return np.asarray(inside / inside.sum(1, keepdims=True))


def _geometric(src: int, dst: int) -> Matrix:
    """Offsets keep their meaning near zero and stretch far out.

    Source offsets are placed at 0, ±1, ±(1 + q), ±(1 + q + q²), ... with q found by bisection in [1.01, 1.5] so that
    the last one reaches the new edge; the table is then read at whole offsets, linearly. From BEiT's fine-tuning script
    (microsoft/unilm, run_class_finetuning.py) as timm.layers.resize_rel_pos_bias_table evaluates it. Axes of offsets
    have an odd length: 2n - 1 entries for n places.
    """
    if src % 2 == 0 or dst % 2 == 0:
        raise BadUsage(f"geometric resampling {src} -> {dst} needs odd lengths: 2n - 1 offsets for n places")
    half, reach = src // 2, dst // 2
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if (1 - q**half) / (1 - q) > reach else (q, high)
    ahead = np.concatenate([[0.0], np.cumsum(q ** np.arange(half))])
    places = np.concatenate([-ahead[:0:-1], ahead])
    # Beyond the outermost source offset its value holds.
    wanted = np.clip(np.arange(-reach, reach + 1), places[0], places[-1])
    right = np.clip(np.searchsorted(places, wanted), 1, max(src - 1, 1))
    if src == 1:
        return np.ones((dst, 1))
    share = (wanted - places[right - 1]) / (places[right] - places[right - 1])
    return _scatter(src, np.stack([right - 1, right], 1), np.stack([1 - share, share], 1))


# ------------------------------------------------------------------ patch kernels


@lru_cache(maxsize=64)
def patch_weights(src: int, dst: int, method: Method) -> Matrix:
    """One axis of a patch kernel's new size, such that resizing patches and kernel together changes nothing.

    The least-squares solution of FlexiViT (arXiv 2212.08013, section 3.4) for the kernel is pinv(B^T) w, B being the
    resize of a patch. B is the Kronecker product of two axis matrices, and so is its pseudo-inverse: one axis at a
    time, where home libraries invert the product.

    Args:
        src, dst: the patch's side before and after, in pixels.

    Returns:
        (dst, src) float64.
    """
    return np.linalg.pinv(_weights(src, dst, method).T)
