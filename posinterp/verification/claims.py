"""What a checkpoint says of itself: its index, its recipe, its config. No tensor is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import config as configs
from ..errors import BadConfig, BadSize, BadUsage
from ..method import Method
from ..planning import Plan
from ..size import Size, shape_text
from ..store import RECIPE, Checkpoint, Config, read_json
from ..store.tensors import byte_size
from ..windows import window_arguments
from ..writing import recipe
from .case import Case, within_branch
from .verdict import Check, counted, sides_text, some


def check_file(case: Case) -> Check:
    """It is what it is said to be: a known model at that size, as many bytes as its index says."""
    tensors = case.out.tensors
    total = sum(byte_size(info.dtype, info.shape) for info in tensors.values())
    files = some([file.path.name for file in case.out.files])
    problems = [case.misfit] if case.misfit else []
    if case.out.index is not None:
        said = (read_json(case.out.index, what="index", error=BadConfig).get("metadata") or {}).get("total_size")
        if said not in (None, total):
            problems.append(f"{case.out.index.name} says {said} bytes of tensors; there are {total}")
    what = f"{case.models[0].family.name} at {case.size} ({case.origin})" if case.models else ""
    return Check.of("file", problems, f"{what}; {counted(len(tensors), 'tensor')}, {total / 1e6:.1f} MB in {files}")


# ------------------------------------------------------------------ recipe


def recipe_of(out: Checkpoint) -> tuple[dict[str, Any] | None, str]:
    """How posinterp made the checkpoint, if it did; and what is wrong with what it says."""
    told = [_told(file.metadata, file.tree) for file in out.files]
    texts = sorted({text for text in told if text is not None})
    if not texts:
        return None, ""
    if len(texts) > 1 or None in told:
        return None, "its files do not carry the same recipe"
    found = out.recipe
    try:
        Size.of(found["to"])
        if not all(isinstance(how, str) and method_named(how) for how in found["tensors"].values()):
            return None, "its recipe names a method that there is not"
    except (KeyError, TypeError, AttributeError, BadSize):
        return None, "its recipe cannot be read"
    return found, ""


def _told(metadata: Mapping[str, str], tree: Any) -> str | None:
    text = tree.get(RECIPE) if isinstance(tree, dict) else metadata.get(RECIPE)
    return text if isinstance(text, str) else None


def method_named(text: str) -> Method | None:
    """A method from the words by which a recipe names it ("bicubic, offset 0.1"); None if there is no such."""
    name, *more = text.split(", ")
    offsets = [word.removeprefix("offset ") for word in more if word.startswith("offset ")]
    try:
        offset = float(offsets[0]) if offsets else None
        found = Method(
            name,
            antialias="antialias" in more,
            align_corners="align-corners" in more,
            offset=offset,
            mirrored="mirrored" in more,
        )
    except (BadUsage, ValueError):
        return None
    return found if str(found) == text else None


def check_recipe(case: Case) -> Check:
    """Its recipe is the one that makes it of this source."""
    if case.made_by is None:
        if case.recipe_fault:
            return Check("recipe", "fail", case.recipe_fault)
        return Check("recipe", "skip", "no recipe: not made by posinterp, or a bare pickle, which has no place for one")
    to = Size.of(case.made_by["to"])
    problems = [f"it says {to}, --img {case.size}"] if to != case.size else []
    if case.misfit:
        problems.append(f"it says {to}: {case.misfit}")
    if case.plan is not None:
        problems += _other_recipe(case.made_by, case.plan)
    compared = "source digest and methods as recorded" if case.plan is not None else "its source was not compared"
    return Check.of("recipe", problems, f"made for {to} from {sides_text(case.made_by.get('from'))}; {compared}")


def _other_recipe(said: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Where a recipe is not the one that makes the checkpoint of this source."""
    right = recipe(plan)
    for key, what in (("family", "family"), ("from", "source size"), ("source", "source digest")):
        if said.get(key) != right[key]:
            yield f"its {what} is {_brief(said.get(key))}, the source's {_brief(right[key])}"
    if astray := {*map(within_branch, said["tensors"])} ^ {*map(within_branch, right["tensors"])}:
        yield f"its tensors are not those that the size changes: {some(sorted(astray))}"


def _brief(value: Any) -> str:
    text = sides_text(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


# ------------------------------------------------------------------ config


def check_config(case: Case) -> Check:
    """Its config says the size, and the patch, that its tensors have."""
    if case.own is None:
        return Check("config", "skip", "no config.json of its own")
    if configs.architecture(case.own) is None:
        return Check("config", "skip", "config.json names no timm architecture")
    try:
        said = list(configs.source_sizes(case.own))
    except BadConfig as error:
        return Check("config", "fail", error.message)
    problems = [f"{where} says {size}, the weights are for {case.size}" for where, size in said if size != case.size]
    problems += [f"it says {case.size}: {case.misfit}"] if case.misfit else _other_patch(case, case.own)
    problems += _other_windows(case, case.own)
    if not said:
        return Check("config", "skip", "config.json says no size")
    return Check.of("config", problems, f"{' and '.join(where for where, _ in said)} say {case.size}")


def _other_windows(case: Case, own: Config) -> list[str]:
    """Windows in the config that are not those of the plan."""
    if case.plan is None:
        return []
    said = configs.arguments(own)
    wanted = window_arguments(case.plan.models[0], case.plan.windows)
    return [
        f"model_args.{key} is {said.get(key)}, not {value}" for key, value in wanted.items() if said.get(key) != value
    ]


def _other_patch(case: Case, own: Config) -> list[str]:
    """A patch size in the config that is not the kernel's."""
    said = (own.data.get("model_args") or {}).get("patch_size")
    patch = case.models[0].family.patch
    if said is None or not patch.resizable:
        return []
    sides = patch.size(case.models[0].tensors)
    same = said == sides[0] == sides[1] if isinstance(said, int) else said == list(sides)
    return [] if same else [f"model_args.patch_size is {said}, the kernel {shape_text(sides)}"]
