"""Fetching by name, against a hub on 127.0.0.1.

`huggingface_hub` reads HF_ENDPOINT and HF_HOME once, at import, so every case runs in a process of its own; those
that need timm, whose import takes seconds, share one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer

from posinterp.errors import HubError
from posinterp.store import hub as hub_module
from posinterp.store.hub import is_hub_name

ROOT = Path(__file__).parents[1]
NOWHERE = "http://127.0.0.1:1"  # nothing listens there
BIG = bytes(range(256)) * 512
FILES = {"config.json": b'{"architecture": "vit"}', "model.safetensors": BIG, "README.md": b"#"}
INDEX = "model.safetensors.index.json"
PARTS = {"a-1.safetensors": b"1" * 100, "a-2.safetensors": b"2" * 100}

DRIVER = """
import json, sys, traceback
prelude, ckpts, progress = json.loads(sys.argv[1])
from posinterp.store.hub import fetch
from posinterp.errors import PosinterpError
early = sorted({"torch", "timm", "huggingface_hub"} & set(sys.modules))
exec(prelude)
answers = []
for ckpt in ckpts:
    try:
        source = fetch(ckpt, progress=progress)
        answers.append({key: None if value is None else str(value) for key, value in vars(source).items()})
    except PosinterpError as error:
        tracebacks = "".join(traceback.format_exception(error)).count("Traceback")
        answers.append({"kind": error.kind, "error": error.message, "hint": error.hint, "tracebacks": tracebacks})
from huggingface_hub.utils import are_progress_bars_disabled, logging
muted = are_progress_bars_disabled() or logging.get_verbosity() != logging.WARNING
late = sorted({"torch", "timm"} & set(sys.modules))
print(json.dumps({"answers": answers, "early": early, "late": late, "muted": muted}))
"""


Answers = dict[str, dict[str, Any]]


@dataclass
class Ran:
    answers: list[dict[str, Any]]
    early: list[str]  # heavy modules that importing posinterp.store.hub imported
    late: list[str]  # those imported after the fetches
    muted: bool  # huggingface_hub's bars or warnings, for the rest of the process
    stderr: str

    @property
    def source(self) -> dict[str, Any]:
        assert "folder" in self.answers[0], self.answers[0]
        return self.answers[0]

    @property
    def error(self) -> dict[str, Any]:
        """The error, of which a user sees one sentence, one hint and no second traceback."""
        error = self.answers[0]
        assert "error" in error, error
        assert "\n" not in error["error"]
        assert error["tracebacks"] == 1
        assert error["hint"]
        return error


@dataclass
class Client:
    """Runs `fetch` in a process with a Hugging Face cache of its own."""

    url: str
    home: Path

    def __call__(self, *ckpts: str, prelude: str = "", progress: bool = False, **extra: Any) -> Ran:
        kept = {key: value for key, value in os.environ.items() if not key.lower().startswith(("hf_", "tqdm_"))}
        env = kept | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        env |= {"HF_ENDPOINT": self.url, "HF_HOME": str(self.home)} | extra
        command = [sys.executable, "-c", DRIVER, json.dumps([prelude, ckpts, progress])]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return Ran(**json.loads(done.stdout), stderr=done.stderr)


@contextmanager
def serve() -> Iterator[HubServer]:
    repos: dict[str, dict[str, dict[str, bytes]]] = {
        "org/vit": {"main": FILES, "v1": FILES | {"model.safetensors": b"old" * 99}, "refs/pr/1": FILES | {"x": b"x"}},
        "org/moved": {"main": FILES, "before": {"config.json": b"{}", "pytorch_model.bin": BIG}},
        "org/bare": {"main": {"pytorch_model.bin": BIG}},
        "org/text": {"main": {".gitattributes": b"", "README.md": b"#", "dino_vits8.pth": BIG}},
        "org/empty": {"main": {}},
        "org/gated": {"main": FILES},
        "org/shards": {"main": PARTS | {"config.json": b"{}", INDEX: index_of(*PARTS)}},
        "org/lacking": {"main": {INDEX: index_of("gone.safetensors")}},
        "org/climbing": {"main": {INDEX: index_of("../../../evil.safetensors")}},
        "org/broken": {"main": {INDEX: b'{"weight_map": ["a"]}'}},
        "org/hollow": {"main": {INDEX: b'{"weight_map": {}}'}},
    }
    with HubServer(repos, gated=["org/gated"]) as server:
        yield server


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serve() as server:
        yield server


@pytest.fixture
def fetch(hub: HubServer, tmp_path: Path) -> Client:
    return Client(hub.url, tmp_path / "home")


def index_of(*shards: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": {f"t{i}": shard for i, shard in enumerate(shards)}}).encode()


def contents(source: Mapping[str, str]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(source["folder"]).iterdir()}


@pytest.mark.parametrize("name", ["hf-hub:a/b", "hf_hub:a/b@v1", "HF-Hub:a/b", "hf-hub:"])
def test_hub_names(name: str) -> None:
    assert is_hub_name(name)


@pytest.mark.parametrize("name", ["vit_base_patch16_224", "a/b", "local-dir:a", "hf-hub", "C:\\hf-hub:", ""])
def test_other_names(name: str) -> None:
    assert not is_hub_name(name)


def test_downloads_weights_and_config_without_torch_or_timm(hub: HubServer, fetch: Client) -> None:
    ran = fetch("hf-hub:org/vit")
    source = ran.source
    assert contents(source) == {"config.json": FILES["config.json"], "model.safetensors": BIG}
    assert Path(source["weights"]) == Path(source["folder"]) / "model.safetensors"
    assert Path(source["folder"]).is_relative_to(fetch.home)
    assert (source["label"], source["repo"], source["architecture"]) == ("vit", "org/vit", None)
    assert source["revision"] == hub.commit("org/vit")
    assert ran.early == ran.late == []


def test_second_fetch_moves_no_file(hub: HubServer, fetch: Client) -> None:
    first = fetch("hf-hub:org/vit").source
    assert hub.gets() == 2
    assert fetch("hf_hub:org/vit").source == first
    assert hub.gets() == 2


def test_revisions(hub: HubServer, fetch: Client) -> None:
    commit = hub.commit("org/vit", "v1")
    tag, by_commit, pull = fetch("hf-hub:org/vit@v1", f"hf-hub:org/vit@{commit}", "hf-hub:org/vit@refs/pr/1").answers
    assert tag == by_commit
    assert tag["revision"] == commit
    assert Path(tag["weights"]).read_bytes() == b"old" * 99
    assert pull["revision"] == hub.commit("org/vit", "refs/pr/1")


def test_every_file_is_of_one_commit_when_the_branch_moves(hub: HubServer, fetch: Client) -> None:
    # What the branch held when it was listed, and what it holds when the first file is asked for.
    moves = f"""
import huggingface_hub as h
ask = h.HfApi.model_info
def stale(self, repo, *, revision=None, **kwargs):
    return ask(self, repo, revision=revision or {hub.commit("org/moved", "before")!r}, **kwargs)
h.HfApi.model_info = stale
"""
    source = fetch("hf-hub:org/moved", prelude=moves).source
    assert source["revision"] == hub.commit("org/moved")
    assert contents(source) == {"config.json": FILES["config.json"], "model.safetensors": BIG}


def test_config_absent(fetch: Client) -> None:
    assert contents(fetch("hf-hub:org/bare").source) == {"pytorch_model.bin": BIG}


def test_sharded(fetch: Client) -> None:
    source = fetch("hf-hub:org/shards").source
    assert Path(source["weights"]).name == INDEX
    assert contents(source).keys() == {"config.json", INDEX, *PARTS}


def test_hostile_index(fetch: Client) -> None:
    cases = {
        "org/lacking": "org/lacking lacks gone.safetensors",
        "org/climbing": "'../../../evil.safetensors', not a plain file name",
        "org/broken": "is not an index of shards",
        "org/hollow": "is not an index of shards",
    }
    ran = fetch(*(f"hf-hub:{repo}" for repo in cases))
    for error, says in zip(ran.answers, cases.values(), strict=True):
        assert (error["kind"], error["tracebacks"]) == ("hub", 1)
        assert says in error["error"]
        assert error["hint"]
    assert not list(fetch.home.rglob("*.safetensors"))


@pytest.mark.parametrize(("package", "name"), [("timm", "vit_base_patch16_224"), ("huggingface_hub", "hf-hub:a/b")])
def test_package_not_installed(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HubError, match=f"needs the package {package} .*pip install {package}"):
        hub_module.fetch(name)


@pytest.mark.parametrize("shard", ["", ".", "..", "a/b", "/a", "a\\b", "a/", 3])
def test_shard_that_is_no_plain_name(tmp_path: Path, shard: object) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t": shard}}))
    with pytest.raises(HubError):
        hub_module._shards(tmp_path / INDEX)


@pytest.mark.parametrize(
    ("filename", "files", "chosen"),
    [
        (None, hub_module.WEIGHTS, "model.safetensors"),
        (None, hub_module.WEIGHTS[1:], INDEX),
        (None, hub_module.WEIGHTS[2:], "open_clip_model.safetensors"),
        (None, hub_module.WEIGHTS[3:], "pytorch_model.bin"),
        (None, hub_module.WEIGHTS[4:], "pytorch_model.bin.index.json"),
        (None, hub_module.WEIGHTS[5:], "open_clip_pytorch_model.bin"),
        ("open_clip_pytorch_model.bin", hub_module.WEIGHTS, "open_clip_model.safetensors"),
        ("pytorch_model.bin", ("pytorch_model.bin", "open_clip_model.safetensors"), "pytorch_model.bin"),
        ("sub/own.bin", ("model.safetensors", "sub/own.bin", "sub/own.safetensors"), "sub/own.safetensors"),
        ("sub/own.pth", ("model.safetensors", "sub/own.pth"), "sub/own.pth"),
        ("gone.bin", ("model.safetensors",), "model.safetensors"),
    ],
)
def test_choice_of_weights(filename: str | None, files: tuple[str, ...], chosen: str) -> None:
    assert next(name for name in hub_module._candidates(filename) if name in files) == chosen


def test_what_the_hub_has_not(fetch: Client) -> None:
    ran = fetch(
        "hf-hub:org/nope", "hf-hub:org/vit@v9", "hf-hub:org/gated", "hf-hub:org/text", "hf-hub:org/empty",
        "hf-hub:a/b/c", "hf-hub:", "hf-hub:a/b@", "hf-hub:a/b@c@d", "org/vit", "no/such/file.bin",
    )  # fmt: skip
    nope, revision, gated, text, empty, *misspelt, repo, path = ran.answers
    assert (nope["kind"], nope["error"]) == ("not_found", "the hub has no repository org/nope, or keeps it private")
    assert (revision["kind"], revision["error"]) == ("not_found", "org/vit has no revision 'v9'")
    assert (gated["kind"], "org/gated is gated" in gated["error"]) == ("hub", True)
    assert "hf auth login" in gated["hint"]
    assert (text["kind"], "org/text holds no weights" in text["error"]) == ("hub", True)
    assert "it holds README.md, dino_vits8.pth, .gitattributes;" in text["hint"]
    assert empty["hint"] == "the repository is empty"
    assert [error["kind"] for error in misspelt] == ["not_found"] * 4
    assert misspelt[1]["error"] == "'hf-hub:' names no hub repository"
    assert "hf-hub:org/vit" in repo["hint"]
    assert path["error"] == "there is no file or folder no/such/file.bin"
    assert path["hint"] == "a hub repository is spelt hf-hub:ORG/NAME"
    assert all(error["hint"] and error["tracebacks"] == 1 for error in ran.answers)
    assert ran.late == []


CACHED = ("hf-hub:org/vit", "hf-hub:org/vit@v1", "hf-hub:org/shards")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A cache that holds CACHED, and what `fetch` said of them while there was a hub."""
    home = tmp_path_factory.mktemp("home")
    with serve() as server:
        answers = Client(server.url, home)(*CACHED).answers
    assert all("folder" in answer for answer in answers)
    return home, answers


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("offline", "HF_HUB_OFFLINE is set"),
        ("unreachable", "Connection refused"),
        ("unavailable", "answers 503 Service Unavailable"),
        ("silent", "timed out"),
        ("no hub", "does not answer as a hub does"),
    ],
)
def test_without_a_hub_the_cache_is_used(
    hub: HubServer, filled: tuple[Path, list[dict[str, Any]]], way: str, why: str
) -> None:
    if way == "unavailable":
        hub.status = 503
    elif way == "no hub":
        hub.status, hub.body = 200, b"<html>Log in to the hotel</html>"
    elif way == "silent":
        hub.delay = 2
    extra = {"offline": {"HF_HUB_OFFLINE": "1"}, "silent": {"HF_HUB_ETAG_TIMEOUT": "1"}}
    names = CACHED[:1] if way == "silent" else CACHED  # a second's wait for each
    home, answers = filled
    client = Client(NOWHERE if way == "unreachable" else hub.url, home)
    ran = client("hf-hub:org/bare", *names, **extra.get(way, {}))
    assert ran.error["kind"] == "hub"
    assert ran.error["error"].startswith("org/bare is not in the local cache and the hub cannot be reached (")
    assert why in ran.error["error"]
    assert ran.error["hint"] == "download it where there is a network, or give a local file"
    assert ran.answers[1:] == answers[: len(names)]
    assert hub.gets() == 0


def test_offline_with_half_of_the_shards(fetch: Client) -> None:
    source = fetch("hf-hub:org/shards").source
    (Path(source["folder"]) / "a-2.safetensors").unlink()
    error = fetch("hf-hub:org/shards", HF_HUB_OFFLINE="1").error
    assert error["error"].startswith("org/shards is only partly in the local cache")


NO_SLEEP = "import time; time.sleep = lambda seconds: None"  # between the five attempts of huggingface_hub


def test_hub_dies_mid_download(hub: HubServer, fetch: Client) -> None:
    hub.cut, hub.dies = 1000, True
    ran = fetch("hf-hub:org/vit", prelude=NO_SLEEP)
    error = ran.error
    assert ran.stderr == ""
    assert (error["kind"], error["hint"]) == ("hub", "run it again: whole files are kept")
    assert error["error"].startswith("the download of org/vit broke off (")
    assert not list(fetch.home.rglob("*.incomplete"))
    assert not list(fetch.home.rglob("model.safetensors"))


def test_connection_breaks_and_comes_back(hub: HubServer, fetch: Client) -> None:
    hub.cut = 60_000  # of 131072 bytes: the third request brings the rest
    chunks = "; import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 1000"  # what is lost with a connection
    source = fetch("hf-hub:org/vit", prelude=NO_SLEEP + chunks).source
    assert Path(source["weights"]).read_bytes() == BIG
    assert hub.gets() == 1 + 3


def test_refused_with_another_status(hub: HubServer, fetch: Client) -> None:
    hub.status = 403
    error = fetch("hf-hub:org/vit").error
    assert (error["kind"], "the hub refuses org/vit" in error["error"]) == ("hub", True)


def test_disk_trouble_is_left_alone(fetch: Client) -> None:
    full = "import errno, huggingface_hub as h\ndef hf_hub_download(*a, **k): raise OSError(errno.ENOSPC, 'full')\n"
    with pytest.raises(AssertionError, match=r"OSError: .*full"):
        fetch("hf-hub:org/vit", prelude=full + "h.hf_hub_download = hf_hub_download")


@pytest.mark.parametrize("progress", [True, False])
def test_progress(fetch: Client, progress: bool) -> None:
    # TQDM_POSITION=-1 has the library draw where stderr is no terminal.
    ran = fetch("hf-hub:org/vit", progress=progress, TQDM_POSITION="-1")
    assert ("model.safetensors: 100%" in ran.stderr) == progress
    assert "config.json" not in ran.stderr
    assert progress or ran.stderr == ""
    assert not ran.muted


# A model of another organisation, under another file name than the usual.
OTHER_ORG = """
import sys, types
from timm.models import generate_default_cfgs, register_model
module = types.ModuleType("timm_other"); sys.modules["timm_other"] = module
cfg = {"hf_hub_id": "other/repo@v2", "hf_hub_filename": "sub/own.bin"}
module.default_cfgs = generate_default_cfgs({"vit_other_org.x_in1k": cfg})
def vit_other_org(pretrained=False, **kwargs): raise AssertionError("built")
vit_other_org.__module__ = "timm_other"
register_model(vit_other_org)
"""
TIMM = {
    "bare": "vit_base_patch16_224",
    "tagged": "vit_base_patch16_224.augreg_in21k",
    "renamed": "vit_base_patch16_224_in21k",
    "other org": "vit_other_org",
    "bad tag": "vit_base_patch16_224.augreg_in21",
    "misspelt": "vit_base_patch_16_224",
    "case": "VIT_BASE_PATCH16_224.mae",
    "nonsense": "qqqqqqqq",
    "untrained": "vit_base_patch16_gap_224",
    "elsewhere": "vit_huge_patch14_gap_224.in1k_ijepa",
    "not on this hub": "vit_base_patch16_224.mae",
}


@pytest.fixture(scope="module")
def timm_answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    repos = {
        "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k": {"main": FILES},
        "timm/vit_base_patch16_224.augreg_in21k": {"main": FILES | {"model.safetensors": b"21k"}},
        "other/repo": {"main": {}, "v2": {"sub/own.safetensors": b"own", "model.safetensors": b"no"}},
    }
    with HubServer(repos) as server:
        ran = Client(server.url, tmp_path_factory.mktemp("home"))(*TIMM.values(), prelude=OTHER_ORG)
    assert ran.early == []
    return dict(zip(TIMM, ran.answers, strict=True))


@pytest.mark.parametrize(
    ("case", "repo", "label", "content"),
    [
        ("bare", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", "vit_base_patch16_224.augreg2_in21k_ft_in1k", BIG),
        ("tagged", "timm/vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k", b"21k"),
        ("renamed", "timm/vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k", b"21k"),
        ("other org", "other/repo", "vit_other_org.x_in1k", b"own"),
    ],
)
def test_timm_name(timm_answers: Answers, case: str, repo: str, label: str, content: bytes) -> None:
    source = timm_answers[case]
    assert (source.get("repo"), source.get("label")) == (repo, label), source
    assert source["architecture"] == label.partition(".")[0]
    assert Path(source["weights"]).read_bytes() == content
    assert Path(source["folder"]).name == source["revision"]


@pytest.mark.parametrize(
    ("case", "kind", "says", "hint"),
    [
        (
            "bad tag",
            "not_found",
            "vit_base_patch16_224 has no weights tagged 'augreg_in21'",
            "its tags are augreg_in21k,",
        ),
        ("misspelt", "not_found", "timm model is called vit_base_patch_16_224", "did you mean vit_base_patch16_224 "),
        ("case", "not_found", "timm model is called VIT_BASE", "did you mean vit_base_patch16_224 "),
        ("nonsense", "not_found", "is called qqqqqqqq", "timm.list_models() lists"),
        ("elsewhere", "hub", "not on the hub but at https://dl.fbaipublicfiles.com/ijepa/", "download that file"),
        ("not on this hub", "not_found", "has no repository timm/vit_base_patch16_224.mae", "check the spelling"),
    ],
)
def test_timm_name_that_fails(timm_answers: Answers, case: str, kind: str, says: str, hint: str) -> None:
    error = timm_answers[case]
    assert error["kind"] == kind
    assert says in error["error"]
    assert error["hint"].startswith(hint)
    assert error["tracebacks"] == 1


def test_timm_name_without_weights(timm_answers: Answers) -> None:
    error = timm_answers["untrained"]
    assert error["kind"] == "not_found"
    assert error["error"] == "timm has no pretrained weights for vit_base_patch16_gap_224.untrained"
    assert error["hint"] == "no tag of it has any; give a local file"
