"""Which models a checkpoint holds: a family known by its tensors, and by its name where something says one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import config as configs
from .errors import Ambiguous, BadConfig, BadUsage, Mismatch, PosinterpError, UnknownFamily, did_you_mean
from .families import FAMILIES, family_named
from .measuring import POSITIONAL, RECORDED, Model, measure
from .rules import Family, Patch, Rule, matches
from .rules import named as named_by
from .size import Size, as_size, shape_text
from .store import Checkpoint

__all__ = ["Model", "architecture_of", "find_models", "models_of"]


def models_of(
    source: Checkpoint,
    *,
    family: str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    architecture: str | None = None,
    rules: Sequence[Rule] = (),
) -> list[Model]:
    """The models of an opened checkpoint, by all that it says of itself; `architecture`: if it does not say that."""
    named = architecture_of(source) or architecture
    claims = [*configs.source_sizes(source.config), *configs.recorded_size(source)]
    size = None if src_img is None else as_size(src_img)
    known: dict[str, Any] = {
        "claims": claims,
        "src_img": size,
        "arguments": arguments_of(source, source.config),
        "rules": rules,
    }
    recorded = source.recipe.get("family")
    if named is None and family is None and any(one.name == recorded for one in FAMILIES):
        with contextlib.suppress(UnknownFamily):  # nobody asked for it
            return find_models(source.tensors, family=recorded, **known)
    models = find_models(source.tensors, architecture=named, family=family, **known)
    if claims or size is not None or all(model.ruled for model in models):
        return models
    told = next(configs.prepared_size(source), None)  # of a table it would say nothing: it may be larger than the grid
    return [replace(one, origin=told[0], src_img=told[1]) if told and not one.ruled else one for one in models]


def architecture_of(source: Checkpoint) -> str | None:
    """The home library's name of the model, where something says it: the config, the hub, a training script's note."""
    if named := configs.architecture(source.config):
        return named
    if source.architecture and (source.fetched or any(family.knows(source.architecture) for family in FAMILIES)):
        return source.architecture
    return None  # a training script may call its model anything


def arguments_of(source: Checkpoint, config: configs.Config | None) -> dict[str, Any]:
    """The constructor's arguments, as far as a config says them, and the windows that the file's recipe says."""
    return {**configs.arguments(config), RECORDED: source.recipe.get("windows")}


# ------------------------------------------------------------------ which models a checkpoint holds


def find_models(
    tensors: Mapping[str, Any],
    *,
    architecture: str | None = None,
    family: str | None = None,
    claims: Sequence[tuple[str, Size]] = (),
    src_img: Size | None = None,
    arguments: Mapping[str, Any] | None = None,
    rules: Sequence[Rule] = (),
) -> list[Model]:
    """Every model of a known family among the tensors, each with its source size.

    `claims`: what says the source size, and what it says, the more trustworthy first; `src_img`: the user's word;
    `arguments`: of the home library's constructor; `rules`: the user's own, which come before a family's.

    Raises UnknownFamily where there is none, with the near misses; Ambiguous, Mismatch, BadConfig or BadFile where the
    size cannot be told.
    """
    if not tensors:
        raise UnknownFamily(
            "the file holds no tensors: nothing to resize", hint="is it a state dict, or a checkpoint that holds one?"
        )
    asked = family_named(family) if family else None
    if asked and all(family != one.name for one in asked):
        architecture = family  # the name of a model says more than a family's
    known = [one for one in asked or FAMILIES if _named_so(one, architecture, asked is not None)]
    found = _identify(tensors, known, named=asked is not None or architecture is not None)
    found = _outermost(found)
    owned = _owned(rules, tensors, found)
    if loose := owned.pop(None, {}):  # of no model that is known
        found[LOOSE] = [(OWN_RULES, {name: tensors[name] for name in loose})]
        owned[LOOSE] = loose
    if not found:
        raise _unknown(tensors, known or list(FAMILIES), architecture, family)
    models: dict[str, Model] = {}
    for root in sorted(found, key=lambda root: _unsized(found[root])):
        told = [("the model beside it", one.src_img) for one in models.values() if one.src_img is not None]
        models[root] = _first_that_fits(
            root,
            found[root],
            claims=[*claims, *told[:1]] if _unsized(found[root]) else claims,
            src_img=src_img,
            vouched=asked is not None,
            arguments=arguments or {},
            architecture=architecture,
            own=owned.get(root, {}),
        )
    return [models[root] for root in found]


Found = tuple[Family, dict[str, Any]]


def _unsized(candidates: Sequence[Found]) -> bool:
    """Whether a model does not show by itself how many pixels its places span: a predictor without patches."""
    rules = candidates[0][0].rules
    return bool(rules) and all(rule.side is None for rule in rules)


OWN_RULES = Family("own rules", has=(), patch=Patch(kernel=None), unit=1, home="", takes_img_size=False)
LOOSE = ""


def _owned(
    rules: Sequence[Rule], tensors: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str | None, dict[str, Rule]]:
    """The user's rules by the root of the model that holds their tensors (None: no model does), and the names below it.

    Raises BadUsage for a rule that names nothing, or a tensor that cannot have its layout.
    """
    owned: dict[str | None, dict[str, Rule]] = {}
    for rule in rules:
        names = list(named_by(rule.match, tensors))
        if not names:
            near = did_you_mean(rule.match, tensors)
            raise BadUsage(
                f"--rule {rule.match!r} names no tensor", hint=near.rstrip() or "`posinterp inspect` lists the names"
            )
        for name in names:
            if len(tensors[name].shape) != len(rule.layout.axes):
                raise BadUsage(
                    f"{name} has shape {shape_text(tensors[name].shape)}; the layout {rule.layout} has "
                    f"{len(rule.layout.axes)} axes"
                )
            root = max((root for root in found if name.startswith(root)), key=len, default=None)
            owned.setdefault(root, {}).setdefault(name[len(root or "") :], rule)
    return owned


def _first_that_fits(root: str, candidates: Sequence[Found], **known: Any) -> Model:
    """The model of the first family; of the next one where only the tensors' sizes tell the two apart."""
    fault: PosinterpError | None = None
    for family, below in candidates:
        try:
            return measure(root, family, below, **known)
        except (Ambiguous, Mismatch, BadConfig) as error:
            asks = isinstance(error, Ambiguous) and not isinstance(fault, Ambiguous)  # the user can answer
            fault = error if fault is None or asks else fault
            if not family.sized:
                break
    assert fault is not None
    raise fault


def _named_so(family: Family, architecture: str | None, asked: bool) -> bool:
    if asked or architecture is None:
        return True
    return family.knows(architecture)  # code that names nothing has families that know no name


def _identify(tensors: Mapping[str, Any], families: Sequence[Family], *, named: bool) -> dict[str, list[Found]]:
    """Root -> the families that hold there, the first one first, and the tensors below."""
    found: dict[str, list[Found]] = {}
    below: dict[str, dict[str, Any]] = {}
    for family in families:
        for root in dict.fromkeys(family.roots(tensors)):
            if root in found and not found[root][-1][0].sized:
                continue
            if root not in below:
                below[root] = {name[len(root) :]: info for name, info in tensors.items() if name.startswith(root)}
            if family.holds(below[root], named=named):
                found.setdefault(root, []).append((family, below[root]))
    return found


def _outermost(found: Mapping[str, list[Found]]) -> dict[str, list[Found]]:
    """Without what is a part of another model: a hybrid's backbone, a tower whose table the whole one speaks of."""

    def within(root: str, outer: str) -> bool:
        family, above = found[outer][0]
        inner = [root[len(outer) :] + name for name in found[root][0][0].ruled(found[root][0][1])]
        spoken = family.ruled(above)
        return all(name in spoken or any(matches(glob, name) for glob in family.leave) for name in inner)

    return {
        root: ones
        for root, ones in found.items()
        if not any(root != outer and root.startswith(outer) and within(root, outer) for outer in found)
    }


def _unknown(
    tensors: Mapping[str, Any], families: Sequence[Family], architecture: str | None, asked: str | None
) -> UnknownFamily:
    """Says what was looked for and what came near."""
    positions = [f"{name} {shape_text(info.shape)}" for name, info in tensors.items() if POSITIONAL.search(name)]
    near = [  # the widest family first, of those that lack as little
        (len(family.missing(below)), -place, family.name, family.missing(below))
        for place, family in enumerate(one for one in families if asked or (one.rules and one.unnamed is not None))
        for root in list(dict.fromkeys(family.roots(tensors)))[:4]
        for below in [{name[len(root) :]: info for name, info in tensors.items() if name.startswith(root)}]
    ]
    if asked:
        missing = _signs(sorted(near)[0][3] if near else families[0].has)
        return UnknownFamily(f"this is no {asked}: it lacks {missing}", hint="leave --family out")
    if not positions:
        return UnknownFamily(
            "no known family, and no position embedding: nothing to resize",
            hint="`posinterp families` lists what is known; --family NAME says which it is",
        )
    named = architecture if "/" in (architecture or "") else f"timm's {architecture}"
    if (architecture or "").startswith("transformers/"):
        named = f"transformers' model_type {str(architecture).replace('transformers/', '')}"
    which = f"{named} is" if architecture else "these tensors are"
    closest = min(near, default=None)
    hint = f"nearest: {closest[2]}, which wants {_signs(closest[3])}; " if closest and closest[0] else ""
    return UnknownFamily(
        f"{which} of no family known here; its positions: {', '.join(positions[:3])}{' ...' * (len(positions) > 3)}",
        hint=hint + "`posinterp families` lists what is known; --family NAME says which it is",
    )


def _signs(signs: Sequence[str]) -> str:
    """Signs for people: "pos_embed = 1 * *" is a pos_embed of shape 1×any×any."""
    named = (sign.partition(" = ") for sign in signs)
    shapes = ((name, shape.replace("*", "any").replace(" ", "×")) for name, _, shape in named)
    return ", ".join(f"{name} of shape {shape}" if shape else name for name, shape in shapes)
