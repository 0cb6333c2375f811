"""vit-pytorch's word, as far as it can be asked: its files say no arguments, and those of ViT stand in the shapes.

But for the heads: they are taken to have 64 channels, the library's default. With another number the model holds the
same tensors, and its features are others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..models import Model
from ..size import Size
from ..store import Checkpoint
from .case import Case
from .loaded import Loaded, NotAsked, as_tensor, as_tensors, averaged, below, flattened, same
from .verdict import counted

if TYPE_CHECKING:
    from torch import Tensor

HEAD = 64  # channels


def asked(case: Case) -> None:
    """Raises NotAsked where the library is not there."""
    try:
        import vit_pytorch  # noqa: F401
    except ImportError:
        raise NotAsked("vit-pytorch is not installed") from None


def result(case: Case, model: Model | None) -> Loaded:
    """The checkpoint in vit-pytorch's ViT. Raises NotAsked where it is another class, of the same table."""
    if model is None:
        raise NotAsked("no model of vit-pytorch's was found")
    built = _built(case.out, model, case.size)
    stored = below(case.out, model)
    state = built.module.state_dict()
    problems = [
        f"{name} has other values in vit-pytorch's model than in the file"
        for name, info in stored.items()
        if not same(state[name], as_tensor(info))
    ]
    said = f"vit-pytorch's ViT holds all {counted(len(stored), 'tensor')} exactly as stored, at {case.size}"
    said += f" (heads of {HEAD} channels taken for granted)"
    return Loaded(built.module, built.run, built.pooled, built.tables, problems, len(stored), said)


def source(case: Case, origin: Model) -> Loaded:
    """The source at its own size."""
    assert case.source is not None
    assert origin.src_img is not None
    return _built(case.source, origin, origin.src_img)


def expected(case: Case, model: Model) -> Loaded | None:
    """Nothing to compare with: there are no configs."""
    return None


def _built(ckpt: Checkpoint, model: Model, size: Size) -> Loaded:
    from vit_pytorch import ViT

    stored = below(ckpt, model)
    try:
        depth = len({found[1] for name in stored if (found := re.match(r"transformer\.layers\.(\d+)\.", name))})
        built: Any = ViT(
            image_size=tuple(size),
            patch_size=model.stride,
            num_classes=stored["mlp_head.weight"].shape[0] if "mlp_head.weight" in stored else 0,
            dim=stored["pos_embedding"].shape[1],
            depth=depth,
            heads=stored["transformer.layers.0.0.to_qkv.weight"].shape[0] // (3 * HEAD),
            mlp_dim=stored["transformer.layers.0.1.net.1.weight"].shape[0],
            pool="cls" if model.prefix else "mean",
            channels=stored["to_patch_embedding.1.weight"].shape[0] // (model.stride[0] * model.stride[1]),
        )
        built.load_state_dict(as_tensors(stored))
    except Exception as error:  # it is another class: no such tensors, no such shapes, no strict load
        raise NotAsked("no file says the arguments, and vit-pytorch's ViT does not load it") from error
    built.eval()

    def run(image: Tensor) -> Tensor:
        return flattened(built(image))

    def pooled(image: Tensor) -> Tensor:
        return averaged(built(image), None)

    return Loaded(built, run, pooled, {"pos_embedding": built.pos_embedding})
