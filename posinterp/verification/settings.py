"""What config and preprocessor say: the new size where the source says the old one, the same everywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import config as configs
from ..config import huggingface
from ..errors import BadConfig
from ..size import Size, shape_text
from ..store import Config
from ..windows import window_arguments
from .case import Case
from .verdict import Check

# Fields that may say anything: they name, date or place a model, and no library computes otherwise for them.
WORDS = {
    "_commit_hash", "_name_or_path", "architecture", "architectures", "auto_map", "processor_class",
    "transformers_version", "use_cache",
}  # fmt: skip
# Of timm's pretrained_cfg: what a model expects of its images, and which classifier it has. The rest says where the
# weights are from. How an evaluation crops is a choice, which posinterp leaves as it was.
EXPECTED = ("mean", "std", "num_classes", "classifier", "first_conv", "label_offset", "label_names")
CHOSEN = ("interpolation", "crop_pct", "crop_mode")
# Fields that follow the size: held against the tensors and the plan, not against the source.
SIZES = {
    "img_size", "input_size", "test_input_size", "image_size", "patch_size", "pool_size", "window_size",
    "pretrained_window_size", "image_embedding_size", "size", "crop_size", "pad_size", *huggingface.TOKENS,
}  # fmt: skip


def check_config(case: Case) -> Check:
    """Its config says the size, the patch and the windows that its tensors have, and otherwise what the source's does.

    So does what prepares its images.
    """
    if case.own is None:
        return Check("config", "skip", "no config.json of its own")
    if configs.architecture(case.own) is None:
        return Check("config", "skip", "config.json names no timm architecture")
    try:
        said = list(configs.source_sizes(case.own))
        problems = [
            f"{where} says {size}, the weights are for {case.size}"
            for where, size in said
            if size != case.size and (where, size) not in _kept(case)
        ]
        problems += [f"it says {case.size}: {case.misfit}"] if case.misfit else _other_patch(case, case.own)
        problems += _other_windows(case, case.own)
        equal, others = _beside_the_source(case, case.own)
        problems += [*others, *_stale(case, case.own), *_other_preparation(case)]
    except BadConfig as error:
        return Check("config", "fail", error.message)
    if not said and not problems:
        told = [where for where, size in configs.prepared_size(case.out) if size == case.size]
        if not told:
            return Check("config", "skip", "config.json says no size")
        return Check.of("config", [], f"{' and '.join(told)} says {case.size}; config.json says none")
    words = f"{' and '.join(where for where, _ in said)} {'say' if len(said) > 1 else 'says'} {case.size}"
    words += f"; {equal} other fields as the source's" if equal else ""
    return Check.of("config", problems, words, compared=len(said) + equal)


def _kept(case: Case) -> list[tuple[str, Size]]:
    """Sizes in the source's config that are of another tower, and stay."""
    if case.plan is None or case.source is None or case.source.config is None:
        return []
    edited = {f"{edit.file} {edit.path}" for edit in case.plan.config}
    return [(where, size) for where, size in configs.source_sizes(case.source.config) if where not in edited]


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
    said = configs.arguments(own).get("patch_size")
    patch = case.models[0].family.patch
    if said is None or not patch.resizable:
        return []
    sides = patch.size(case.models[0].tensors)
    same = said == sides[0] == sides[1] if isinstance(said, int) else said == list(sides)
    return [] if same else [f"model_args.patch_size is {said}, the kernel {shape_text(sides)}"]


# ------------------------------------------------------------------ beside the source's


def _beside_the_source(case: Case, own: Config) -> tuple[int, list[str]]:
    """How many fields that both configs have, and that do not follow the size, are equal; and those that are not.

    What only one of them says is left to the forward pass: it may be a default, spelt out.
    """
    source = case.source.config if case.source is not None else None
    if case.plan is None or source is None:
        return 0, []
    was = dict(_compared(configs.edited(source, case.plan.config), made=case.made_by is not None))
    now = dict(_compared(own.data, made=case.made_by is not None))
    named = [config.data.get("architecture") for config in (own, source)]
    if named[0] != named[1]:  # another of timm's names: its arguments mean other things, and `forward` compares the two
        was = {keys: value for keys, value in was.items() if keys[0] == "pretrained_cfg"}
    both = [keys for keys in was if keys in now]
    code = own.data.get("auto_map")
    foreign = code not in (None, source.data.get("auto_map"))
    problems = [f"{own.path.name} names code that the source's does not: {_brief(code)}"] if foreign else []
    problems += [
        f"{own.path.name} {'.'.join(keys)} is {_brief(now[keys])}, the source's {_brief(was[keys])}"
        for keys in both
        if was[keys] != now[keys]
    ]
    return sum(was[keys] == now[keys] for keys in both), problems


def _stale(case: Case, own: Config) -> Iterator[str]:
    """Fields, beside the sizes themselves, that should have followed the size and say what the source's say.

    timm reads its pretrained_cfg for its own purposes only: of a file that is not posinterp's it may say anything.
    """
    if case.plan is None:
        return
    sizes = {where for where, _ in configs.source_sizes(own)}
    for edit in case.plan.config:
        value = configs.fields.get(own.data, edit.keys)
        free = case.made_by is None and edit.keys[0] == "pretrained_cfg"
        own_field = edit.file == own.path.name and f"{edit.file} {edit.path}" not in sizes
        if own_field and value == edit.before != edit.after and not free:
            yield f"{edit.file} {edit.path} is still {_brief(value)}, at {case.size} it is {_brief(edit.after)}"


def _compared(data: Mapping[str, Any], *, made: bool) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields of a config that must be the source's, by the keys that lead there.

    `made`: posinterp made the file, and changes nothing that the size does not.
    """
    for keys, value in _leaves(data):
        if keys[-1] in SIZES or keys[0] in WORDS or keys[-1] in WORDS:
            continue
        if keys[0] == "pretrained_cfg" and keys[1:2] and keys[1] not in (*EXPECTED, *(CHOSEN if made else ())):
            continue
        yield keys, value


def _leaves(data: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*keys, key))
        else:
            yield (*keys, key), value


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ------------------------------------------------------------------ what prepares an image


def _other_preparation(case: Case) -> Iterator[str]:
    """Where what prepares an image is still for the old size, or is not the source's otherwise."""
    if case.plan is None or case.source is None:
        return
    wanted = {prepared.path.name: prepared for prepared in huggingface.preparations(case.source)}
    for own in huggingface.preparations(case.out):
        if own.path.name not in wanted:
            continue
        name, source = own.path.name, wanted[own.path.name]
        said = huggingface.prepared_size(own.data)
        for edit in case.plan.config:
            value = configs.fields.get(own.data, edit.keys)
            if edit.file != name or value == edit.after or value is configs.fields.ABSENT:
                continue
            if value == edit.before or said != case.size:
                yield f"{name} {edit.path} is {_brief(value)}, at {case.size} it would be {_brief(edit.after)}"
        now = dict(_compared(own.data, made=True))
        for keys, value in _compared(source.data, made=True):
            if keys in now and now[keys] != value and not {*keys} & SIZES:
                yield f"{name} {'.'.join(keys)} is {_brief(now[keys])}, the source's {_brief(value)}"
