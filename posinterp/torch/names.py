"""The PEG models' names in timm: `peg_` before the name of each of its VisionTransformers."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

import timm
import torch
from timm.models import DefaultCfg, build_model_with_cfg, is_model, model_entrypoint, register_model

from ..errors import Unsupported
from .models import PEG_CLASSES

MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid")
PREFIX = "peg_"

default_cfgs: dict[str, DefaultCfg] = {}  # where timm's registry looks for a name's weights and input size


def register() -> None:
    """Tell timm the names. Once is enough, and more does no harm."""
    for module in MODULES:
        names = [name for name in timm.list_models(module=module) if not is_model(PREFIX + name)]
        if not names:
            continue
        own = _rebound(model_entrypoint(names[0]).__globals__)
        for name in names:
            entry = _copy(model_entrypoint(name), own)
            entry.__name__, entry.__module__, entry.__doc__ = PREFIX + name, __name__, f"{name} with PEGs."
            known = sys.modules[f"timm.models.{module}"].default_cfgs.get(name)
            if isinstance(known, DefaultCfg):
                cfgs = {tag: replace(known.cfgs[tag], architecture=PREFIX + name) for tag in known.tags}
                default_cfgs[PREFIX + name] = DefaultCfg(deque(known.tags), cfgs, known.is_pretrained)
            register_model(entry)


def _rebound(names: Mapping[str, Any]) -> dict[str, Any]:
    """A timm module's global names, with our builder in place of timm's.

    An entry point holds the arguments of its model in its body, and hands them to a `_create_...` of its module, which
    hands them to `build_model_with_cfg`. Copies of these functions that see other globals reach all of it, and timm's
    own stay what they are.
    """
    own = {**names, "build_model_with_cfg": _build}
    own.update({name: _copy(value, own) for name, value in names.items() if name.startswith("_create_")})
    return own


def _copy(function: Callable[..., Any], names: dict[str, Any]) -> FunctionType:
    assert isinstance(function, FunctionType)
    new = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _build(
    model_cls: type,
    variant: str,
    pretrained: bool = False,
    *,
    pretrained_filter_fn: Callable[..., dict[str, Any]] | None = None,
    **kwargs: Any,
) -> Any:
    """timm's builder with the PEG class of `model_cls`. Weights without PEGs get the zeros that change nothing."""
    if model_cls not in PEG_CLASSES:
        raise Unsupported(f"{PREFIX}{variant} cannot be built: {model_cls.__name__} has no PEG variant")

    def filtered(state: dict[str, Any], model: Any) -> dict[str, Any]:
        state = state if pretrained_filter_fn is None else pretrained_filter_fn(state, model)
        if any(name.startswith("peg.") for name in state):
            return state
        return {**state, **{f"peg.{name}": torch.zeros_like(value) for name, value in model.peg.state_dict().items()}}

    kind: Any = PEG_CLASSES[model_cls]
    return build_model_with_cfg(kind, PREFIX + variant, pretrained, pretrained_filter_fn=filtered, **kwargs)
