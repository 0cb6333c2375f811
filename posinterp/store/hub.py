"""Checkpoints by name: `hf-hub:ORG/NAME[@REVISION]` and timm model names, fetched into the Hugging Face cache.

Everything is asked of the hub at one commit, and lies in the cache as `huggingface_hub` leaves it, so timm and
transformers find it there too. HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to
`huggingface_hub`, which reads them when it is first imported.
Sources: timm/models/_hub.py (file names, safetensors siblings) and timm/models/_factory.py (prefixes).
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HubError, NotFound, did_you_mean
from . import INDEX, WEIGHTS, strict_json

if TYPE_CHECKING:
    from timm.models import PretrainedCfg

PREFIXES = ("hf-hub", "hf_hub")  # as timm spells them, in any case

SAFE_SIBLINGS = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}
COMPANIONS = ("config.json", "open_clip_config.json", "preprocessor_config.json", "processor_config.json")

LOG_IN = "ask for access on its page, then log in (`hf auth login`) or set HF_TOKEN"
CARRY = "download it where there is a network, or give a local file"
AGAIN = "run it again: whole files are kept"
BY_HAND = "download that file and give its path"
ANOTHER = "try another revision (@REVISION), or give a local file"


@dataclass(frozen=True)
class HubSource:
    """A checkpoint in the local Hugging Face cache."""

    folder: Path  # the snapshot: the weights, and config.json if the repository has one
    weights: Path  # the weights file, or the index of a sharded one
    label: str  # the name without organisation, good as the stem of a file name
    repo: str  # ORG/NAME
    revision: str  # commit hash
    architecture: str | None  # timm's name of it, if the checkpoint was asked for by a timm name


@dataclass(frozen=True)
class _Request:
    repo: str
    revision: str | None  # branch, tag or commit; None is the default branch
    label: str
    filename: str | None = None  # the weights file, where timm says which
    architecture: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


@dataclass(frozen=True)
class _Listing:
    commit: str
    files: frozenset[str]


class _Unreachable(Exception):
    """No usable answer from the hub; the text says why, in a few words."""


def is_hub_name(ckpt: str) -> bool:
    """Whether `ckpt` is spelt as a hub repository. timm takes both prefixes, in any case."""
    prefix, colon, _ = ckpt.partition(":")
    return bool(colon) and prefix.lower() in PREFIXES


def fetch(ckpt: str, *, progress: bool = False) -> HubSource:
    """Download `ckpt`, a hub or timm model name, unless the cache has it.

    `progress` draws bars if stderr is a terminal, and lets the library warn of retries; without it nothing is
    written. Without a network the cache is used as it is.

    Raises NotFound (no such model, tag, repository or revision) and HubError (hub unreachable or refusing, no
    weights, weights that are not on a hub). Errors of the disk are left alone.
    """
    request = _hub_request(ckpt) if is_hub_name(ckpt) else _timm_request(ckpt)
    _require("huggingface_hub", "a model from the hub")
    with nullcontext() if progress else _no_warnings():
        try:
            listing = _list(request)
        except _Unreachable as error:
            why = str(error)
        else:
            return _complete(request, listing, progress)
    return _from_cache(request, why)  # out of the except block, whose error would be shown with any further one


def _complete(request: _Request, listing: _Listing, progress: bool) -> HubSource:
    """_download, or a HubError: a cache that lacks files known to exist is no substitute."""
    try:
        return _download(request, listing, progress)
    except _Unreachable as why:
        raise HubError(f"the download of {request} broke off ({why})", hint=AGAIN) from None


# --- names ---


def _hub_request(ckpt: str) -> _Request:
    """Read `hf-hub:ORG/NAME[@REVISION]`; NotFound if no repository can have that name."""
    name = ckpt.partition(":")[2]
    repo, at, revision = name.partition("@")
    if not _is_repo_name(repo) or "@" in revision or bool(at) != bool(revision):
        raise NotFound(f"{ckpt!r} names no hub repository", hint="write hf-hub:ORG/NAME or hf-hub:ORG/NAME@REVISION")
    return _Request(repo, revision or None, label=repo.rpartition("/")[2])


def _is_repo_name(repo: str) -> bool:
    _require("huggingface_hub", "a model from the hub")
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    try:
        hf_hub_url(repo, "config.json")  # asks nobody, and knows what a name may look like
    except HFValidationError:
        return False
    return True


def _timm_request(name: str) -> _Request:
    """Where timm keeps the weights of `name` (architecture[.tag]), by its own table; the model is not built.

    Raises NotFound (unknown name or tag, no pretrained weights) and HubError (weights outside the hub).
    """
    if any(mark in name for mark in "/\\:"):  # a path, not worth the seconds of importing timm
        hint = f"a hub repository is spelt hf-hub:{name if _is_repo_name(name) else 'ORG/NAME'}"
        raise NotFound(f"there is no file or folder {name}", hint=hint)
    _require("timm", "a timm model name")
    cfg = _pretrained_cfg(name)
    architecture = cfg.architecture or name.partition(".")[0]
    label = f"{architecture}.{cfg.tag}" if cfg.tag else architecture
    if cfg.hf_hub_id:
        repo, _, revision = cfg.hf_hub_id.partition("@")
        return _Request(repo, revision or None, label, cfg.hf_hub_filename, architecture)
    if cfg.url:
        url = cfg.url if isinstance(cfg.url, str) else cfg.url[0]
        raise HubError(f"the weights of {label} are not on the hub but at {url}", hint=BY_HAND)
    raise NotFound(f"timm has no pretrained weights for {label}", hint=_tags_hint(architecture))


def _pretrained_cfg(name: str) -> PretrainedCfg:
    """timm's entry for `name`; a bare architecture has that of its default tag. Renamed models are followed."""
    from timm.models import get_deprecated_models, get_pretrained_cfg, is_model

    current = get_deprecated_models().get(name, name)
    if current is None:
        raise NotFound(f"timm has removed {name}, and names no successor", hint="give a local file")
    architecture, _, tag = current.partition(".")
    if not is_model(current):
        raise NotFound(f"no file, folder or timm model is called {name}", hint=_models_hint(architecture))
    try:
        cfg = get_pretrained_cfg(current)
    except RuntimeError:  # timm's answer to a tag it does not know
        hint = _tags_hint(architecture, tag)
        raise NotFound(f"timm's {architecture} has no weights tagged {tag!r}", hint=hint) from None
    if cfg is None:
        raise NotFound(f"timm has no pretrained weights for {name}", hint="give a local file")
    return cfg


def _models_hint(architecture: str) -> str:
    from timm import list_models

    near = did_you_mean(architecture.lower(), list_models(), cutoff=0.75)
    return near.rstrip() or "timm.list_models() lists timm's names"


def _tags_hint(architecture: str, tag: str = "") -> str:
    """The tags of `architecture` that have weights, those that look like `tag` first."""
    from timm.models import get_arch_pretrained_cfgs

    cfgs = get_arch_pretrained_cfgs(architecture)
    tags = [full.partition(".")[2] for full, cfg in cfgs.items() if cfg.has_weights]
    if not tags:
        return "no tag of it has any; give a local file"
    close = get_close_matches(tag, tags, n=3)
    return f"its tags are {', '.join(close + [other for other in tags if other not in close])}"


# --- files ---


def _candidates(filename: str | None) -> list[str]:
    """Names the weights may have, best first: safetensors before the pickle it stands beside."""
    if filename is None:
        return list(WEIGHTS)
    safe = SAFE_SIBLINGS.get(filename, f"{filename.removesuffix('.bin')}.safetensors")
    return [*([safe] if filename.endswith(".bin") else []), filename, *WEIGHTS]


def _shards(index: Path) -> list[str]:
    """The files that `index` names, none if it is no index but the weights themselves; HubError if it is damaged."""
    if not index.name.endswith(INDEX):
        return []
    try:
        shards = sorted(set(strict_json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        shards = []
    if not shards:
        raise HubError(f"{index.name} in the repository is not an index of shards", hint=ANOTHER)
    for shard in shards:
        if not _is_plain_name(shard):
            raise HubError(
                f"{index.name} in the repository names {str(shard)[:80]!r}, not a plain file name", hint=ANOTHER
            )
    return shards


def _is_plain_name(shard: object) -> bool:
    """An index is a stranger's text: it may ask for nothing outside the snapshot."""
    return isinstance(shard, str) and shard not in ("", ".", "..") and not any(mark in shard for mark in "/\\\0")


def _source(request: _Request, filename: str, weights: Path) -> HubSource:
    folder = weights.parents[filename.count("/")]  # <cache>/models--ORG--NAME/snapshots/<commit>
    return HubSource(folder, weights, request.label, request.repo, folder.name, request.architecture)


def _from_cache(request: _Request, why: str) -> HubSource:
    """What the cache holds of `request`; HubError, with `why` the hub cannot be asked, if that is not all of it."""
    found = [(name, path) for name in _candidates(request.filename) if (path := _cached(request, name))]
    for name, path in found:
        if all(_cached(request, shard) for shard in _shards(path)):
            return _source(request, name, path)
    state = "is only partly in the local cache" if found else "is not in the local cache"
    raise HubError(f"{request} {state} and the hub cannot be reached ({why})", hint=CARRY)


def _cached(request: _Request, filename: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(request.repo, filename, revision=request.revision)
    return Path(path) if isinstance(path, str) else None


def _list(request: _Request) -> _Listing:
    """The commit that the revision stands for, and its files."""
    from huggingface_hub import HfApi, constants

    with _hub_errors(request):
        try:
            timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
            info = HfApi().model_info(request.repo, revision=request.revision, timeout=timeout)
        except (KeyError, TypeError, json.JSONDecodeError):  # a login page of the network, or no hub at all
            raise _Unreachable(f"{constants.ENDPOINT} does not answer as a hub does") from None
    if info.sha is None:
        raise _Unreachable(f"{constants.ENDPOINT} does not say at which commit {request} is")
    return _Listing(info.sha, frozenset(file.rfilename for file in info.siblings or ()))


def _download(request: _Request, listing: _Listing, progress: bool) -> HubSource:
    """Fetch the weights and what lies beside them, all at one commit."""
    weights = next((name for name in _candidates(request.filename) if name in listing.files), None)
    if weights is None:
        raise HubError(f"{request} holds no weights under a name we know", hint=_files_hint(listing.files))
    companions = [name for name in COMPANIONS if name in listing.files]

    # The first file is asked for by the user's revision: that is what makes the cache note which commit it stands
    # for, and so what answers without a network. It may have moved since the listing.
    first = _get_file(request, (*companions, weights)[0], progress and not companions)
    commit = _source(request, (*companions, weights)[0], first).revision
    pinned = replace(request, revision=commit)
    if commit != listing.commit and commit != request.revision:
        return _download(pinned, _list(pinned), progress)

    for name in companions:
        _get_file(pinned, name, False)
    path = _get_file(pinned, weights, progress)
    for shard in _shards(path):
        if shard not in listing.files:
            raise HubError(f"{request} lacks {shard}, which its {weights} names", hint=ANOTHER)
        _get_file(pinned, shard, progress)
    return _source(request, weights, path)


def _get_file(request: _Request, filename: str, progress: bool) -> Path:
    from huggingface_hub import hf_hub_download

    bars = None if progress else _no_bars()
    with _hub_errors(request):
        return Path(hf_hub_download(request.repo, filename, revision=request.revision, tqdm_class=bars))


def _files_hint(files: Collection[str]) -> str:
    """Some of `files`, those at the root first: what the weights could be."""
    if not files:
        return "the repository is empty"
    some = sorted(files, key=lambda name: (name.startswith("."), name.count("/"), name))[:5]
    more = ", …" if len(files) > len(some) else ""
    return f"it holds {', '.join(some)}{more}; if one of them is the weights, download it and give its path"


# --- the library's ways ---


def _require(package: str, purpose: str) -> None:
    """HubError if `package` is not installed: both are wanted for names only, never for local files."""
    if importlib.util.find_spec(package) is None:
        raise HubError(f"{purpose} needs the package {package}", hint=f"pip install {package}, or give a local file")


def _no_bars() -> type[Any]:
    """A tqdm that draws nothing, for one call: `disable_progress_bars` would silence the whole process."""
    from huggingface_hub.utils.tqdm import tqdm

    bar: Any = tqdm

    class Silent(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))

    return Silent


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep the library's talk of retries and tokens off stderr, unless the user has set HF_HUB_VERBOSITY lower."""
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity

    before = get_verbosity()
    if before == logging.WARNING:
        set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(before)


@contextmanager
def _hub_errors(request: _Request) -> Iterator[None]:
    """Put what `huggingface_hub` raises into a sentence; _Unreachable where the network is at fault."""
    from huggingface_hub import errors

    # httpx2.HTTPError, in older versions httpx.HTTPError: every failure to get an answer derives from it.
    no_answer: Any = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.GatedRepoError:  # before RepositoryNotFoundError, its base
        raise HubError(f"{request.repo} is gated: its authors give access on request", hint=LOG_IN) from None
    except errors.RepositoryNotFoundError:
        hint = "check the spelling; a private one needs `hf auth login` or HF_TOKEN"
        raise NotFound(f"the hub has no repository {request.repo}, or keeps it private", hint=hint) from None
    except errors.RevisionNotFoundError:
        hint = "give a branch, a tag or a commit hash of it, or leave out @REVISION"
        raise NotFound(f"{request.repo} has no revision {request.revision!r}", hint=hint) from None
    except errors.LocalEntryNotFoundError as error:  # the library's word for "no network, and not cached"
        raise _Unreachable(_reason(error.__cause__ or error)) from None
    except errors.EntryNotFoundError as error:
        raise HubError(f"{request} has lost a file it lists ({_reason(error)})", hint=ANOTHER) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (408, 429) or status >= 500:
            raise _Unreachable(_reason(error)) from None
        raise HubError(f"the hub refuses {request} ({_reason(error)})", hint="check HF_TOKEN and HF_ENDPOINT") from None
    except no_answer as error:
        raise _Unreachable(_reason(error)) from None
    except (OSError, RuntimeError) as error:
        # Disk full has an errno. OfflineModeIsEnabled, a file that came short and the Xet client's errors have none.
        if getattr(error, "errno", None) is not None:
            raise
        raise _Unreachable(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """`error` in a few words, on one line."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{constants.ENDPOINT} answers {error.response.status_code} {error.response.reason_phrase}".rstrip()
    lines = str(error).strip().splitlines()
    return f"{constants.ENDPOINT}: {lines[0].rstrip('.') if lines else type(error).__name__}"
