"""Executing a plan: what is resampled is computed, what is not is copied as bytes.

Nothing shows at the output until it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from . import config as configs
from .errors import BadConfig, BadUsage, OutputExists, PosinterpError, Unsupported, WriteFailed
from .files import (
    TEMPORARY,
    Range,
    Tick,
    aside,
    check_target,
    copying,
    linked,
    merged,
    replacing,
    reserve,
    sweep,
    sync_folder,
    write_at,
)
from .optimizer import optimizers
from .planning import Edit, Plan, check_guesses, plan
from .store import CONFIG, INDEX, NPZ, PICKLES, RECIPE, SAFETENSORS, WEIGHTS, Checkpoint, WeightFile, read_json
from .store.safetensors import canonical, make_header, read_header
from .store.tensors import TensorInfo, byte_size, read_bytes, read_range
from .version import VERSION
from .windows import windows_fields

FOREIGN_WEIGHTS = (*SAFETENSORS, *PICKLES, ".h5", ".msgpack", ".npz", ".onnx", ".ot", ".gguf", INDEX)
PART = 1 << 22  # bytes of an array that are copied at once
SIZE_KEYS = ("image_size", "img_size", "input_size", "model_args", "pretrained_cfg", "vision_config", "backbone_config")


@dataclass(frozen=True)
class Written:
    """What `resize` wrote: the output's path, its files by name, what of the source was left out, what else to say."""

    out: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def resize(
    ckpt: str | Path | Checkpoint,
    img: int | Sequence[int] | str | None,
    out: str | Path,
    *,
    overwrite: bool = False,
    allow_nonfinite: bool = False,
    link: bool = False,
    **wishes: Any,
) -> Plan:
    """Take a checkpoint to another input size and write the result.

    Args:
        ckpt, img, **wishes: as `plan` takes them.
        out: a folder, or a file if it ends in .safetensors, .pth, .pt, .bin, .ckpt or .npz.
        overwrite: replace an output that is there.
        allow_nonfinite: keep tables that hold NaN or Inf: what they reach becomes NaN.
        link: let shards that do not change share the source's blocks on disk, where the file system can, instead of
            copying them: as a clone, else as a hard link, which is then one file under two names.

    Returns:
        The plan that was executed.

    Raises:
        PosinterpError: what `plan` raises.
        BadValues: a table holds NaN or Inf.
        OutputExists: the output is there already.
        WriteFailed: the machine would not take it.
    """
    made = plan(ckpt, img, look=False, **wishes)
    execute(made, Path(out), overwrite=overwrite, allow_nonfinite=allow_nonfinite, link=link)
    return made


def execute(
    plan: Plan,
    out: Path,
    *,
    overwrite: bool = False,
    sync: bool = True,
    allow_nonfinite: bool = False,
    link: bool = False,
    tick: Tick | None = None,
) -> Written:
    """Write a plan's output.

    Args:
        out: as in `resize`.
        sync: wait until the disk has it; without, a power cut may lose the output (never the source).
        allow_nonfinite, link: as in `resize`.
        tick: called with the number of bytes copied since the last call.
    """
    job = _Job(plan, sync, tick, allow_nonfinite, link)
    try:
        written = _write(job, out, overwrite=overwrite)
    except OSError as error:
        raise WriteFailed(f"{out} cannot be written: {error.strerror or error}") from None
    return replace(written, notes=tuple(job.notes)) if job.notes else written


def _write(job: _Job, out: Path, *, overwrite: bool) -> Written:
    sweep(out.parent)
    if (only := job.plan.family.file) and job.source.path.suffix == only != out.suffix:
        raise BadUsage(
            f"{job.plan.family.home} reads its weights from {only} files only, not from {out}",
            hint=f"name an output that ends in {only}",
        )
    if not names_file(out):
        if job.plan.optimizer == "keep":
            raise _no_place_for_moments(out)
        return _write_folder(job, out, overwrite=overwrite)
    if not overwrite and any(_same(out, file.path) for file in job.source.files):
        raise OutputExists(f"{out} is the source itself", hint="--force replaces it, or name another with -o")
    target = check_target(out, overwrite=overwrite)
    _make_folder(job, target.parent)
    if job.plan.optimizer == "keep" and out.suffix not in PICKLES:
        raise _no_place_for_moments(out)
    if out.suffix in SAFETENSORS:
        return _write_one(job, out, target, overwrite=overwrite)
    if out.suffix == NPZ:
        return _write_npz(job, out, target, overwrite=overwrite)
    return _write_pickle(job, out, target, overwrite=overwrite)


def _no_place_for_moments(out: Path) -> BadUsage:
    return BadUsage(f"{out} cannot hold the state of an optimizer", hint="name an output that ends in .pth")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and os.path.samefile(one, other)


def _make_folder(job: _Job, folder: Path) -> None:
    if not folder.is_dir():
        job.compute()
        folder.mkdir(parents=True, exist_ok=True)


def names_file(out: Path) -> bool:
    """Whether an output's name means a file: it ends in a suffix of weights, and is no folder already."""
    if out.suffix in (".onnx", ".h5", ".gguf", ".msgpack"):
        raise BadUsage(
            f"{out}: {out.suffix} files are not written", hint="name a .safetensors or .pth file, or a folder"
        )
    return out.suffix in (*SAFETENSORS, *PICKLES, NPZ) and not (out.is_dir() and not out.is_symlink())


def default_out(plan: Plan) -> Path:
    """Where the output goes when nobody says: `<stem>-<size>` beside the source, in the current folder for hub names.

    A folder; but a numpy archive stays one, and a pickle that holds more than one set of weights (several branches, an
    optimizer, arguments) stays a pickle, with everything in it.
    """
    source = plan.source
    name = f"{source.label}-{plan.dst_img}" + (f"-patch{plan.patch[0]}" if plan.patch else "")
    place = Path() if source.fetched else source.path.parent
    if source.folder is not None and not source.fetched:
        place = Path(os.path.abspath(source.path)).parent
        place = Path(os.path.relpath(place)) if not source.path.is_absolute() else place
    if source.folder is None and any(file.pickled and not _bare(plan, file) for file in source.files):
        return place / (name + source.path.suffix)
    if source.path.suffix == NPZ:
        return place / (name + NPZ)
    return place / name


def places_for(plans: Sequence[Plan], out: Path | None, *, overwrite: bool) -> list[Path]:
    """Where the outputs of several plans go: in the folder `out`, under the names that they have when nobody says one.

    Raises BadUsage for two that would be the same, and OutputExists for one that is there, before anything is written.
    """
    if out is not None and names_file(out):
        raise BadUsage(
            f"{out} is one file, for {len(plans)} sizes", hint="name a folder, which gets an output for each"
        )
    places = [default_out(plan) if out is None else out / default_out(plan).name for plan in plans]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise BadUsage(f"--img says {plans[i].dst_img} twice", hint="each size gets one output")
        if names_file(place):
            check_target(place, overwrite=overwrite)
        else:
            check_folder(place, overwrite=overwrite)
    return places


def recipe(plan: Plan) -> dict[str, Any]:
    """How the output is made: enough to make it again, and to tell whether a file is its source."""
    tensors = plan.source.tensors
    digest = hashlib.sha256()
    for edit in sorted(plan.edits, key=lambda edit: edit.name):
        digest.update(read_bytes(tensors[edit.name]))
    return {
        "version": VERSION,
        "family": plan.family.name,
        "from": list(plan.src_img) if plan.src_img else None,
        "to": list(plan.dst_img),
        **({"frames": plan.dst_img.frames} if plan.dst_img.frames is not None else {}),
        **({"patch": list(plan.patch)} if plan.patch else {}),
        **({"windows": windows_fields(plan.windows)} if plan.windows else {}),
        "tensors": {edit.name: str(edit.method) for edit in plan.edits},
        "source": f"sha256:{digest.hexdigest()}",
    }


# ------------------------------------------------------------------ safetensors


@dataclass(frozen=True)
class _Job:
    plan: Plan
    sync: bool
    tick: Tick | None
    allow_nonfinite: bool = False
    link: bool = False
    done: dict[str, memoryview] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def source(self) -> Checkpoint:
        return self.plan.source

    @cached_property
    def edits(self) -> dict[str, Edit]:
        return {edit.name: edit for edit in (*self.plan.edits, *self.plan.moments)}

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.source.tensors

    def value(self, info: TensorInfo, name: str) -> memoryview:
        """The bytes of a tensor that cannot be copied as a range: `name` in the source."""
        return self._computed(name) if name in self.edits else memoryview(read_bytes(info))

    def _computed(self, name: str) -> memoryview:
        if name not in self.done:
            from .computing import apply, nonfinite  # numpy: its import is what a small file takes longest for

            if not self.done:
                check_guesses(self.source, self.plan.models)
            edit, info = self.edits[name], self.tensors[name]
            self.done[name] = apply(edit, info, allow_nonfinite=self.allow_nonfinite).data.cast("B")
            if self.allow_nonfinite and (said := nonfinite(edit, info, self.done[name])):
                self.notes.append(said)
        return self.done[name]

    def compute(self) -> None:
        """Everything now: a table that is refused must be so before anything is touched that could not be undone."""
        for name in self.edits:
            self._computed(name)


def _outcome(job: _Job, infos: Iterable[TensorInfo]) -> list[TensorInfo]:
    """The tensors of an output file: edited ones with their new shape, dropped ones left out."""
    shapes = {name: edit.new_shape for name, edit in job.edits.items()}
    dropped = frozenset(job.plan.drop)
    return [
        replace(info, shape=shapes[info.name]) if info.name in shapes else info
        for info in infos
        if info.name not in dropped
    ]


def _metadata(job: _Job, file: WeightFile) -> dict[str, str]:
    kept = {"format": "pt"} if file.pickled else dict(file.metadata)
    return {**kept, RECIPE: json.dumps(recipe(job.plan), separators=(",", ":"), sort_keys=True)}


def _write_safetensors(
    job: _Job,
    infos: Sequence[TensorInfo],
    metadata: Mapping[str, str],
    target: Path,
    *,
    overwrite: bool,
    prefix: str = "",
) -> None:
    """One file in canonical order. Threads copy what stays while the rest is computed."""
    ordered = canonical(replace(info, name=info.name[len(prefix) :]) for info in infos)
    header = make_header(ordered, metadata)
    ranges: list[Range] = []
    made: list[tuple[TensorInfo, int]] = []
    at = len(header)
    for info in ordered:
        size = byte_size(info.dtype, info.shape)
        if prefix + info.name in job.edits or info.data is not None or info.strides is not None:
            made.append((info, at))
        elif size:
            ranges.append(Range(info.file, info.start, size, at))
        at += size
    with replacing(target, overwrite=overwrite, sync=job.sync) as fd:
        if not job.sync:  # reserved blocks are faster to fill, and slower to sync
            reserve(fd, at)
        write_at(fd, header, 0)
        with copying(merged(ranges), fd, job.tick):
            for info, place in made:
                write_at(fd, job.value(info, prefix + info.name), place)


def _write_one(job: _Job, out: Path, target: Path, *, overwrite: bool) -> Written:
    """Everything in one file."""
    prefix, left = _branch(job.plan)
    infos = [info for file in job.source.files for info in _chosen(file, prefix)]
    _write_safetensors(
        job, _outcome(job, infos), _metadata(job, job.source.files[0]), target, overwrite=overwrite, prefix=prefix
    )
    return Written(out, (out.name,), left)


def _write_npz(job: _Job, out: Path, target: Path, *, overwrite: bool) -> Written:
    """A numpy archive again, with its arrays in their order; the recipe is the zip's comment, where no array shows."""
    from .store.npz import NAMES, add_member

    infos = _outcome(job, (info for file in job.source.files for info in file.tensors))
    prefix, left = _branch(job.plan)
    if foreign := [info.dtype for info in infos if info.dtype not in NAMES]:
        raise BadUsage(f"numpy has no dtype for {foreign[0]}", hint="name a .safetensors file as the output")
    job.compute()
    said = json.dumps(recipe(job.plan), separators=(",", ":"), sort_keys=True).encode()
    with (
        replacing(target, overwrite=overwrite, sync=job.sync) as fd,
        open(os.dup(fd), "w+b") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        archive.comment = said if len(said) <= zipfile.ZIP_MAX_COMMENT else b""
        for info in infos:
            if info.name.startswith(prefix):
                add_member(archive, replace(info, name=info.name[len(prefix) :]), _parts(job, info))
    return Written(out, (out.name,), left)


def _parts(job: _Job, info: TensorInfo) -> Iterator[bytes | memoryview]:
    """A tensor's bytes, some at a time."""
    if info.name in job.edits or info.data is not None or info.strides is not None:
        yield job.value(info, info.name)
        return
    for start in range(0, info.nbytes, PART):
        part = read_range(info.file, info.start + start, min(PART, info.nbytes - start))
        if job.tick is not None:
            job.tick(len(part))
        yield part


# ------------------------------------------------------------------ pickles


def _branch(plan: Plan) -> tuple[str, tuple[str, ...]]:
    """Where in a pickle the weights are ("model/"), and what else it holds that a file of tensors cannot.

    Raises BadUsage if there are several sets of weights.
    """
    if not any(file.pickled for file in plan.source.files):
        return "", ()
    branches = list(dict.fromkeys(model.root[: model.root.rfind("/") + 1] for model in plan.models))
    if len(branches) > 1:
        names = ", ".join(branch.rstrip("/") for branch in branches)
        raise BadUsage(
            f"the file holds {len(branches)} sets of weights ({names}), which only a pickle can hold together",
            hint="name an output that ends in .pth to keep all of them",
        )
    branch = branches[0]
    tree = plan.source.files[0].tree
    left = []
    for key in filter(None, branch.rstrip("/").split("/")):
        left += [str(other) for other in tree if str(other) != key] if isinstance(tree, dict) else []
        tree = next(value for other, value in tree.items() if str(other) == key) if isinstance(tree, dict) else {}
    return branch, tuple(left)


def _bare(plan: Plan, file: WeightFile) -> bool:
    """Whether a pickle holds one set of weights and nothing else."""
    try:
        return not _branch(plan)[1]
    except BadUsage:
        return False


def _chosen(file: WeightFile, branch: str) -> list[TensorInfo]:
    if not file.pickled:
        return list(file.tensors)
    return [info for info in file.tensors if info.name.startswith(branch) and "/" not in info.name[len(branch) :]]


def _write_pickle(job: _Job, out: Path, target: Path, *, overwrite: bool) -> Written:
    """The source's object with the edited tensors put in; only torch can write it."""
    from .torch_io import save, to_torch

    file = job.source.files[0]
    if file.pickled:
        # Moments of the old shape are of no use to a parameter of the new one.
        left = optimizers(file.tree) if job.plan.edits and job.plan.optimizer == "drop" else ()
        tree = _pruned(file.tree, left) if left else file.tree
        dropped = frozenset(job.plan.drop)
    else:
        tree = {info.name: info for one in job.source.files for info in one.tensors}
        left, dropped = (), frozenset(job.plan.drop)
    values = {name: (job.value(job.tensors[name], name), edit.new_shape) for name, edit in job.edits.items()}
    whole = to_torch(tree, values, dropped)
    if file.pickled and isinstance(whole, dict) and any("/" in model.root for model in job.plan.models):
        whole[RECIPE] = json.dumps(recipe(job.plan), separators=(",", ":"), sort_keys=True)
    with replacing(target, overwrite=overwrite, sync=job.sync) as fd:
        save(whole, fd)
    return Written(out, (out.name,), left)


def _pruned(tree: dict[Any, Any], left: Sequence[str]) -> dict[Any, Any]:
    return type(tree)((key, value) for key, value in tree.items() if str(key) not in left)


# ------------------------------------------------------------------ folders


def check_folder(out: Path, *, overwrite: bool) -> bool:
    """Whether there are files in an output folder already. Raises OutputExists if they must not be overwritten."""
    if out.exists() and not out.is_dir():
        raise OutputExists(f"{out} is a file", hint="name a folder, or a file that ends in .safetensors or .pth")
    filled = out.is_dir() and any(out.iterdir())
    if filled and not overwrite:
        raise OutputExists(f"{out} exists and is not empty", hint="--force writes into it, or name another with -o")
    return filled


def _write_folder(job: _Job, out: Path, *, overwrite: bool) -> Written:
    """A folder that the home library loads: built aside and renamed, or, over one that has files, file by file."""
    filled = check_folder(out, overwrite=overwrite)
    _check_config(job.plan)
    others, left = _other_files(job, out)
    if filled:
        _check_rivals(job, out)
        job.compute()
        return Written(out, _fill(job, out, others, overwrite=True), left)
    _make_folder(job, out.parent)
    with aside(out.parent) as place:
        files = _fill(job, place, others, overwrite=False)
        os.rename(place, out)
    if job.sync:
        sync_folder(out.parent)
    return Written(out, files, left)


def _check_rivals(job: _Job, out: Path) -> None:
    """Weights that stay in the folder could be loaded instead of the new ones."""
    if job.source.folder is not None and os.path.samefile(out, job.source.folder):
        return
    ours = {_output_name(job.source, file) for file in job.source.files}
    ours |= {_index_name(job.source)} if job.source.index else set()
    if rivals := sorted(name for name in WEIGHTS if name not in ours and (out / name).exists()):
        raise OutputExists(
            f"{out} holds {rivals[0]}, which would stand beside the new weights and may be loaded instead",
            hint="remove it, or name another folder with -o",
        )


def _index_name(source: Checkpoint) -> str:
    assert source.index is not None
    return source.index.name.replace("pytorch_model.bin", "model.safetensors")


def _check_config(plan: Plan) -> None:
    """A config of a kind that is not known here, or that cannot say the new size, would go on saying the old one."""
    source, config = plan.source, plan.source.config
    silent = config is not None and all(edit.file != config.path.name for edit in plan.config)
    if config is not None and silent and configs.is_open_clip(config) and plan.src_img != plan.dst_img:
        raise Unsupported(
            f"{config.path.name} cannot say {plan.dst_img} of its timm tower, which open_clip builds by name",
            hint="name a file as the output (-o NAME.safetensors)",
        )
    if source.folder is None or source.config is None or configs.architecture(source.config) is not None:
        return
    if stale := [key for key in SIZE_KEYS if key in source.config.data]:
        raise Unsupported(
            f"{source.config.path} is not timm's nor transformers', and its {stale[0]} would go on saying the old size",
            hint="name a file as the output (-o NAME.safetensors) and write the config yourself",
        )


def _fill(job: _Job, folder: Path, others: Sequence[Path], *, overwrite: bool) -> tuple[str, ...]:
    """Weights first and config last: a reader that finds the new config finds the new weights."""
    prefix, _ = _branch(job.plan)
    names = {file.path: _output_name(job.source, file) for file in job.source.files}
    for file, name in zip(job.source.files, names.values(), strict=True):
        if _unchanged(job, file, name):
            if not (job.link and not overwrite and linked(file.path, folder / name)):
                _copy_whole(job, file.path, folder / name, overwrite=overwrite)
            continue
        infos = _outcome(job, _chosen(file, prefix))
        _write_safetensors(job, infos, _metadata(job, file), folder / name, overwrite=overwrite, prefix=prefix)
    written = list(names.values())
    config = job.source.config
    edited = {edit.file for edit in job.plan.config} - ({config.path.name} if config is not None else set())
    kept = {path.name: path for path in others}
    kept |= {name: job.source.folder / name for name in edited if job.source.folder is not None}
    for path in kept.values():
        if path.name in edited:
            data = configs.Config(path, read_json(path, what="file", error=BadConfig))
            _write_json(folder / path.name, configs.edited(data, job.plan.config), job, overwrite=overwrite)
            continue
        _copy_whole(job, path, folder / path.name, overwrite=overwrite)
    if job.source.index is not None:
        index = _index_name(job.source)
        _write_json(folder / index, _new_index(job, names), job, overwrite=overwrite)
        written.append(index)
    if config is not None and (job.source.folder or configs.architecture(config)):
        _write_json(folder / config.path.name, configs.edited(config, job.plan.config), job, overwrite=overwrite)
        written.append(config.path.name)
    return (*written, *kept)


def _unchanged(job: _Job, file: WeightFile, name: str) -> bool:
    """Whether a shard stays as it is, byte by byte: nothing in it changes, and it need not say how it was made."""
    if file.pickled or len(job.source.files) == 1 or name != file.path.name or RECIPE in file.metadata:
        return False
    changed = {*job.edits, *job.plan.drop}
    carrier = next((one for one in job.source.files if any(info.name in changed for info in one.tensors)), None)
    if (carrier is None and file is job.source.files[0]) or any(info.name in changed for info in file.tensors):
        return False
    infos, metadata = read_header(file.path)
    return (tuple(infos), metadata) == (file.tensors, file.metadata)  # nothing was taken out or put in, in memory


def _copy_whole(job: _Job, path: Path, target: Path, *, overwrite: bool) -> None:
    if target.exists() and os.path.samefile(path, target):
        return
    whole = Range(path, 0, path.stat().st_size, 0)
    with replacing(target, overwrite=overwrite, sync=job.sync) as fd, copying([whole], fd, job.tick):
        pass


def _output_name(source: Checkpoint, file: WeightFile) -> str:
    """What a weight file is called in a folder: as in the source's, or as home libraries look for it."""
    if source.index is not None:
        return (
            file.path.name.replace("pytorch_model", "model").removesuffix(".bin").removesuffix(".safetensors")
            + ".safetensors"
        )
    if source.folder is not None and file.path.suffix in SAFETENSORS:
        return file.path.name
    return "model.safetensors"


def _other_files(job: _Job, out: Path) -> tuple[list[Path], tuple[str, ...]]:
    """A source folder's other files, and what of it is left out: weights in other formats are for the old size."""
    if job.source.folder is None:
        return [], _branch(job.plan)[1]
    ours = {file.path.name for file in job.source.files}
    ours |= {job.source.config.path.name} if job.source.config is not None else {CONFIG}
    ours |= {job.source.index.name} if job.source.index else set()
    entries = sorted(path for path in job.source.folder.iterdir() if path.name not in ours)
    files = [path for path in entries if path.is_file()]
    stale = [path for path in files if path.name.endswith(FOREIGN_WEIGHTS)]
    folders = [f"{path.name}/" for path in entries if path.is_dir() and not path.name.startswith(".") and path != out]
    same = out.exists() and os.path.samefile(out, job.source.folder)
    kept = [] if same else [path for path in files if path not in stale and not path.name.startswith(TEMPORARY)]
    return kept, (*(path.name for path in stale), *([] if same else folders), *_branch(job.plan)[1])


def _new_index(job: _Job, names: Mapping[Path, str]) -> dict[str, Any]:
    assert job.source.index is not None
    old = read_json(job.source.index, what="index", error=PosinterpError)  # type: ignore[arg-type]
    outcome = {file.path: _outcome(job, file.tensors) for file in job.source.files}
    about = old.get("metadata")
    total = sum(byte_size(info.dtype, info.shape) for infos in outcome.values() for info in infos)
    mapping = {info.name: names[path] for path, infos in outcome.items() for info in infos}
    return {
        **old,
        "metadata": {**(about if isinstance(about, dict) else {}), "total_size": total},
        "weight_map": dict(sorted(mapping.items())),
    }


def _write_json(path: Path, data: Any, job: _Job, *, overwrite: bool) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    with replacing(path, overwrite=overwrite, sync=job.sync) as fd:
        write_at(fd, text.encode("utf-8"), 0)
