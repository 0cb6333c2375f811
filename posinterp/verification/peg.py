"""Proving what a PEG model's mode promises: that it is its source, or its source with the table folded away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config as configs
from ..config.fields import ABSENT, get
from ..errors import PosinterpError
from ..pegging import BIAS, TABLE, TOKENS, PegPlan, plan_peg, record_of
from ..rules import named
from ..size import shape_text
from ..store import Checkpoint
from ..store.tensors import TensorInfo, read_bytes
from .case import Case
from .contents import check_values, unlike
from .loaded import in_words
from .resampled import check_resampled
from .verdict import Check, Verdict, counted

if TYPE_CHECKING:
    from torch import Tensor

PEGS = "peg.*.proj.weight"
NEAR = 1e-4  # of the largest value: float32 sums in another order


@dataclass(frozen=True)
class PegCase:
    """`plan`: what should have become of the source; `said`: what the file says of its making; `images`: real ones."""

    out: Checkpoint
    plan: PegPlan
    said: dict[str, Any]
    images: Path | None = None

    @property
    def trained(self) -> bool:
        return bool(self.said.get("steps"))


def is_pegged(ckpt: Checkpoint) -> bool:
    """Whether a checkpoint has PEGs of this package's making."""
    return any(named(PEGS, ckpt.tensors))


def verify_peg(out: Checkpoint, source: Checkpoint, *, images: Path | None = None, **wishes: Any) -> Verdict:
    """Hold a PEG checkpoint against the one it was made from. Raises what `plan_peg` raises for that one."""
    said = record_of(out) or {}
    tensors = out.tensors
    kernels = {int(name.split(".")[1]): tensors[name].shape for name in named(PEGS, tensors)}
    known = said.get("mode") or ("hybrid" if TABLE in tensors else "replace")
    size = out.recipe.get("to")
    plan_peg(source, **wishes)  # a source that can have no PEGs is no fault of the checkpoint's
    try:
        plan = plan_peg(
            source,
            mode=known,
            img=size if isinstance(size, list) else None,
            after=sorted(kernels),
            kernel=max(shape[-1] for shape in kernels.values()),
            pool="avg" if "cls_token" not in tensors and "cls_token" in {*_names(source)} else "token",
            **wishes,
        )
    except PosinterpError as error:
        return Verdict((Check("file", "fail", f"it was not made of {source.path}: {error.message}"),))
    case = PegCase(out, plan, said, images)
    looks = [_file, _untouched, *([_folded] if plan.mode != "hybrid" else [])]
    looks += [_resampled, _values] if plan.resizing.edits and not case.trained else []
    return Verdict((*(look(case) for look in looks), _config(case), *_home(case)))


def _names(source: Checkpoint) -> Iterator[str]:
    yield from (name.rpartition("/")[2] for name in source.tensors)


# ------------------------------------------------------------------ what the file holds


def _file(case: PegCase) -> Check:
    plan = case.plan
    wanted, found = plan.resizing.source.tensors, case.out.tensors
    shapes = {edit.name: edit.new_shape for edit in plan.resizing.edits}
    problems = [
        f"{name} is {'missing' if name in wanted else 'extra'}" for name in sorted(wanted.keys() ^ found.keys())
    ]
    for name in sorted(wanted.keys() & found.keys()):
        shape = shapes.get(name, wanted[name].shape)
        if found[name].shape != shape:
            problems.append(f"{name} is {shape_text(found[name].shape)}, not {shape_text(shape)}")
    said = {key: case.said[key] for key in ("mode", "after", "kernel", "pool") if key in case.said}
    right = {key: plan.record[key] for key in said}
    problems += [f"it says {key} {said[key]}, its tensors {right[key]}" for key in said if said[key] != right[key]]
    blocks = ", ".join(map(str, plan.after))
    fine = f"{plan.mode}: PEG {plan.kernel}×{plan.kernel} after block {blocks}; {counted(len(found), 'tensor')}"
    return Check.of("file", problems, fine)


def _untouched(case: PegCase) -> Check:
    """What no mode changes is the source's, byte for byte; a new PEG of a hybrid is zero."""
    if case.trained:
        return Check("untouched", "skip", f"{case.said['steps']} steps of distillation changed every tensor")
    plan, found = case.plan, case.out.tensors
    touched = {*plan.made, *plan.changed, *plan.dropped, *(edit.name for edit in plan.resizing.edits)}
    same = [name for name in plan.before.tensors if name in found and name not in touched]
    problems = [f"{name} {why}" for name in same if (why := unlike(plan.before.tensors[name], found[name]))]
    pegs = [name for name in plan.made if name.startswith("peg.") and name in found]
    zero = not any(any(read_bytes(found[name])) for name in pegs)
    if not zero and not case.said.get("fitted"):
        problems.append("its PEGs are not zero, and it does not say that they were fitted: were they trained?")
    fine = f"{counted(len(same), 'tensor')} byte-equal to the source's; PEGs {'zero' if zero else 'fitted'}"
    return Check.of("untouched", problems, fine)


def _resampled(case: PegCase) -> Check:
    return check_resampled(_resizing(case))


def _values(case: PegCase) -> Check:
    return check_values(_resizing(case))


def _resizing(case: PegCase) -> Case:
    """The part of it that `resize` does."""
    plan = case.plan
    names = {name: name for name in plan.before.tensors}
    size = plan.resizing.dst_img
    return Case(case.out, None, size, "its recipe", source=plan.before, plan=plan.resizing, names=names)


def _folded(case: PegCase) -> Check:
    """The bias and the tokens are the source's and the table's constant part, summed by torch in float64."""
    import torch

    if case.trained:
        return Check("folded", "skip", "the distillation went on from there")
    from ..torch_io import tensor

    def exact(info: TensorInfo) -> Tensor:
        value: Tensor = tensor(read_bytes(info), info.dtype, info.shape).double()
        return value

    plan, old, new = case.plan, case.plan.before.tensors, case.out.tensors
    table, rows = exact(old[TABLE]), plan.model.extra[TABLE]
    wanted = {BIAS: (exact(old[BIAS]) if BIAS in old else 0) + table[0, rows:].mean(0)}
    at = 0
    for name in TOKENS:
        if name in old and rows:
            count = old[name].shape[1]
            wanted[name] = exact(old[name]) + table[:, at : at + count]
            at += count
    problems, largest = [], 0.0
    for name in (name for name in wanted if name in new and name not in plan.dropped):
        step = torch.finfo(tensor(read_bytes(new[name]), new[name].dtype, new[name].shape).dtype).eps
        off = float(((exact(new[name]) - wanted[name]).abs() / wanted[name].abs().clamp(min=1e-30)).max())
        largest = max(largest, off)
        if not off <= step:
            problems.append(f"{name} is not the source's and the table's constant part: off by {off:.1e} of its value")
    fine = f"the table's mean in {BIAS}" + (f", {counted(rows, 'prefix row')} in the tokens" if rows else "")
    return Check.of("folded", problems, f"{fine}; largest relative difference {largest:.1e}")


def _config(case: PegCase) -> Check:
    """Its config builds what its tensors are."""
    config = case.out.config
    if config is None or case.out.folder is None:
        return Check("config", "skip", "no config.json of its own")
    source = case.plan.resizing.source.config
    assert source is not None  # a plan has one
    wanted = configs.edited(source, case.plan.resizing.config)
    problems = []
    for keys in (("architecture",), ("model_args",), ("pretrained_cfg", "input_size")):
        value, right = get(config.data, keys), get(wanted, keys)
        if value != right:
            problems.append(f"{'.'.join(keys)} is {_shown(value)}, not {_shown(right)}")
    return Check.of("config", problems, f"config.json says peg_{case.plan.architecture} and its arguments")


def _shown(value: Any) -> str:
    return "not there" if value is ABSENT else json.dumps(value)


# ------------------------------------------------------------------ what it computes


def _home(case: PegCase) -> tuple[Check, Check]:
    import torch

    if case.out.folder is None:
        why = "a file without its config"
        return Check("loads", "skip", why), Check("forward", "skip", why)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return _loaded_and_run(case)


def _loaded_and_run(case: PegCase) -> tuple[Check, Check]:
    import timm

    from ..torch import PEG  # timm knows the names from now on
    from ..torch.conversion import source_model
    from ..torch_io import tensor

    try:
        built: Any = timm.create_model(f"local-dir:{case.out.folder}", pretrained=True).eval()
    except Exception as error:  # whatever timm raises, the answer is that it does not load
        return Check("loads", "fail", in_words("timm", error)), Check("forward", "skip", "timm does not load it")
    state, stored = built.state_dict(), case.out.tensors
    problems = [
        f"{name} is {'only in the model' if name in state else 'not loaded'}" for name in state.keys() ^ stored.keys()
    ]
    for name in sorted(state.keys() & stored.keys()):
        info = stored[name]
        if not state[name].equal(tensor(read_bytes(info), info.dtype, info.shape).to(state[name].dtype)):
            problems.append(f"{name} has other values in timm's model than in the file")
    count = sum(isinstance(part, PEG) for part in built.modules())
    loads = Check.of(
        "loads", problems, f"timm holds all {counted(len(stored), 'tensor')} exactly, {counted(count, 'PEG')}"
    )
    try:
        source = source_model(case.plan)
        return loads, _forward(case, built, source)
    except PosinterpError as error:
        return loads, Check("forward", "skip", error.message)


def _samples(case: PegCase, model: Any) -> tuple[dict[str, Tensor], str]:
    """Images of the model's own size, by what they are, and words for them."""
    import torch

    from ..torch.conversion import Pictures

    drawn = torch.Generator().manual_seed(0)
    channels = next(part.in_channels for part in model.modules() if isinstance(part, torch.nn.Conv2d))
    found = {"random": torch.randn(4, channels, *model.patch_embed.img_size, generator=drawn)}
    if case.images is not None:
        found["real"] = Pictures(case.images, model).some(32)
    words = " and ".join(f"{len(images)} {kind}" for kind, images in found.items())
    return found, words


def _forward(case: PegCase, built: Any, source: Any) -> Check:
    """What its mode promises of its outputs."""
    images, words = _samples(case, built)
    if not all(bool(_outputs(built, x).isfinite().all()) for x in images.values()):
        return Check("forward", "fail", "its outputs are not finite")
    if case.trained or case.plan.pool == "avg":
        like = f"; {_agreement(built, source, images['real'])}" if case.trained and "real" in images else ""
        fine = f"outputs for {words} images are finite; it is not meant to equal its source{like}"
        return Check("forward", "pass", fine)
    return (_equal if case.plan.mode == "hybrid" else _refolded)(case, built, source)


def _agreement(built: Any, source: Any, images: Tensor) -> str:
    """How like its source's a trained model's answers are, at the source's own size."""
    from torch.nn.functional import cosine_similarity, interpolate

    own = source.patch_embed.img_size
    if images.shape[-2:] != tuple(own):
        images = interpolate(images, own, mode="bicubic", antialias=True)
    ours, theirs = (model.forward_features(images) for model in (built, source))
    if source.num_classes:
        same = built.forward_head(ours).argmax(-1) == source.forward_head(theirs).argmax(-1)
        return f"at the source's size its class is the source's for {int(same.sum())} of {len(images)} real ones"
    pooled = (model.forward_head(x, pre_logits=True) for model, x in ((built, ours), (source, theirs)))
    mean = float(cosine_similarity(*pooled).mean())
    return f"at the source's size the cosine of its pooled features and the source's is {mean:.3f} on real ones"


def _equal(case: PegCase, built: Any, source: Any) -> Check:
    """A hybrid computes what its source computes: bit for bit at the source's own size, if it keeps that."""
    edits = case.plan.resizing.edits
    if edits:
        from ..torch import to_peg

        source = to_peg(source)  # timm's dynamic size: its table, resampled in forward
    images, words = _samples(case, built)
    problems, largest = [], 0.0
    for kind, x in images.items():
        ours, theirs = _outputs(built, x), _outputs(source, x)
        off = float((ours - theirs).abs().max() / theirs.abs().max())
        largest = max(largest, off)
        if not (off <= NEAR if edits else ours.equal(theirs)):
            problems.append(f"{kind} images give other outputs than the source's, by up to {off:.1e} of the largest")
    size = case.plan.resizing.dst_img
    how = f"as its table resampled gives, to {largest:.1e}" if edits else "equal to the source's, bit for bit"
    return Check.of("forward", problems, f"outputs for {words} images of {size} are {how}")


def _refolded(case: PegCase, built: Any, source: Any) -> Check:
    """Without its PEGs, and with the rest of the table added back, it computes what its source computes."""
    import torch

    images, words = _samples(case, source)
    rows = case.plan.model.extra[TABLE]
    rest = source.pos_embed.detach().double().clone()
    rest[:, :rows] = 0
    rest[:, rows:] -= rest[:, rows:].mean(1, keepdim=True)
    for peg in built.peg.values():
        peg.reset_parameters()
    built.double()
    source.double()
    built.pos_embed = torch.nn.Parameter(rest)
    built.patch_embed.img_size, built.patch_embed.grid_size = source.patch_embed.img_size, source.patch_embed.grid_size
    problems, largest = [], 0.0
    for kind, x in images.items():
        ours, theirs = _outputs(built, x.double()), _outputs(source, x.double())
        off = float((ours - theirs).abs().max() / theirs.abs().max())
        largest = max(largest, off)
        if not off <= NEAR:
            problems.append(f"{kind} images: with the table added back it is {off:.1e} off its source")
    fine = f"without PEGs, the table added back: the source's outputs for {words} images, to {largest:.1e}"
    return Check.of("forward", problems, fine)


def _outputs(model: Any, x: Tensor) -> Tensor:
    """Everything that the model computes: every token, and the head's answer."""
    import torch

    tokens = model.forward_features(x)
    return torch.cat([tokens.flatten().float(), model.forward_head(tokens).flatten().float()])
