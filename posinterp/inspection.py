"""What a checkpoint holds, and how its tables fare; no other tensor is read."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import BadSize, BadUsage, PosinterpError, Unsupported
from .health import Health, health, kept
from .models import Model, architecture_of, models_of
from .planning import Plan, Wish, make_plan
from .rules import rule_of
from .size import Size, as_size
from .store import Checkpoint, open_checkpoint
from .windows import window_wish, windows_fields


@dataclass(frozen=True)
class Inspection:
    """`fields` as `inspect --json` has them; the plan for the asked size, or the problem with it.

    `kept`: of each table of the plan, the share of what varies that a trip to its new grid and back keeps. `next`: the
    command to run next.
    """

    fields: dict[str, Any]
    plan: Plan | None = None
    problem: PosinterpError | None = None
    kept: dict[str, float] = field(default_factory=dict)
    next: str = ""


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
    described = [_model_fields(model, source) for model in models]
    fields = {
        "path": str(source.path),
        "architecture": architecture_of(source),
        "models": described,
        "count": len(source.tensors),
        "bytes": sum(info.nbytes for info in source.tensors.values()),
        "files": [file.path.name for file in source.files],
    }
    near = described[0]["sizes"]
    options = {"--patch": patch, "--window": None if window == "keep" else window, "--src-img": src_img}
    options |= {"--family": family, "--rule": list(rules)}
    doubted = any((one["health"] or {}).get("looks_like") for model in described for one in model["tensors"])
    if size is None:
        return Inspection(fields, next=_resizing(ckpt, near[-1], options) if near and not doubted else "")
    try:
        plan = make_plan(source, models, size, Wish(window=wish), patch=patch)
    except (BadSize, BadUsage, Unsupported) as problem:
        return Inspection(fields, problem=problem)
    shares = {edit.name: kept(edit, source.tensors[edit.name]) for edit in plan.edits}
    return Inspection(
        fields,
        plan,
        kept={name: share for name, share in shares.items() if share is not None},
        next="" if doubted else _resizing(ckpt, img, options),
    )


def _resizing(ckpt: str | Path, img: Any, options: dict[str, Any]) -> str:
    """The command that takes the checkpoint to a size, with what was said of it here."""
    words = ["posinterp", "resize", str(ckpt), "--img", _text(img)]
    for name, value in options.items():
        for one in value if name == "--rule" else [value]:
            words += [] if one is None else [name, _text(one)]
    return shlex.join(words)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, int | str) else "x".join(map(str, value))


def _sizes_near(source: Checkpoint, model: Model) -> list[Size]:
    """Sizes about the source's that the model can have: up to two below it and two above, and about twice as large."""
    if model.src_img is None:
        return []
    found = []
    for times in (-2, -1, 1, 2, None):
        pairs = zip(model.src_img, model.unit, strict=True)
        sides = [side + (side if times is None else times * unit) for side, unit in pairs]
        if min(sides) < 1:
            continue
        size = Size(sides).of_frames(model.src_img.frames)
        with contextlib.suppress(PosinterpError):
            make_plan(source, [model], size, Wish(), patch=None)
            found.append(size)
    return list(dict.fromkeys(found))


def _model_fields(model: Model, source: Checkpoint) -> dict[str, Any]:
    tensors = source.tensors
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
        "sizes": [str(size) for size in _sizes_near(source, model)],
        "tensors": [
            {
                "name": model.root + name,
                "shape": list(model.tensors[name].shape),
                "dtype": tensors[model.root + name].dtype,
                "layout": str(rule.layout),
                "grid": list(rule.sides(model.places[name]).values()),
                "health": _health_fields(health(model, name, tensors[model.root + name])),
            }
            for name, rule in model.ruled.items()
        ],
    }


def _health_fields(found: Health | None) -> dict[str, Any] | None:
    if found is None:
        return None
    mean, spread, least, largest = found.norm or (None,) * 4
    return {
        **vars(found),
        "norm": {"mean": mean, "std": spread, "min": least, "max": largest} if found.norm else None,
        "alike": list(found.alike),
        "looks_like": list(found.looks_like) if found.looks_like else None,
    }
