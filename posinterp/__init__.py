"""posinterp: take a pretrained vision-transformer checkpoint to another resolution.

>>> import posinterp as pi
>>> pi.resize("vit_b.safetensors", 384, "vit_b-384")     # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from .errors import PosinterpError
    from .pegging import peg
    from .planning import Plan, plan
    from .resampling import Method, axis_weights, resample
    from .similarity import position_similarity
    from .size import Size
    from .state import adapt
    from .verification import Verdict, verify
    from .writing import resize

# Where each public name lives. Nothing is imported before it is asked for: `posinterp --help` needs none of it.
_HOMES = {
    "Method": "resampling",
    "Plan": "planning",
    "PosinterpError": "errors",
    "Size": "size",
    "Verdict": "verification",
    "adapt": "state",
    "axis_weights": "resampling",
    "peg": "pegging",
    "plan": "planning",
    "position_similarity": "similarity",
    "resample": "resampling",
    "resize": "writing",
    "verify": "verification",
}

__all__ = [
    "Method",
    "Plan",
    "PosinterpError",
    "Size",
    "Verdict",
    "__version__",
    "adapt",
    "axis_weights",
    "peg",
    "plan",
    "position_similarity",
    "resample",
    "resize",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'posinterp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"posinterp.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
