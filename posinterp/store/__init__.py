"""Opening any checkpoint as names -> what is known of each tensor. No tensor is read until one is asked for."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadConfig, BadFile, NotFound
from . import strict_json
from .safetensors import read_header
from .tensors import TensorInfo, Tree

SAFETENSORS = (".safetensors",)
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")
NPZ = ".npz"
INDEX = ".index.json"

# A folder's weights, the first that is there; what the home libraries look for, in their order.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
CONFIG = "config.json"
OPEN_CLIP = "open_clip_"  # how its weights begin, and its config, which may stand beside another library's
RECIPE = "posinterp"  # the metadata key under which a file says how it was made
MAX_JSON = 64 << 20  # bytes of a config or index that are read; real ones have kilobytes


@dataclass(frozen=True)
class WeightFile:
    """One file of weights: its tensors in file order, its metadata, and for a pickle the object around them."""

    path: Path
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str] = field(default_factory=dict)
    tree: Tree = None

    @property
    def pickled(self) -> bool:
        return self.tree is not None


@dataclass(frozen=True)
class Config:
    """A parsed config.json and where it was."""

    path: Path
    data: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, opened.

    `path`: the file, or the folder; `label`: the stem of a name for what is made from it; `tensors`: of all files;
    `index`: the shard index's path, when there is one; `architecture`: the model's name when something beside the
    config says it; `fetched`: it came from the hub; `given`: what it was called.
    """

    path: Path
    label: str
    files: tuple[WeightFile, ...]
    config: Config | None = None
    index: Path | None = None
    architecture: str | None = None
    fetched: bool = False
    given: str = ""

    @property
    def folder(self) -> Path | None:
        """The folder whose other files belong to the checkpoint; None for a single file."""
        return self.path if self.path.is_dir() else None

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {info.name: info for file in self.files for info in file.tensors}

    @property
    def recipe(self) -> dict[str, Any]:
        """How posinterp made the file, as the file says it; empty if it did not, or if that cannot be read."""
        tree = self.files[0].tree
        held = [file.metadata[RECIPE] for file in self.files if RECIPE in file.metadata]  # in shards that it changed
        text = tree.get(RECIPE) if isinstance(tree, dict) else next(iter(held), None)
        try:
            said = strict_json.loads(text.encode("utf-8")) if isinstance(text, str) else None
        except (strict_json.NotStrict, UnicodeEncodeError):
            return {}
        return said if isinstance(said, dict) else {}


def open_checkpoint(ckpt: str | Path, *, progress: bool = False) -> Checkpoint:
    """Open a file, a folder, `hf-hub:ORG/NAME`, or a timm model name (a path that exists wins).

    Raises:
        NotFound: there is no such thing; BadFile: it is damaged, dangerous, or no checkpoint; BadConfig: its
        config.json cannot be read; HubError: the hub would not give it.
    """
    path = Path(ckpt)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        if _is_hub_name(str(ckpt)):
            return _open_fetched(str(ckpt), progress=progress)
        raise _missing(path, error) from None
    if stat.S_ISDIR(mode):
        return _open_folder(path)
    if not stat.S_ISREG(mode):
        raise BadFile(f"{path} is not a regular file", hint="a checkpoint is a file or a folder")
    file = _open_file(path)
    config, noted = _sibling_config(path), _noted(file.tree)
    return Checkpoint(path, _stem(path), (file,), config, architecture=noted, given=str(ckpt))


def _noted(tree: Tree) -> str | None:
    """The model's name as training scripts note it beside the weights: timm's `arch`, DeiT's `args.model`."""
    if not isinstance(tree, dict):
        return None
    noted = tree.get("arch", getattr(tree.get("args"), "model", None))
    return noted.partition(".")[0] if isinstance(noted, str) else None


def _missing(path: Path, error: Exception) -> NotFound:
    why = f": {error.strerror}" if isinstance(error, PermissionError) else ""
    hint = "a checkpoint is a file, a folder, hf-hub:ORG/NAME, or a timm model name such as vit_base_patch16_224"
    return NotFound(f"there is no checkpoint at {path}{why}", hint=hint)


def _is_hub_name(ckpt: str) -> bool:
    """Whether a word that is no path could name something on the hub: a prefix, or a timm name (no path, no suffix)."""
    from .hub import is_hub_name

    return is_hub_name(ckpt) or (
        "/" not in ckpt and os.sep not in ckpt and not ckpt.endswith((*SAFETENSORS, *PICKLES, NPZ))
    )


def _open_fetched(ckpt: str, *, progress: bool) -> Checkpoint:
    from .hub import fetch

    source = fetch(ckpt, progress=progress)
    opened = _open_folder(source.folder, weights=source.weights.name)
    return Checkpoint(
        opened.path,
        source.label,
        opened.files,
        opened.config,
        opened.index,
        source.architecture,
        fetched=True,
        given=ckpt,
    )


def _stem(path: Path) -> str:
    """A file's name without its suffix; the folder's name for files that are all called alike."""
    stem = path.name.removesuffix(path.suffix)
    if stem in ("model", "pytorch_model", "open_clip_model", "open_clip_pytorch_model") and path.absolute().parent.name:
        return path.absolute().parent.name
    return stem


# ------------------------------------------------------------------ folders


def _open_folder(folder: Path, *, weights: str | None = None) -> Checkpoint:
    name = weights or _weights_of(folder)
    config = _config_of(folder / name)
    label = folder.absolute().resolve().name
    if name.endswith(INDEX):
        return Checkpoint(folder, label, _open_shards(folder / name), config, index=folder / name, given=str(folder))
    return Checkpoint(folder, label, (_open_file(folder / name),), config, given=str(folder))


def _weights_of(folder: Path) -> str:
    present = sorted(path.name for path in folder.iterdir() if path.is_file())
    for name in WEIGHTS:
        if name in present:
            return name
    loose = [name for name in present if name.endswith(SAFETENSORS)] or [
        name for name in present if name.endswith(PICKLES[:4])
    ]
    if len(loose) == 1:
        return loose[0]
    if loose:
        raise BadFile(
            f"{folder} holds {len(loose)} files of weights: {', '.join(loose[:4])}{' ...' if len(loose) > 4 else ''}",
            hint="name the one you mean",
        )
    held = f"it holds {', '.join(present[:5])}{' ...' if len(present) > 5 else ''}" if present else "it is empty"
    raise BadFile(f"{folder} has no weights: {held}", hint=f"looked for {', '.join(WEIGHTS[:4])}, ...")


def _open_shards(index: Path) -> tuple[WeightFile, ...]:
    """The shards that an index names, each holding exactly the tensors that the index says."""
    data = read_json(index, what="index", error=BadFile)
    mapping = data.get("weight_map")
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
        raise BadFile(f"{index}: invalid index: weight_map should name a file for each tensor")
    files = []
    for shard in dict.fromkeys(mapping.values()):
        # The name is checked, not where it leads: in the hub's cache shards are links to ../../blobs.
        if not shard or shard in (".", "..") or "/" in shard or "\\" in shard or "\0" in shard:
            raise BadFile(f"{index}: shard {shard[:80]!r} lies outside the folder", hint="a shard is a plain file name")
        path = index.parent / shard
        if not path.is_file():
            raise BadFile(f"{index}: shard {shard[:80]!r} is missing from the folder")
        files.append(_open_file(path))
        names = {info.name for info in files[-1].tensors}
        wanted = {name for name, where in mapping.items() if where == shard}
        if astray := sorted(names ^ wanted):
            where = "is in that shard but not listed there" if astray[0] in names else "is not in that shard"
            raise BadFile(f"{index}: the index and shard {shard!r} disagree: tensor {astray[0][:80]!r} {where}")
    return tuple(files)


# ------------------------------------------------------------------ files

IMPOSTORS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run: git lfs pull"),
    (b"<!DOCTYPE", "a web page", "download the file itself"),
    (b"<!doctype", "a web page", "download the file itself"),
    (b"<html", "a web page", "download the file itself"),
    (b"\x89PNG", "a picture", None),
    (b"\xff\xd8\xff", "a picture", None),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras weights)", "convert it to safetensors first"),
    (b"\x93NUMPY", "a single numpy array", None),
)


def _open_file(path: Path) -> WeightFile:
    """A file by what it is, not by what it is called."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    for magic, what, hint in IMPOSTORS:
        if head.startswith(magic):
            raise BadFile(f"{path} is {what}, not a checkpoint", hint=hint)
    if path.suffix == NPZ:
        from .npz import read_npz

        arrays, comment = read_npz(path)
        return WeightFile(path, tuple(arrays), {RECIPE: comment} if comment else {})
    if head[:2] == b"PK" and path.suffix in SAFETENSORS:
        hint = "rename it to .pth if it is torch's"
        raise BadFile(f"{path} is a zip archive under the name of a safetensors file", hint=hint)
    if head[:2] == b"PK" or (path.suffix in PICKLES and head[8:9] != b"{"):
        from .pickle import read_pickle

        pickled = read_pickle(path)
        return WeightFile(path, tuple(pickled.tensors.values()), tree=pickled.tree)
    infos, metadata = read_header(path)
    return WeightFile(path, tuple(infos), metadata)


def _sibling_config(path: Path) -> Config | None:
    """The config.json beside a file of weights. One that cannot be read is no evidence, and no fault of the file."""
    try:
        return _config_of(path)
    except BadConfig:
        return None


def _config_of(weights: Path) -> Config | None:
    """The config beside a file of weights, of the library whose weights they are."""
    own = weights.parent / (OPEN_CLIP + CONFIG)
    if weights.name.startswith(OPEN_CLIP) and own.is_file():
        return _read_config(own)
    return _read_config(weights.parent / CONFIG)


def _read_config(path: Path) -> Config | None:
    if not path.is_file():
        return None
    return Config(path, read_json(path, what="config.json", error=BadConfig))


def read_json(path: Path, *, what: str, error: type[BadFile | BadConfig]) -> dict[str, Any]:
    """A JSON object from a file; raises `error` with the reason."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise error(f"{path} is no {what}: it has more than {MAX_JSON >> 20} MiB")
        data = strict_json.loads(path.read_bytes())
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}") from None
    except strict_json.NotStrict as fault:
        raise error(f"{path}: invalid {what}: {fault}") from None
    if not isinstance(data, dict):
        raise error(f"{path}: invalid {what}: a JSON object was expected, not a {type(data).__name__}")
    return data
