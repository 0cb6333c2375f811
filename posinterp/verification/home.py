"""The home library's word: timm loads the checkpoint, holds exactly its values, and computes with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import config as configs
from ..models import Model
from ..rules import named
from ..size import shape_text
from ..store.tensors import TensorInfo, read_bytes
from ..windows import window_arguments
from .case import Case, largest_branch
from .transformers import check_transformers
from .verdict import Check, counted, sides_text, some

if TYPE_CHECKING:
    from torch import Tensor, nn


def check_home(case: Case) -> tuple[Check, Check]:
    """Loading in timm, and one forward pass there."""
    if case.models and case.models[0].family.home == "transformers":
        return check_transformers(case)
    if why := _homeless(case):
        return Check("loads", "skip", why), Check("forward", "skip", why)
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():  # timm draws initial weights
        return _loaded_and_run(case)


def _homeless(case: Case) -> str:
    """Why the home library is not asked."""
    if case.models and case.models[0].family.home != "timm":
        home = case.models[0].family.home
        return f"its home library is {home}, not timm" if home else "its home library is not known"
    return "" if case.architecture else "no config says which architecture; --family MODEL does"


def _loaded_and_run(case: Case) -> tuple[Check, Check]:
    problems: list[str] = []
    faults: list[str] = []
    count, seen = 0, ""
    for model in case.models or (None,):
        stored = _stored(case, model)
        try:
            built = _build(case, stored)
            problems += _other_values(case, built, stored)
            count += len(stored)
        except Exception as error:  # whatever timm raises, the answer is that it does not load
            if case.arguments is None:  # a name without arguments need not be the same model
                why = f"no config says the model's arguments, and timm's {case.architecture} does not load it"
                return Check("loads", "skip", why), Check("forward", "skip", why)
            problems.append(of_timm(error))
            continue
        if model is not None:
            fault, seen = _run(case, built, model)
            faults += [fault] if fault else []
    loads = Check.of("loads", problems, f"timm holds all {counted(count, 'tensor')} exactly as stored, at {case.size}")
    if not (faults or seen):
        return loads, Check("forward", "skip", "timm does not load it")
    return loads, Check.of("forward", faults, f"an image of {case.size} gives finite features; {seen}")


def of_timm(error: Exception) -> str:
    return f"timm: {' '.join(str(error).split())[:300] or type(error).__name__}"


def _stored(case: Case, model: Model | None) -> dict[str, TensorInfo]:
    """The tensors of one model, by the home library's names; of the largest branch where no model was found."""
    root = model.root if model is not None else largest_branch(case.out)
    below = {name[len(root) :]: info for name, info in case.out.tensors.items() if name.startswith(root)}
    drop = {name for glob in model.family.drop for name in named(glob, below)} if model is not None else set()
    return {name: info for name, info in below.items() if "/" not in name and name not in drop}


def _build(case: Case, stored: Mapping[str, TensorInfo]) -> nn.Module:
    """The model in timm: by its own loader from a folder, which believes the config; else from the file's tensors.

    Also from those where the loader would ask the hub for more: it need not be there.
    """
    import timm

    from .. import torch as _names  # noqa: F401 # tells timm the PEG models' names
    from ..torch_io import tensor

    built: nn.Module
    fetches = any(model.family.fetches for model in case.models)
    if case.out.folder is not None and case.out.index is None and configs.architecture(case.own) and not fetches:
        built = timm.create_model(f"local-dir:{case.out.folder}", pretrained=True)
        return built.eval()
    patch = {"patch_size": case.plan.patch[0]} if case.plan is not None and case.plan.patch else {}
    heads = [stored[head].shape[0] for head in ("head.weight", "head.fc.weight") if head in stored]
    more = {**patch, **_sizes(case), "num_classes": heads[0] if heads else 0}
    built = timm.create_model(case.architecture or "", **{**(case.arguments or {}), **more})
    built.load_state_dict({key: tensor(read_bytes(info), info.dtype, info.shape) for key, info in stored.items()})
    return built.eval()


def _sizes(case: Case) -> dict[str, Any]:
    """What the constructor must be told of the size, and of new windows."""
    if case.models and not case.models[0].family.takes_img_size:
        size: dict[str, Any] = {}
    else:
        size = {"img_size": list(case.size)}
    if case.plan is not None:
        size |= window_arguments(case.plan.models[0], case.plan.windows)
    return size


def _other_values(case: Case, built: nn.Module, stored: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Where the model is not the file's: its size; each parameter or buffer that is not equal, bit by bit."""
    from ..torch_io import tensor

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
        elif not (value == tensor(read_bytes(info), info.dtype, info.shape).to(value.dtype)).all():
            yield f"{name} has other values in timm's model than in the file"


def _run(case: Case, built: nn.Module, model: Model) -> tuple[str, str]:
    """One image through the model, and again with the position tables moved: what is wrong, and what was seen."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    channels = next((part.in_channels for part in built.modules() if isinstance(part, torch.nn.Conv2d)), 3)
    image = torch.randn(1, channels, *case.size, generator=drawn)
    tables = some(list(model.ruled))
    try:
        first = _features(built, image)
        for name in model.ruled:
            table = built.get_parameter(name)
            table.add_(torch.randn(table.shape, generator=drawn) * (table.std() + 0.02))
        change = float((_features(built, image) - first).abs().max())
    except Exception as error:  # the home library's
        return of_timm(error), ""
    if not first.isfinite().all():
        return f"the features of an image of {case.size} are not finite", ""
    if not model.ruled:
        return "", "no table to perturb"
    return "" if change > 0 else f"perturbing {tables} changes nothing", f"perturbing {tables} moves them"


def _features(built: nn.Module, image: Tensor) -> Tensor:
    """What the trunk and the head compute: a head may be zero before it is trained, a table may stand in the head."""
    import torch

    whole: Any = built.train().eval()  # some models keep gathered biases from one forward pass to the next
    trunk = whole.forward_features(image)
    return torch.cat([value.flatten().float() for value in _leaves((trunk, whole.forward_head(trunk)))])


def _leaves(value: Any) -> Iterator[Tensor]:
    """The tensors of nested lists, tuples and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif value is not None:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
