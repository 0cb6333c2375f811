"""OpenCLIP's word: it loads a folder strictly, holds exactly its values, and encodes an image with them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config as configs
from ..models import Model
from ..store import Checkpoint, Config
from .case import Case
from .loaded import Loaded, NotAsked, as_tensor, flattened, same, with_config
from .verdict import counted

if TYPE_CHECKING:
    from torch import Tensor, nn


def asked(case: Case) -> None:
    """Raises NotAsked where the library is not there, or there is no folder with its config."""
    _check(case.out, case.own)


def result(case: Case, model: Model | None) -> Loaded:
    """The checkpoint, by the library's own loader, which resamples in silence what is not of its size."""
    module = _from_folder(_check(case.out, case.own))
    state, stored = module.state_dict(), case.out.tensors
    problems = [f"{name} is {'only in the model' if name in state else 'not loaded'}" for name in state ^ stored.keys()]
    problems += [
        f"{name} has other values in open_clip's model than in the file"
        for name in sorted(state.keys() & stored.keys())
        if tuple(state[name].shape) != stored[name].shape or not same(state[name], as_tensor(stored[name]))
    ]
    said = f"open_clip holds all {counted(len(stored), 'tensor')} exactly as stored, at {case.size}"
    return _loaded(module, case.out, model, problems=sorted(problems), count=len(stored), said=said)


def source(case: Case, origin: Model) -> Loaded:
    """The source at its own size."""
    assert case.source is not None
    return _loaded(_from_folder(_check(case.source, case.source.config)), case.source, origin)


def expected(case: Case, model: Model) -> Loaded | None:
    """The checkpoint's tensors in the model that the source's config builds at that size."""
    if case.plan is None or case.source is None or case.source.config is None or case.source.folder is None:
        return None
    _check(case.out, case.own)
    data = configs.edited(case.source.config, case.plan.config)
    with with_config(case.out, case.source.config.path.name, data) as folder:
        return _loaded(_from_folder(folder), case.out, model)


def _check(ckpt: Checkpoint, config: Config | None) -> Path:
    try:
        from open_clip.factory import LOCAL_DIR_PREFIX  # noqa: F401
    except ImportError:
        raise NotAsked("open_clip is not installed, or older than 3.0, which reads no folders") from None
    if ckpt.folder is None or config is None or not configs.is_open_clip(config):
        raise NotAsked("no folder with an open_clip_config.json")
    return ckpt.folder


def _from_folder(folder: Path) -> nn.Module:
    import open_clip

    with _quiet():
        module: nn.Module = open_clip.create_model(f"local-dir:{folder}")
    return module.eval()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's log, which goes to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _loaded(module: nn.Module, ckpt: Checkpoint, model: Model | None, **more: Any) -> Loaded:
    own: Any = module
    parameters = dict(module.named_parameters())
    ruled = [model.root + name for name in model.ruled] if model is not None else []
    prepared = configs.fields.get(ckpt.config.data, ("preprocess_cfg",)) if ckpt.config is not None else {}
    said = prepared if isinstance(prepared, dict) else {}

    def encode(image: Tensor) -> Tensor:
        return flattened(own.encode_image(image))[None]

    return Loaded(
        module,
        encode,
        encode,
        {name: parameters[name] for name in ruled if name in parameters},
        mean=said.get("mean") or (),
        std=said.get("std") or (),
        **more,
    )
