"""For training scripts: load a checkpoint of any size into a model of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..computing import apply
from ..errors import BadUsage, Mismatch
from ..models import Model, find_models, models_of
from ..planning import Edit, Wish, check_guesses
from ..rules import Grid, named
from ..size import Size, as_size
from ..state import edits_like
from ..store import Checkpoint, open_checkpoint
from ..store.tensors import read_bytes
from ..torch_io import tensor

if TYPE_CHECKING:
    from torch import nn


def load_resized(
    model: nn.Module,
    ckpt: str | Path | Checkpoint,
    *,
    skip: str | Sequence[str] = (),
    branch: str | None = None,
    img: int | Sequence[int] | str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
    family: str | None = None,
) -> list[str]:
    """Load a checkpoint into a timm model, resampled to the model's own image and patch size.

    The target needs no arithmetic: it is the size that the model was built with (`timm.create_model(name,
    img_size=...)`, or `model.set_input_size(...)`). Everything that the model has must come from the checkpoint.

    Args:
        model: a timm model of a family that `posinterp families` lists.
        ckpt: a file, a folder, hf-hub:ORG/NAME, a timm model name, or an opened checkpoint.
        skip: one or more globs of parameters that keep the model's values ("head.*" for another number of classes).
        branch: which set of weights, of a training checkpoint that holds several ("model_ema").
        img: the size that the model was built for, where it does not say it itself.
        src_img, method, antialias, align_corners, family: as `plan` takes them.

    Returns:
        The names of the parameters that were resampled.

    Raises:
        PosinterpError: what `plan` raises.
        BadUsage: the file holds several sets of weights and `branch` does not choose; or neither the model nor `img`
            says its size, and its shapes do not show it.
        Mismatch: the checkpoint lacks something that the model has, or has what the model lacks.
    """
    source = ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt)
    models = models_of(source, family=family, src_img=src_img, architecture=_architecture(model))
    chosen = _chosen(models, branch)
    check_guesses(source, [chosen])
    own = model.state_dict()
    if any(value.is_meta for value in own.values()):
        raise BadUsage(
            "the model is on the meta device: it has nothing to load into", hint="model.to_empty(device=...)"
        )
    wanted = _target(model, own, chosen, None if img is None else as_size(img))
    edits = edits_like(chosen, wanted, Wish(method, antialias, align_corners))
    loaded = _values(source, chosen, edits)
    kept = _skipped((skip,) if isinstance(skip, str) else tuple(skip), own)
    loaded = {name: value for name, value in loaded.items() if name not in kept}
    _check(loaded, {name: value for name, value in own.items() if name not in kept})
    model.load_state_dict(loaded, strict=False)
    return [edit.name[len(chosen.root) :] for edit in edits]


def _chosen(models: Sequence[Model], branch: str | None) -> Model:
    """The one set of weights that is meant."""
    fitting = [model for model in models if branch is None or model.root.startswith(branch.rstrip("/.") + "/")]
    if len(fitting) == 1:
        return fitting[0]
    roots = ", ".join(model.root.rstrip("/.") or "the top" for model in models)
    if not fitting:
        raise BadUsage(f"the checkpoint has no weights at {branch!r}, only at {roots}")
    raise BadUsage(f"the checkpoint holds {len(models)} sets of weights: {roots}", hint="choose one with branch=")


def _skipped(skip: Sequence[str], own: Mapping[str, Any]) -> set[str]:
    """The model's parameters that keep their values. A glob that names none is a slip, and would load what it meant."""
    kept: set[str] = set()
    for glob in skip:
        found = set(named(glob, own))
        if not found:
            raise BadUsage(
                f"skip={glob!r} names no parameter of the model", hint=f"its last ones: {_some(list(own)[-3:])}"
            )
        kept |= found
    return kept


def _values(source: Checkpoint, model: Model, edits: Sequence[Edit]) -> dict[str, Any]:
    """The model's tensors by their own names, resampled ones at their new shape, computed buffers left out."""
    new = {edit.name: edit for edit in edits}
    dropped = {name for glob in model.family.drop for name in named(glob, model.tensors)}
    tensors = source.tensors
    out = {}
    for name in model.tensors:
        info = tensors[model.root + name]
        if name in dropped or "/" in name:
            continue
        if edit := new.get(info.name):
            out[name] = tensor(apply(edit, info).tobytes(), info.dtype, edit.new_shape)
        else:
            out[name] = tensor(read_bytes(info), info.dtype, info.shape)
    return out


def _target(model: nn.Module, own: Mapping[str, Any], source: Model, img: Size | None) -> Model:
    """The model in memory as its shapes and the size that it says show it."""
    kernel = source.family.patch.kernel
    if any(name not in own for name in (*source.ruled, *([kernel] if kernel else []))):
        names = [name for name in (*source.ruled, kernel) if name is not None and name not in own]
        raise Mismatch(
            f"the model has no {_some(names)}: is it wrapped, or built with other parts?",
            hint="give the model inside (model.module), or build it as the checkpoint's",
        )
    if held := _places_held(model, source, own):
        family = source.family
        ruled = {name: source.ruled[name] for name in held}
        return Model("", family, own, ruled, family.patch.cuts(own)[0], places=held)
    size = img or _image_size(model)
    if size is None and not all(rule.window or rule.readable(own[name].shape) for name, rule in source.ruled.items()):
        raise BadUsage(
            f"{type(model).__name__} does not say its image size, and its shapes fit several",
            hint="say the size that it was built for with img=",
        )
    return find_models(own, family=source.family.name, src_img=size)[0]


def _places_held(model: nn.Module, source: Model, own: Mapping[str, Any]) -> dict[str, Grid]:
    """The places of every tensor, where the module that owns it says them; {} if one does not.

    Its rows would not tell: a window of 5×13 has as many offsets as one of 8×8.
    """
    held: dict[str, Grid] = {}
    for name, rule in source.ruled.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        for kept in ("window_size", "resolution", "feat_size"):
            value = getattr(owner, kept, None) if owner is not model else None
            sides = (value, value) if isinstance(value, int) else value
            if isinstance(sides, (tuple, list)) and len(sides) == 2:
                grid = {"h": int(sides[0]), "w": int(sides[1])}
                if rule.layout.fits(tuple(own[name].shape), rule.sides(grid)) is not None:
                    held[name] = grid
                    break
        if name not in held:
            return {}
    return held


def _image_size(model: nn.Module) -> Size | None:
    """The size that a timm model was built for, as the first of its parts that has one says it."""
    for part in model.modules():
        size = getattr(part, "img_size", None)
        if isinstance(size, (int, tuple, list)) and size:
            return as_size(size if isinstance(size, int) else tuple(size))
    return None


def _architecture(model: nn.Module) -> str | None:
    config = getattr(model, "pretrained_cfg", None) or {}
    name = config.get("architecture")
    return name if isinstance(name, str) and name else None


def _check(loaded: dict[str, Any], own: dict[str, Any]) -> None:
    """Every parameter of the model has its value, of its shape. "Loads" alone would prove less."""
    missing = [name for name in own if name not in loaded]
    foreign = [name for name in loaded if name not in own]
    if missing or foreign:
        what = [f"lacks {_some(missing)}"] if missing else []
        what += [f"has {_some(foreign)}, which the model lacks"] if foreign else []
        raise Mismatch(f"the checkpoint {' and '.join(what)}", hint='skip=["head.*"] keeps the model\'s own values')
    for name, value in loaded.items():
        if tuple(value.shape) != tuple(own[name].shape):
            raise Mismatch(
                f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model",
                hint='skip=["head.*"] keeps the model\'s own values, for another number of classes',
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
