"""What a checkpoint says of itself: its index and its recipe. No tensor is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BadConfig, BadSize, BadUsage
from ..method import Method
from ..planning import Plan
from ..size import Size
from ..store import RECIPE, Checkpoint, read_json
from ..store.tensors import byte_size
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
        about = read_json(case.out.index, what="index", error=BadConfig).get("metadata")
        said = about.get("total_size") if isinstance(about, dict) else None
        if said not in (None, total):
            problems.append(f"{case.out.index.name} says {said} bytes of tensors; there are {total}")
    what = f"{case.models[0].family.name} at {case.size} ({case.origin})" if case.models else ""
    fine = f"{what}; {counted(len(tensors), 'tensor')}, {total / 1e6:.1f} MB in {files}"
    return Check.of("file", problems, fine, compared=len(tensors))


# ------------------------------------------------------------------ recipe


def recipe_of(out: Checkpoint) -> tuple[dict[str, Any] | None, str]:
    """How posinterp made the checkpoint, if it did; and what is wrong with what it says."""
    told = [_told(file.metadata, file.tree) for file in out.files]
    texts = sorted({text for text in told if text is not None})  # shards that did not change say nothing
    if not texts:
        return None, ""
    if len(texts) > 1:
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
    fine = f"made for {to} from {sides_text(case.made_by.get('from'))}; {compared}"
    return Check.of("recipe", problems, fine, compared=len(case.made_by["tensors"]))


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
