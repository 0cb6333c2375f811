"""The word of transformers: it loads a folder without a tensor missing or left over, and computes with it.

No code of the checkpoint's own is run: only classes of the library itself.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config as configs
from ..models import Model
from ..store import Checkpoint, Config
from ..store.tensors import TensorInfo
from .case import Case
from .loaded import Loaded, NotAsked, as_tensor, averaged, flattened, same
from .verdict import counted, some

if TYPE_CHECKING:
    from torch import Tensor, nn

INPUTS = ("pixel_values", "pixel_values_videos", "input_values")
SAID = (("missing_keys", "missing"), ("unexpected_keys", "left over"), ("mismatched_keys", "of another shape"))


def asked(case: Case) -> None:
    """Raises NotAsked where the library is not there, or no class of it is named."""
    _class(case.out, case.own)


def result(case: Case, model: Model | None) -> Loaded:
    """The checkpoint, by the class that its config names."""
    kind = _class(case.out, case.own)
    assert case.out.folder is not None
    module, said = _from_folder(kind, case.out.folder)
    problems = [
        f"{what}: {some([str(key[0] if isinstance(key, tuple) else key) for key in said.get(key_of) or ()])}"
        for key_of, what in SAID
        if said.get(key_of)
    ]
    held = dict(_held(module, case.out.tensors, [one.root + name for one in case.models for name in one.ruled]))
    ignored = [re.compile(glob) for glob in getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()]
    problems += [
        f"no parameter of the model has the values of {name}"
        for name, key in held.items()
        if key is None and not any(glob.search(name) for glob in ignored)
    ]
    fine = f"transformers' {kind.__name__} holds all {counted(len(held), 'tensor')} as stored, none left over"
    return _loaded(case.out, module, model, held, problems=problems, count=len(held), said=fine)


def source(case: Case, origin: Model) -> Loaded:
    """The source at its own size."""
    assert case.source is not None
    kind = _class(case.source, case.source.config)
    assert case.source.folder is not None
    module, _ = _from_folder(kind, case.source.folder)
    return _loaded(case.source, module, origin, {})


def expected(case: Case, model: Model) -> Loaded | None:
    """The checkpoint's tensors in the model that the source's config builds at that size."""
    if case.plan is None or case.source is None or case.source.config is None or case.own is None:
        return None
    if case.source.config.data.get("model_type") is None:
        return None
    kind = _class(case.out, case.own)
    data = {**configs.edited(case.source.config, case.plan.config), "_commit_hash": None}
    assert case.out.folder is not None
    module, _ = _from_folder(kind, case.out.folder, config=kind.config_class.from_dict(data))
    return _loaded(case.out, module, model, {})


def _class(ckpt: Checkpoint, config: Config | None) -> Any:
    """The class of the library that a config names. Raises NotAsked without one."""
    try:
        import transformers
    except ImportError:
        raise NotAsked("transformers is not installed") from None
    names = (config.data.get("architectures") if config is not None else None) or [""]
    kind = getattr(transformers, str(names[0]), None) if isinstance(names, list) else None
    model = isinstance(kind, type) and issubclass(
        kind, transformers.PreTrainedModel
    )  # no factory that runs foreign code
    if ckpt.folder is None or not model:
        raise NotAsked("no folder with a config whose architectures name a class of transformers")
    return kind


def _from_folder(kind: Any, folder: Path, **more: Any) -> tuple[nn.Module, Mapping[str, Any]]:
    with _quiet():
        module, said = kind.from_pretrained(
            folder, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True, **more
        )
    return module.eval(), said


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's reports and progress bars: what they say is told here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _held(
    module: nn.Module, stored: Mapping[str, TensorInfo], tables: Collection[str] = ()
) -> Iterator[tuple[str, str | None]]:
    """Each tensor of the file, and the name under which the model holds its values: the same, or any; None without.

    What the model holds nothing of that shape of was split or fused by the library as it loaded: only `tables` never
    are.
    """
    import torch

    state: dict[str, Any] = {key: value for key, value in module.state_dict().items() if torch.is_tensor(value)}
    alike: dict[tuple[int, ...], list[str]] = {}
    for key, value in state.items():
        alike.setdefault(tuple(value.shape), []).append(key)
    for name, info in stored.items():
        if info.shape not in alike and name not in tables:
            continue
        value = as_tensor(info)
        keys = alike.get(info.shape, [])
        keys = sorted(keys, key=lambda key: not (key == name or name.endswith("." + key) or key.endswith("." + name)))
        yield name, next((key for key in keys if same(state[key], value)), None)


def _loaded(
    ckpt: Checkpoint, module: nn.Module, model: Model | None, held: Mapping[str, str | None], **more: Any
) -> Loaded:
    own: Any = module
    names = dict(module.named_parameters())
    keys = [held.get(model.root + name) for name in model.ruled] if model is not None else []
    tables = {key: names[key] for key in keys if key in names}
    mean, std = _expected_values(ckpt)

    frames = model.frames if model is not None else None

    def compute(image: Tensor) -> Any:
        import torch

        if model is not None and model.family.patch.pixels:
            raise NotAsked("the model takes patches, cut by its preprocessor, and no image")
        torch.manual_seed(0)  # a masked autoencoder draws what it masks
        if own.main_input_name in INPUTS and not hasattr(own.config, "text_config") and not _wants_more(own):
            return own(**{own.main_input_name: _given(own.main_input_name, image, frames)})
        if hasattr(own, "get_image_features"):
            return own.get_image_features(pixel_values=image)
        raise NotAsked("the model takes more than an image")

    def run(image: Tensor) -> Tensor:
        return flattened(compute(image))

    def pooled(image: Tensor) -> Tensor:
        out = compute(image)
        for key in ("pooler_output", "last_hidden_state", "logits"):
            if (value := getattr(out, key, out if hasattr(out, "ndim") else None)) is not None:
                return averaged(value, getattr(own.config, "hidden_size", None))
        raise NotAsked("the model gives no features that can be compared")

    return Loaded(module, run, pooled, tables, mean=mean, std=std, **more)


def _given(name: str, image: Tensor, frames: int | None) -> Tensor:
    """What a model takes in the place of an image: a still clip, or a spectrogram with time first."""
    if name == "input_values":
        return image[:, 0].transpose(1, 2)
    return image if frames is None else image[:, None].expand(-1, frames, -1, -1, -1)


def _wants_more(module: Any) -> bool:
    """Whether a forward pass needs another argument than its image."""
    given = [one for name, one in inspect.signature(module.forward).parameters.items() if name not in INPUTS]
    return any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in given)


def _expected_values(ckpt: Checkpoint) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of a channel, as the preprocessor says them."""
    from ..config.huggingface import preparations

    for preparation in preparations(ckpt):
        mean, std = preparation.data.get("image_mean"), preparation.data.get("image_std")
        if isinstance(mean, list) and isinstance(std, list):
            return mean, std
    return [], []
