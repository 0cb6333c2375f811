"""From two checkpoints to a case: the size the one should be for, its models, and the plan for the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import config as configs
from ..errors import Ambiguous, BadConfig, BadSize, BadUsage, PosinterpError, Unsupported
from ..families import FAMILIES
from ..models import Model, architecture_of, arguments_of, find_models, models_of
from ..optimizer import moment_edits
from ..planning import Plan, Wish, check_guesses, make_plan
from ..rules import Rule
from ..size import Size
from ..store import WEIGHTS, Checkpoint, Config
from ..windows import windows_fields
from .case import Case, branch_of, largest_branch, optimizer_branches
from .claims import recipe_of
from .contents import strays


class NotUnderstood(Exception):
    """The checkpoint cannot be read as any known model, though its source can."""


def prepare(
    out: Checkpoint,
    source: Checkpoint | None,
    asked: Size | None,
    wish: Wish,
    family: str | None,
    src_img: Size | None,
    rules: Sequence[Rule] = (),
) -> Case:
    """What to hold the checkpoint against.

    Raises NotUnderstood for a checkpoint that is no known model though its source is one; else what `verify` raises.
    """
    own = out.config if out.folder is not None or out.path.name in WEIGHTS else None
    made_by, fault = recipe_of(out)
    origins: list[Model] = []
    if source is not None:  # first: a source that cannot be understood is no fault of the checkpoint's
        name, _ = _built_from(source, own, out)
        origins = models_of(source, family=family, src_img=src_img, architecture=name, rules=rules)
        check_guesses(source, origins)
    name, arguments = _built_from(own, source, out)
    name = name or _timm_name(family)
    try:
        size, origin = _size(out, own, asked, made_by, name, family, rules)
    except Ambiguous as error:
        raise Ambiguous(error.message, hint="say the size the checkpoint is for with --img") from None
    except PosinterpError as error:
        if source is None:
            raise
        raise NotUnderstood(str(error)) from None
    models, misfit = _at(out, own, size, origin, name, family, rules)
    case = Case(
        out,
        own,
        size,
        origin,
        made_by,
        fault,
        models,
        misfit,
        source,
        wish=wish,
        architecture=name,
        arguments=arguments,
    )
    return case if source is None else _planned(case, source, origins, given=asked is not None)


def _built_from(*places: Config | Checkpoint | None) -> tuple[str | None, Mapping[str, Any] | None]:
    """timm's name of the model, and arguments of its constructor, from the first place that says them.

    The arguments are None where no config says them.
    """
    for place in places:
        config = place.config if isinstance(place, Checkpoint) else place
        if config is not None and (name := configs.architecture(config)):
            return name, configs.arguments(config)
        if isinstance(place, Checkpoint) and (name := architecture_of(place)):
            return name, None
    return None, None


def _timm_name(family: str | None) -> str | None:
    """What the user calls the family, if it is one of timm's models."""
    return family if family is not None and all(family != known.name for known in FAMILIES) else None


def _size(
    out: Checkpoint,
    own: Config | None,
    asked: Size | None,
    made_by: Mapping[str, Any] | None,
    name: str | None,
    family: str | None,
    rules: Sequence[Rule],
) -> tuple[Size, str]:
    """The size that the checkpoint should be for, and what says so."""
    if asked is not None:
        return asked, "--img"
    if made_by is not None:
        return Size.of(made_by["to"]).of_frames(made_by.get("frames")), "its recipe"
    known: dict[str, Any] = {"architecture": name, "family": family, "rules": rules}
    try:
        claims = list(configs.source_sizes(own))
        found = find_models(out.tensors, claims=claims, arguments=arguments_of(out, own), **known)[0]
    except BadConfig:  # a config that says another size than the tensors is for the check of that name to tell
        found = find_models(out.tensors, **known)[0]
    if found.src_img is None:
        raise Ambiguous("nothing in the checkpoint says its size")
    return found.src_img, found.origin


def _at(
    out: Checkpoint,
    own: Config | None,
    size: Size,
    origin: str,
    name: str | None,
    family: str | None,
    rules: Sequence[Rule],
) -> tuple[tuple[Model, ...], str]:
    """The checkpoint's models at a size; or why it holds none."""
    known: dict[str, Any] = {"architecture": name, "family": family, "arguments": arguments_of(out, own)}
    try:
        return tuple(find_models(out.tensors, src_img=size, rules=rules, **known)), ""
    except PosinterpError as error:
        return (), error.message.replace("--src-img", origin)


# ------------------------------------------------------------------ the plan


def _planned(case: Case, source: Checkpoint, origins: Sequence[Model], *, given: bool) -> Case:
    """The case with the plan that should have been followed."""
    branches = _alignments(source, origins, case.out)
    first = branches[0]
    patch = _patch(case, origins[0], first)
    try:
        plan = make_plan(source, origins, case.size, replace(case.wish, window=_windows(case, origins[0])), patch=patch)
    except (BadSize, BadUsage) as error:
        if given:
            raise
        return replace(case, unplanned=f"the source has no size {case.size}: {error.message}")
    case = replace(case, plan=_with_moments(plan, case.out, first), names=first)
    if len(branches) > 1:  # one set of weights out of several: the one that it equals, if any
        tries = (replace(case, names=names) for names in branches)
        case = next((one for one in tries if not any(strays(one))), case)
    return case


def _with_moments(plan: Plan, out: Checkpoint, names: Mapping[str, str]) -> Plan:
    """The plan with what an optimizer's moments should have become, where the checkpoint kept them."""
    kept = optimizer_branches(out)
    if not plan.edits or not any(name.startswith(kept) for name in names):
        return plan
    try:
        return replace(plan, optimizer="keep", moments=moment_edits(plan.source, plan.edits))
    except Unsupported:  # whose they are is not certain: those of another shape are found to differ
        return plan


def _patch(case: Case, origin: Model, names: Mapping[str, str]) -> tuple[int, int] | None:
    """The sides (height, width) of the patch, if it is a new one."""
    said = (case.made_by or {}).get("patch")
    if isinstance(said, list) and len(said) == 2 and all(isinstance(side, int) and side > 0 for side in said):
        return said[0], said[1]
    kernel = origin.family.patch.kernel
    if kernel is None or not origin.family.patch.resizable:
        return None
    info = case.out.tensors.get(names.get(origin.root + kernel, ""))
    own = origin.tensors[kernel].shape
    if info is None or len(info.shape) != len(own) or 0 in info.shape:
        return None
    found = origin.family.patch.kernel_axes(own).readable(info.shape)
    sides = found["h"], found["w"]
    return sides if origin.family.patch.size(origin.tensors) != sides else None


def _windows(case: Case, origin: Model) -> Any:
    """The windows that the checkpoint is built with, as its config or its tables say; the source's own without any."""
    recorded = (case.made_by or {}).get("windows")
    if origin.family.window is not None and recorded and not origin.ruled:  # no table shows them
        return recorded
    windows = case.models[0].windows if case.models else {}
    if not windows or not origin.windows:
        return "keep"
    return windows_fields(windows)


def _alignments(source: Checkpoint, origins: Sequence[Model], out: Checkpoint) -> list[dict[str, str]]:
    """The source's names -> the checkpoint's: as they are, or one branch of a pickle in another container."""
    if not any(file.pickled for file in (*source.files, *out.files)):  # "/" is a part of names then
        return [{name: name for name in source.tensors}]
    branches = list(dict.fromkeys(branch_of(model.root) for model in origins))
    if set(branches) <= {*map(branch_of, out.tensors)}:
        gone = tuple({*optimizer_branches(source)} - {*optimizer_branches(out)})
        return [{name: name for name in source.tensors if not name.startswith(gone)}]
    place = largest_branch(out)
    return [
        {name: place + name[len(branch) :] for name in source.tensors if branch_of(name) == branch}
        for branch in branches
    ]
