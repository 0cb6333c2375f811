"""Resizing a state dict in memory: for training scripts. The plan is the same as for files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadUsage, BadValues, Mismatch
from .formulas import computed_anew
from .health import check_guesses
from .measuring import ROOT
from .method import DISTANCES
from .models import Model, find_models
from .planning import Edit, Wish, edits_to, model_edits
from .resampling import apply_weights
from .rules import named, rule_of
from .size import Size, as_size
from .windows import window_wish

HALVES = {"float16": "F16", "bfloat16": "BF16"}


def adapt(
    state_dict: Mapping[str, Any],
    img: int | Sequence[int] | str | None = None,
    *,
    like: Mapping[str, Any] | None = None,
    src_img: int | Sequence[int] | str | None = None,
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
    patch: int | None = None,
    window: int | str | Sequence[Any] = "keep",
    family: str | None = None,
    rules: Sequence[str] = (),
    architecture: str | None = None,
) -> dict[str, Any]:
    """A state dict for another image size.

    Args:
        state_dict: names to numpy arrays or torch tensors, flat. Not changed.
        img: the target size. None: told from `like`.
        like: a state dict of the target model (`model.state_dict()`); its shapes say the target's grids, windows and
            patch size, and every resized tensor is checked against them. Rows do not show the sides of a grid: a
            square is taken for granted, with a warning, unless `img` is given, too.
        src_img, method, antialias, align_corners, patch, window, family, rules: as `plan` takes them; the rules hold
            for `like`, too.
        architecture: the home library's name of the model, where its convention depends on it.

    Returns:
        A new dict with the same names, without the buffers that the model computes itself. Tensors that do not change
        are the same objects; resampled ones have their dtype, device and gradient.

    Raises:
        PosinterpError: what `plan` raises for tensors that it cannot understand.
        Mismatch: the result is not like `like`.
    """
    known: dict[str, Any] = {
        "architecture": architecture,
        "family": family,
        "rules": [rule_of(text) for text in rules],
    }
    tensors = {name: value for name, value in state_dict.items() if isinstance(name, str) and hasattr(value, "shape")}
    models = find_models(tensors, src_img=None if src_img is None else as_size(src_img), **known)
    check_guesses(models, lambda name: _values(tensors[name]))
    size = None if img is None else as_size(img)
    if size is None and like is None:
        raise BadUsage("neither img nor like says the target size", hint="adapt(state_dict, like=model.state_dict())")
    wanted = None if like is None else find_models(like, src_img=size, **known)[0]
    if wanted is not None and wanted.origin == ROOT:
        warnings.warn(
            f"like is read as a model for {wanted.src_img}, by the number of its rows; say img= if it is not",
            stacklevel=2,
        )
    wish = Wish(method, antialias, align_corners, window_wish(window))
    sides = None if patch is None else (patch, patch)
    out = dict(state_dict)
    for model in models:
        edits = edits_like(model, wanted, wish) if wanted else model_edits(model, size or Size(), wish, patch=sides)
        for edit in edits:
            out[edit.name] = apply(edit, state_dict[edit.name])
        for glob in model.family.drop:
            for name in named(glob, model.tensors):
                out.pop(model.root + name, None)
        if like is not None:
            _check_like(model, out, like)
    return out


def _values(tensor: Any) -> NDArray[np.float64] | None:
    """A floating-point tensor in float64; None for another."""
    if _unfit(tensor):
        return None
    if not isinstance(tensor, np.ndarray):
        tensor = tensor.detach().cpu().double().numpy()
    return np.asarray(tensor, dtype=np.float64)


def _unfit(tensor: Any) -> str:
    """Why a tensor in memory cannot be resampled, whatever its values; "" if it can."""
    if isinstance(tensor, np.ndarray):
        return "" if tensor.dtype.kind == "f" else f"holds {tensor.dtype}"
    if tensor.is_meta:
        return "is on the meta device, without values"
    if tensor.is_sparse or tensor.is_quantized:
        return "is sparse or quantised"
    return "" if tensor.is_floating_point() and tensor.element_size() > 1 else f"holds {tensor.dtype}"


def edits_like(model: Model, wanted: Model, wish: Wish) -> list[Edit]:
    """The edits that give each tensor the places that it has in another model, the target.

    Raises Mismatch if that model lacks one.
    """
    lacking = [name for name in model.ruled if name not in wanted.places]
    if lacking:
        raise Mismatch(
            f"the target model has no {lacking[0]}",
            hint="is it of the same architecture, and built with the same parts?",
        )
    patch = wanted.family.patch
    return edits_to(model, wanted.places, wish, patch=patch.size(wanted.tensors) if patch.resizable else None)


def _check_like(model: Model, out: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    for name in model.ruled:
        given = like.get(model.root + name, like.get(name))
        if given is not None and tuple(given.shape) != tuple(out[model.root + name].shape):
            raise Mismatch(
                f"{name} becomes {tuple(out[model.root + name].shape)}, the target model has {tuple(given.shape)}",
                hint="do the two have the same prefix tokens, width and depth?",
            )


def apply(edit: Edit, tensor: Any) -> Any:
    """One edited tensor in memory. Raises BadValues for one that is no plain floating-point one, for NaN and Inf."""
    if edit.method.name == DISTANCES:
        return _computed(edit, tensor)
    if why := _unfit(tensor):
        raise BadValues(
            f"{edit.name} {why}, and cannot be resampled", hint="make it float32, or the like, dense and loaded, first"
        )
    if not bool((np.isfinite(tensor) if isinstance(tensor, np.ndarray) else tensor.detach().isfinite()).all()):
        raise BadValues(
            f"{edit.name} holds values that are not finite (NaN or Inf); resampling would spread them",
            hint="repair the checkpoint first",
        )
    parts = edit.split(tensor)
    if edit.method.computes:
        return _computed(edit, tensor)
    return edit.join(parts._replace(grid=apply_weights(parts.grid, edit.weights)))


def _computed(edit: Edit, tensor: Any) -> Any:
    """One that is computed anew by a formula, which it must be of."""
    parts, sides = edit.split(tensor), (edit.after["h"], edit.after["w"])
    kind = tensor.dtype.name if isinstance(tensor, np.ndarray) else str(tensor.dtype).removeprefix("torch.")
    grid = parts.grid if isinstance(tensor, np.ndarray) else parts.grid.detach().double().cpu().numpy()
    anew = computed_anew(
        grid.astype(np.float64), sides, edit.method.name, name=edit.name, dtype=HALVES.get(kind, "F32")
    )
    new = anew.astype(tensor.dtype) if isinstance(tensor, np.ndarray) else parts.grid.new_tensor(anew)
    return edit.join(parts._replace(grid=new))
