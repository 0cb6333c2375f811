"""The home library's word: it loads the checkpoint, holds exactly its values, and computes with them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from .. import config as configs
from ..models import Model
from ..size import Size
from . import open_clip, timm, transformers, vit_pytorch
from .case import Case
from .images import Images
from .loaded import Loaded, NotAsked, in_words
from .verdict import Check, some

if TYPE_CHECKING:
    from torch import Tensor

LIBRARIES = {"timm": timm, "transformers": transformers, "open_clip": open_clip, "vit-pytorch": vit_pytorch}
LOADS, FORWARD, SIMILARITY = "loads", "forward", "similarity"
EQUAL = (
    1e-6  # of the largest feature: the same operations on the same numbers differ by nothing, or by an order of sums
)


def check_home(case: Case, images: Images, fail_under: float | None) -> tuple[Check, Check, Check]:
    """Loading in the home library, a forward pass there, and what it computes beside what the source does."""
    home = case.models[0].family.home if case.models else "timm"
    if case.out.folder is not None and configs.is_open_clip(case.own):  # whose tower may be timm's
        home = "open_clip"
    library = LIBRARIES.get(home)
    try:
        if library is None:
            raise NotAsked(f"its home library is {home or 'not known'}, which is not asked")
        library.asked(case)
    except NotAsked as why:
        return _skipped(str(why), fail_under)
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():  # libraries draw initial weights
        return _loaded_and_run(case, library, home, images, fail_under)


def _skipped(why: str, fail_under: float | None) -> tuple[Check, Check, Check]:
    return Check(LOADS, "skip", why), Check(FORWARD, "skip", why), _not_measured(why, fail_under)


def _not_measured(why: str, fail_under: float | None) -> Check:
    """A similarity that is asked for and cannot be had is none that passes."""
    if fail_under is None:
        return Check(SIMILARITY, "skip", why)
    return Check(SIMILARITY, "fail", f"not measured, so not {fail_under} or more: {why}")


def _loaded_and_run(
    case: Case, library: ModuleType, home: str, images: Images, fail_under: float | None
) -> tuple[Check, Check, Check]:
    problems: list[str] = []
    runs: list[Check] = []
    alike: list[Check] = []
    count, said = 0, ""
    for model in case.models or (None,):
        try:
            loaded: Loaded = library.result(case, model)
        except NotAsked as why:
            return _skipped(str(why), fail_under)
        except Exception as error:  # whatever the library raises, the answer is that it does not load
            problems.append(in_words(home, error))
            continue
        problems += loaded.problems
        count, said = count + loaded.count, loaded.said
        if model is not None:
            vectors = _vectors(case.size, loaded, images) if case.source is not None else ""
            runs.append(_forward(case, library, home, loaded, model))
            del loaded  # one model in memory at a time
            alike.append(_similar(case, library, home, model, images, vectors, fail_under))
    if count and len(case.models) > 1:
        said = said.replace(f"all {count // len(case.models)} ", f"all {count} ", 1)
    loads = Check.of(LOADS, problems, said, compared=count)
    unloaded = f"{home} does not load it"
    return loads, _worst(runs, Check(FORWARD, "skip", unloaded)), _worst(alike, _not_measured(unloaded, fail_under))


def _worst(checks: list[Check], otherwise: Check) -> Check:
    """Of several models' checks the one that failed, or says most."""
    order = ("fail", "pass", "skip")
    return min(checks, key=lambda check: (order.index(check.status), -(check.difference or 0.0)), default=otherwise)


# ------------------------------------------------------------------ one forward pass


def _forward(case: Case, library: ModuleType, home: str, loaded: Loaded, model: Model) -> Check:
    """An image through the model; through the one that the source's config builds; and with the tables moved."""
    import torch

    try:
        image = loaded.noise(case.size)
        first = loaded.run(image)
        if not first.isfinite().all():
            kept = case.allow_nonfinite and any(not table.isfinite().all() for table in loaded.tables.values())
            why = f"the features of an image of {case.size} are not finite"
            return Check(FORWARD, "skip", f"{why}: nor is a table") if kept else Check(FORWARD, "fail", why)
        fine, difference = f"an image of {case.size} gives finite features", 0.0
        if (other := library.expected(case, model)) is not None:
            again = other.run(image)
            difference = float((again - first).abs().max()) if again.shape == first.shape else float("inf")
            if not difference <= EQUAL * float(first.abs().max()):
                why = f"they are off by {difference:.1e}" if again.shape == first.shape else "of another number"
                return Check(FORWARD, "fail", f"its config computes other features than the source's: {why}")
            fine += ", those of the source's config"
        if not loaded.tables:
            return Check.of(FORWARD, [], f"{fine}; no table to perturb", compared=1, difference=difference)
        drawn = torch.Generator().manual_seed(0)
        for table in loaded.tables.values():
            noise = torch.randn(table.shape, generator=drawn) * (table.float().std(correction=0) + 0.02)
            table.add_(noise.to(table.dtype))
        moved = float((loaded.run(image) - first).abs().max())
    except NotAsked as why:
        return Check(FORWARD, "skip", str(why))
    except Exception as error:  # the home library's
        return Check(FORWARD, "fail", in_words(home, error))
    names = some(list(loaded.tables))
    problems = [] if moved > 0 else [f"perturbing {names} changes nothing"]
    return Check.of(FORWARD, problems, f"{fine}; perturbing {names} moves them", compared=1, difference=difference)


# ------------------------------------------------------------------ beside the source


def _vectors(size: Size, loaded: Loaded, images: Images) -> list[Tensor] | str:
    """One vector of features for each image, at a size; or why there are none."""
    import torch

    if loaded.pooled is None:
        return "the model gives no features that can be compared"
    if loaded.channels not in (1, 3):
        return f"the model takes images of {loaded.channels} channels"
    kind = next(loaded.module.parameters()).dtype
    found = []
    for draw in images.draw:
        pixels = torch.from_numpy(draw(size, loaded.channels, loaded.mean, loaded.std))[None]
        try:
            found.append(loaded.pooled(pixels.to(kind)).double())
        except NotAsked as why:
            return str(why)
        except Exception as error:  # the home library's; that it cannot run is for `forward` to fail
            return f"it does not run: {' '.join(str(error).split())[:200]}"
    return found


def _similar(
    case: Case,
    library: ModuleType,
    home: str,
    model: Model,
    images: Images,
    after: list[Tensor] | str,
    fail_under: float | None,
) -> Check:
    """Cosine similarity of the source's features at its own size and the checkpoint's at the new one."""
    if case.source is None:
        return _not_measured("no --against: nothing to compare with", fail_under)
    if isinstance(after, str):
        return _not_measured(after, fail_under)
    origin = origin_of(case, model)
    if origin is None or origin.src_img is None:
        return _not_measured("the source's size is not known", fail_under)
    try:
        before = _vectors(origin.src_img, library.source(case, origin), images)
    except NotAsked as why:
        return _not_measured(f"the source: {why}", fail_under)
    except Exception as error:
        return _not_measured(f"the source does not load: {in_words(home, error)}", fail_under)
    if isinstance(before, str):
        return _not_measured(f"the source: {before}", fail_under)
    if any(old.shape != new.shape for old, new in zip(before, after, strict=True)):
        return _not_measured("the source has features of another width", fail_under)
    cosines = [_cosine(old, new) for old, new in zip(before, after, strict=True)]
    mean, lowest = sum(cosines) / len(cosines), min(cosines)
    sizes = f"source at {origin.src_img}, this at {case.size}"
    what = f"cosine {mean:.3f} of pooled features, {sizes}; {len(cosines)} {images.what}, the lowest {lowest:.3f}"
    if mean != mean:  # NaN
        return _not_measured("features are not finite, or zero", fail_under)
    problems = [f"{what}: under {fail_under}"] if fail_under is not None and mean < fail_under else []
    return Check.of(SIMILARITY, problems, what, compared=len(cosines), difference=1 - mean)


def _cosine(one: Tensor, other: Tensor) -> float:
    """Cosine of two vectors (1, d); NaN where one is not finite, or zero."""
    length = float(one.norm() * other.norm())
    return float((one * other).sum()) / length if length else float("nan")


def origin_of(case: Case, model: Model) -> Model | None:
    """The source's model of which this one was made."""
    whence = {target: name for name, target in case.names.items()}
    name = next((whence[model.root + name] for name in model.tensors if model.root + name in whence), None)
    found = [origin for origin in (case.plan.models if case.plan is not None else ()) if name is not None]
    return max((one for one in found if str(name).startswith(one.root)), key=lambda one: len(one.root), default=None)
