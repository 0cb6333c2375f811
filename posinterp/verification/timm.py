"""timm's word: it loads the checkpoint, holds exactly its values, and computes with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config as configs
from ..models import Model
from ..size import shape_text
from ..store import Checkpoint, Config
from ..store.tensors import TensorInfo
from ..windows import window_arguments
from .case import Case
from .loaded import Loaded, NotAsked, as_tensor, as_tensors, averaged, below, flattened, leaves, same, with_config
from .verdict import counted, sides_text

if TYPE_CHECKING:
    from torch import Tensor, nn

HEADS = ("head.weight", "head.fc.weight")


def asked(case: Case) -> None:
    """Raises NotAsked where nothing says which of timm's models it is."""
    if not case.architecture:
        raise NotAsked("no config says which architecture; --family MODEL does")


def result(case: Case, model: Model | None) -> Loaded:
    """The checkpoint: by timm's own loader from a folder, which believes the config; else from the file's tensors.

    Raises NotAsked where nothing says the constructor's arguments, and timm's model of that name does not load it.
    """
    stored = below(case.out, model)
    try:
        if _by_loader(case.out, case.own, model):
            module = _from_folder(case.out.path)
        else:
            told = {**_told(case, model), "num_classes": _classes(stored, case.own, case.source)}
            module = _constructed(case.architecture, case.arguments, stored, told)
    except Exception as error:
        if case.arguments is None:  # a name without arguments need not be the same model
            raise NotAsked(
                f"no config says the model's arguments, and timm's {case.architecture} does not load it"
            ) from error
        raise
    problems = list(_other_values(case, module, stored))
    said = f"timm holds all {counted(len(stored), 'tensor')} exactly as stored, at {case.size}"
    return _loaded(module, model, problems=problems, count=len(stored), said=said)


def source(case: Case, origin: Model) -> Loaded:
    """The source at its own size."""
    assert case.source is not None
    stored = below(case.source, origin)
    config = case.source.config
    if _by_loader(case.source, config, origin):
        return _loaded(_from_folder(case.source.path), origin)
    name = configs.architecture(config) or case.architecture
    arguments = configs.arguments(config) if configs.architecture(config) else case.arguments
    sized = origin.family.takes_img_size and origin.src_img is not None
    told: dict[str, Any] = {"num_classes": _classes(stored, config)}
    told |= {"img_size": list(origin.src_img or ())} if sized else {}
    return _loaded(_constructed(name, arguments, stored, told), origin)


def expected(case: Case, model: Model) -> Loaded | None:
    """The checkpoint's tensors in the model that the source's config builds; None where there are not two configs."""
    config = case.source.config if case.source is not None else None
    if case.plan is None or config is None or configs.architecture(config) is None:
        return None
    if not _by_loader(case.out, case.own, model):
        return None
    with with_config(case.out, config.path.name, configs.edited(config, case.plan.config)) as folder:
        return _loaded(_from_folder(folder), model)


def _by_loader(ckpt: Checkpoint, config: Config | None, model: Model | None) -> bool:
    """Whether timm's own loader reads it. Not where that would ask the hub for more: it need not be there."""
    fetches = model is not None and model.family.fetches
    return ckpt.folder is not None and ckpt.index is None and configs.architecture(config) is not None and not fetches


def _from_folder(folder: Path) -> nn.Module:
    import timm

    from .. import torch as _names  # noqa: F401 # tells timm the PEG models' names

    built: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
    return built.eval()


def _constructed(
    name: str | None, arguments: Mapping[str, Any] | None, stored: Mapping[str, TensorInfo], told: Mapping[str, Any]
) -> nn.Module:
    import timm

    from .. import torch as _names  # noqa: F401 # tells timm the PEG models' names

    built: nn.Module = timm.create_model(name or "", **{**(arguments or {}), **told})
    built.load_state_dict(as_tensors(stored))
    return built.eval()


def _classes(stored: Mapping[str, TensorInfo], *places: Config | Checkpoint | None) -> int:
    """How many classes the head tells apart, as its shape says it, or a config; 0 without a head."""
    if heads := [stored[head].shape[0] for head in HEADS if head in stored]:
        return heads[0]
    for place in places:
        config = place.config if isinstance(place, Checkpoint) else place
        for keys in (("pretrained_cfg", "num_classes"), ("num_classes",)):
            said = configs.fields.get(config.data if config is not None else {}, keys)
            if isinstance(said, int):
                return said
    return 0


def _told(case: Case, model: Model | None) -> dict[str, Any]:
    """What the constructor must be told of the size, and of a new patch and new windows."""
    told: dict[str, Any] = {}
    if model is None or model.family.takes_img_size:
        told["img_size"] = list(case.size)
    if case.plan is not None:
        told |= window_arguments(case.plan.models[0], case.plan.windows)
        if case.plan.patch is not None:
            high, wide = case.plan.patch
            told["patch_size"] = high if high == wide else (high, wide)
    return told


def _other_values(case: Case, built: nn.Module, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Where the model is not the file's: its size; each parameter or buffer that is not equal, bit by bit."""
    state = built.state_dict()
    size = getattr(getattr(built, "patch_embed", None), "img_size", None)
    if isinstance(size, (tuple, list)) and tuple(size) != case.size:
        yield f"timm builds it for {sides_text([*size])}, not {case.size}"
    for name in sorted(state.keys() ^ stored.keys()):
        yield f"{name} is {'only in the model' if name in state else 'not loaded'}"
    for name in sorted(state.keys() & stored.keys()):
        value, info = state[name], stored[name]
        if tuple(value.shape) != info.shape:
            yield f"{name} is {shape_text(value.shape)} in timm's model, {shape_text(info.shape)} in the file"
        elif not same(value, as_tensor(info)):
            yield f"{name} has other values in timm's model than in the file"


def _loaded(module: nn.Module, model: Model | None, **more: Any) -> Loaded:
    tables = {name: module.get_parameter(name) for name in (model.ruled if model is not None else ())}
    config = getattr(module, "pretrained_cfg", None) or {}
    mean, std = config.get("mean") or (), config.get("std") or ()

    def trunk(image: Tensor) -> tuple[Any, Any]:
        whole: Any = module.train().eval()  # some models keep gathered biases from one forward pass to the next
        return whole, whole.forward_features(image)

    def run(image: Tensor) -> Tensor:
        """Trunk and head: a head may be zero before it is trained, a table may stand in the head."""
        whole, features = trunk(image)
        return flattened((features, whole.forward_head(features)))

    def pooled(image: Tensor) -> Tensor:
        import torch

        whole, features = trunk(image)
        width = getattr(module, "num_features", None)
        ends = leaves(whole.forward_head(features, pre_logits=True))
        return torch.cat([averaged(one, width) for one in ends], 1)

    return Loaded(module, run, pooled, tables, mean=mean, std=std, **more)
