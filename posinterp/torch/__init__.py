"""For training scripts: load a checkpoint of any size into a model, and take a model off its grid.

Importing this package tells timm the PEG models' names (`peg_vit_base_patch16_224`, ...).
"""

from __future__ import annotations

from .loading import load_resized
from .models import PegVisionTransformer, PegVisionTransformerDistilled, to_peg
from .names import register
from .peg import PEG

__all__ = ["PEG", "PegVisionTransformer", "PegVisionTransformerDistilled", "load_resized", "to_peg"]

register()
