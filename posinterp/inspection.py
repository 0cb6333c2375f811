"""What a checkpoint holds, without reading a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadSize, BadUsage, PosinterpError, Unsupported
from .models import Model, architecture_of, models_of
from .planning import Plan, Wish, make_plan
from .rules import rule_of
from .size import as_size
from .store import open_checkpoint
from .store.tensors import TensorInfo
from .windows import window_wish, windows_fields


@dataclass(frozen=True)
class Inspection:
    """`fields` as `inspect --json` has them; the plan for the asked size, or the problem with it."""

    fields: dict[str, Any]
    plan: Plan | None = None
    problem: PosinterpError | None = None


def inspect_checkpoint(
    ckpt: str | Path,
    img: int | Sequence[int] | str | None = None,
    *,
    patch: int | None = None,
    window: int | str | Sequence[Any] = "keep",
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
    rules: Sequence[str] = (),
) -> Inspection:
    """Open a checkpoint and say what it is; with `img`, also what that size would change.

    Raises what `plan` raises, but for a size that the model cannot have: that is the answer, in `problem`.
    """
    source = open_checkpoint(ckpt)
    size = None if img is None else as_size(img)
    wish = window_wish(window)
    models = models_of(source, family=family, src_img=src_img, rules=[rule_of(text) for text in rules])
    fields = {
        "path": str(source.path),
        "architecture": architecture_of(source),
        "models": [_model_fields(model, source.tensors) for model in models],
        "count": len(source.tensors),
        "bytes": sum(info.nbytes for info in source.tensors.values()),
        "files": [file.path.name for file in source.files],
    }
    if size is None:
        return Inspection(fields)
    try:
        return Inspection(fields, make_plan(source, models, size, Wish(window=wish), patch=patch))
    except (BadSize, BadUsage, Unsupported) as problem:
        return Inspection(fields, problem=problem)


def _model_fields(model: Model, tensors: dict[str, TensorInfo]) -> dict[str, Any]:
    tokens = {name: model.tensors[name].shape for name in model.family.tokens if name in model.tensors}
    return {
        "root": model.root,
        "family": model.family.name,
        "home": model.family.home,
        "home_does": model.family.home_does,
        "size": list(model.src_img) if model.src_img else None,
        "size_text": str(model.src_img) if model.src_img else "not said",
        "origin": model.origin,
        "stride": list(model.stride),
        "stride_text": "×".join(map(str, model.stride)),
        "grid": [model.grid["h"], model.grid["w"]] if model.grid else None,
        "grid_text": f"{model.grid['h']}×{model.grid['w']}" if model.grid else "not stored",
        "windows": windows_fields(model.windows),
        "windows_text": ", ".join("×".join(map(str, sides)) for sides in windows_fields(model.windows) or ()),
        "prefix": model.prefix,
        "tokens": ", ".join(f"{name} ({shape[-2] if len(shape) > 1 else 1})" for name, shape in tokens.items()),
        "method": model.methods or "none",
        "tensors": [
            {
                "name": model.root + name,
                "shape": list(model.tensors[name].shape),
                "dtype": tensors[model.root + name].dtype,
                "layout": str(rule.layout),
                "grid": list(rule.sides(model.places[name]).values()),
            }
            for name, rule in model.ruled.items()
        ],
    }
