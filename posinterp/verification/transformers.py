"""The word of transformers: it loads a folder without a tensor missing or left over, and computes with it.

No code of the checkpoint's own is run: only classes of the library itself.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..store.tensors import read_bytes
from .case import Case
from .verdict import Check, counted, some

if TYPE_CHECKING:
    from torch import nn

INPUTS = ("pixel_values", "pixel_values_videos", "input_values")
SAID = (("missing_keys", "missing"), ("unexpected_keys", "left over"), ("mismatched_keys", "of another shape"))


def check_transformers(case: Case) -> tuple[Check, Check]:
    """Loading by the class that the config names, and one forward pass where the model takes nothing but an image."""
    folder, names = case.out.folder, (case.own.data.get("architectures") if case.own is not None else None) or [""]
    try:
        import transformers
    except ImportError:
        return _skipped("transformers is not installed")
    kind = getattr(transformers, str(names[0]), None)
    if folder is None or kind is None:
        return _skipped("no folder with a config whose architectures name a class of transformers")
    import torch

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        try:
            with _quiet():
                model, said = kind.from_pretrained(
                    folder, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True
                )
        except Exception as error:  # whatever the library raises, the answer is that it does not load
            return Check("loads", "fail", _words(error)), Check("forward", "skip", "transformers does not load it")
        problems = [
            f"{what}: {some([str(key[0] if isinstance(key, tuple) else key) for key in said.get(key_of) or ()])}"
            for key_of, what in SAID
            if said.get(key_of)
        ]
        problems += list(_lost(case, model))
        fine = (
            f"transformers' {names[0]} finds {counted(len(case.out.tensors), 'tensor')}, none missing, none left over"
        )
        return Check.of("loads", problems, fine), _forward(case, model)


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


def _skipped(why: str) -> tuple[Check, Check]:
    return Check("loads", "skip", why), Check("forward", "skip", why)


def _words(error: Exception) -> str:
    return f"transformers: {' '.join(str(error).split())[:300] or type(error).__name__}"


def _lost(case: Case, model: nn.Module) -> Iterator[str]:
    """Each table whose values the model does not hold: in memory it may have another name."""
    from ..torch_io import tensor

    held: dict[tuple[int, ...], list[Any]] = {}
    for value in model.state_dict().values():
        held.setdefault(tuple(value.shape), []).append(value)
    for one in case.models:
        for name in one.ruled:
            info = case.out.tensors[one.root + name]
            stored = tensor(read_bytes(info), info.dtype, info.shape)
            same = held.get(info.shape, ())
            if not any((value == stored.to(value.dtype)).all() for value in same):
                yield f"no parameter of the model has the values of {info.name}"


def _forward(case: Case, model: Any) -> Check:
    """An image of the size, a clip or a spectrogram; and again with the tables moved."""
    import torch

    if model.main_input_name not in INPUTS or hasattr(model.config, "text_config") or _wants_more(model):
        return Check("forward", "skip", "the model takes more than an image")
    drawn = torch.Generator().manual_seed(0)
    kernels = [part for part in model.modules() if isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d))]
    channels = kernels[0].in_channels if kernels else 3
    frames = [n for one in case.models if (n := one.frames) is not None][:1]
    shape = (1, *case.size[::-1]) if model.main_input_name == "input_values" else (1, *frames, channels, *case.size)
    image = torch.randn(shape, generator=drawn).to(next(model.parameters()).dtype)
    shapes = {case.out.tensors[one.root + name].shape for one in case.models for name in one.ruled}
    try:
        first = _output(model.eval(), image)
        for value in model.parameters():
            if tuple(value.shape) in shapes:
                value.add_(torch.randn(value.shape, generator=drawn).to(value.dtype))
        change = float((_output(model, image) - first).abs().max())
    except Exception as error:  # the library's
        return Check("forward", "fail", _words(error))
    if not first.isfinite().all():
        return Check("forward", "fail", f"the features of an image of {case.size} are not finite")
    if not shapes:
        return Check("forward", "pass", f"an image of {case.size} gives finite features; no table to perturb")
    moved = f"an image of {case.size} gives finite features; perturbing the tables moves them"
    return Check.of("forward", [] if change > 0 else ["perturbing the tables changes nothing"], moved)


def _wants_more(model: Any) -> bool:
    """Whether a forward pass needs another argument than its image."""
    given = [one for name, one in inspect.signature(model.forward).parameters.items() if name not in INPUTS]
    return any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in given)


def _output(model: Any, image: Any) -> Any:
    import torch

    return torch.cat(list(_floats(model(**{model.main_input_name: image}), torch.Tensor)))


def _floats(value: Any, kind: type) -> Iterator[Any]:
    """All that an output holds, however nested."""
    if isinstance(value, kind):
        if value.is_floating_point():  # type: ignore[attr-defined]
            yield value.flatten().float()  # type: ignore[attr-defined]
    elif isinstance(value, dict):
        for one in value.values():
            yield from _floats(one, kind)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _floats(one, kind)
