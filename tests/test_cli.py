"""The command line as a contract: texts, exit codes, JSON, colour, weight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import load, save, timm_config, vit

from posinterp.families import FAMILIES
from posinterp.version import VERSION

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    return save(tmp_path / "vit_b.safetensors", vit())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "vit", vit(), timm_config("vit_tiny_patch16_224", (224, 224)))


# ------------------------------------------------------------------ answers


def test_resize_says_what_it_did(cli: Run, folder: Path) -> None:
    done = cli("resize", "vit", "--img", "384")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "vit · 224 → 384 · patch 16 · bicubic, antialias",
        "  pos_embed   1×197×8 → 1×577×8   1 prefix + 14×14 → 24×24",
        "  7 other tensors copied",
        "wrote vit-384/ (model.safetensors, config.json)",
        "next: posinterp verify vit-384 --against vit",
    ]


def test_a_source_size_that_was_told_from_the_rows_is_said(cli: Run, ckpt: Path) -> None:
    done = cli("resize", ckpt.name, "--img", "384", "-o", "out.safetensors")
    assert "  source size 224 told from a square grid of its rows; if that is wrong, say --src-img\n" in done.stdout
    assert "wrote out.safetensors\n" in done.stdout


def test_dry_run_writes_nothing(cli: Run, ckpt: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = cli("resize", ckpt.name, "--img", "384x512", "--dry-run")
    assert done.returncode == 0
    assert "224 → 384x512" in done.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_the_size_it_has_already(cli: Run, ckpt: Path, tmp_path: Path) -> None:
    done = cli("resize", ckpt.name, "--img", "224", "-o", "same.safetensors")
    assert done.returncode == 0
    assert "nothing to resample: it is at that size already" in done.stdout
    for name, value in load(ckpt).items():
        np.testing.assert_array_equal(load(tmp_path / "same.safetensors")[name], value)


def test_quiet_prints_the_path_alone(cli: Run, ckpt: Path) -> None:
    done = cli("resize", ckpt.name, "--img", "384", "-q")
    assert (done.stdout, done.stderr) == ("vit_b-384\n", "")


def test_json_is_one_object(cli: Run, folder: Path) -> None:
    done = cli("resize", "vit", "--img", "256x384", "--json")
    answer = json.loads(done.stdout)
    assert answer.keys() == {"schema", "command", "plan", "output"}
    assert (answer["schema"], answer["command"]) == (1, "resize")
    assert answer["plan"]["dst_img"] == [256, 384]
    (edit,) = answer["plan"]["edits"]
    assert (edit["name"], edit["grid"], edit["new_grid"], edit["extra_rows"]) == ("pos_embed", [14, 14], [16, 24], 1)
    assert answer["plan"]["config"] == [
        {"file": "config.json", "key": "model_args.img_size", "before": [224, 224], "after": [256, 384]},
        {"file": "config.json", "key": "pretrained_cfg.input_size", "before": [3, 224, 224], "after": [3, 256, 384]},
    ]
    assert answer["output"] == {
        "path": "vit-256x384",
        "files": ["model.safetensors", "config.json"],
        "left_out": [],
        "notes": [],
    }


def test_several_sizes_are_as_many_outputs(cli: Run, folder: Path, tmp_path: Path) -> None:
    done = cli("resize", "vit", "--img", "384,256x320", "-o", "sizes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("next: posinterp verify sizes/vit-") == 2
    for size in ("384", "256x320"):
        assert cli("resize", "vit", "--img", size, "-o", f"alone-{size}").returncode == 0
        for name in ("model.safetensors", "config.json"):
            assert (tmp_path / f"sizes/vit-{size}/{name}").read_bytes() == (
                tmp_path / f"alone-{size}/{name}"
            ).read_bytes()
    assert cli("resize", "vit", "--img", "384,256", "-q").stdout.split() == ["vit-384", "vit-256"]
    answer = json.loads(cli("resize", "vit", "--img", "384,256", "--json", "--dry-run").stdout)
    assert [one["plan"]["dst_img"] for one in answer["sizes"]] == [[384, 384], [256, 256]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["384,390"], "390 is not a multiple of the patch size 16"),
        (["384,"], "'' is no image size"),
        (["384,384x384"], "--img says 384 twice"),
        (["384,256", "-o", "one.safetensors"], "one.safetensors is one file, for 2 sizes"),
        (["256,384"], "vit-384 exists and is not empty"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nothing_is_written_if_one_of_several_sizes_cannot_be(
    cli: Run, folder: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    if words == ["256,384"]:
        (tmp_path / "vit-384").mkdir()
        (tmp_path / "vit-384" / "notes.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = cli("resize", "vit", "--img", *words)
    assert (done.returncode, said in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_failure_says_what_was_written_before_it(cli: Run, folder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "vit" / "model.safetensors"
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "vit-256").symlink_to(tmp_path / "nowhere" / "else")
    done = cli("resize", "vit", "--img", "384,256", "-o", "sizes")
    assert done.returncode == 2
    assert "written before: sizes/vit-384" in done.stderr
    assert weights.exists()


def test_inspect_says_what_it_is(cli: Run, folder: Path) -> None:
    done = cli("inspect", "vit")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "vit (timm)",
        "  image    224 (told from config.json model_args.img_size)",
        "  patch    16×16 pixels a place, grid 14×14",
        "  prefix   1 row; tokens: cls_token (1)",
        "  method   bicubic, antialias",
        "  sizes    192, 208, 240, 256, 448 fit, among others",
        "  pos_embed   1×197×8 F32   1 (p h w) c",
        "    norms 2.71 ± 0.69; neighbours alike -0.01 down, -0.00 across; rows and columns explain 1%; effective rank 7.7",
        "  8 tensors, 32.1 kB, in model.safetensors",
        "next: posinterp resize vit --img 448",
    ]


@pytest.mark.parametrize(("size", "code"), [("384", 0), ("390", 1)])
def test_inspect_answers_whether_a_size_fits(cli: Run, ckpt: Path, size: str, code: int) -> None:
    done = cli("inspect", ckpt.name, "--img", size)
    assert done.returncode == code
    assert ("does not fit: 390 is not a multiple of the patch size 16" in done.stdout) == bool(code)
    answer = json.loads(cli("inspect", ckpt.name, "--img", size, "--json").stdout)
    assert answer["fits"] is (code == 0)


def test_families_lists_all(cli: Run) -> None:
    done = cli("families", "-q")
    assert done.stdout.split() == [family.name for family in FAMILIES]
    answer = json.loads(cli("families", "--json").stdout)
    assert {family["name"] for family in answer["families"]} == set(done.stdout.split())
    assert "bilinear" in cli("families", "flexivit_small").stdout
    wrong = cli("families", "flexvit")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, "error: there is no family 'flexvit'")
    assert "did you mean flexivit" in wrong.stderr


def test_version_and_help(cli: Run) -> None:
    versions = dict(line.split(maxsplit=1) for line in cli("--version").stdout.splitlines())
    assert versions["posinterp"] == VERSION
    assert versions["numpy"] == np.__version__
    assert all(name in versions for name in ("python", "torch", "timm", "transformers", "open_clip_torch"))
    text = cli("--help").stdout
    assert all(command in text for command in ("resize", "inspect", "verify", "families"))
    options = cli("resize", "--help").stdout
    for option in (
        "--img",
        "--out",
        "--patch",
        "--method",
        "--antialias",
        "--src-img",
        "--family",
        "--dry-run",
        "--force",
        "--json",
    ):
        assert option in options


# ------------------------------------------------------------------ mistakes: one sentence, one way out, exit 2

MISTAKES = [
    (["resize", "vit_b.safetensors", "--img", "390"], "390 is not a multiple of the patch size 16", "the nearest sizes are 384 and 400"),
    (["resize", "vit_b.safetensors", "--img", "abc"], "'abc' is no image size", "write 384, or 384x512 for height x width, in pixels"),
    (["resize", "vit_b.safetensors", "--img", "0"], "an image side of 0 pixels is not positive", "multiples of the patch size"),
    (["resize", "vit_b.safetensors", "--img", "9" * 24], "too large", "sides are between 1 and"),
    (["resize", "vit_b.safetensors", "--img", "1000000"], "too large", "check the target size"),
    (["resize", "vit_b.safetensors"], "no target size was given", "--img"),
    (["resize", "vit_b.safetensors", "--img", "384", "--method", "bicubik"], "there is no method 'bicubik'", "did you mean bicubic? the methods are"),
    (["resize", "vit_b.safetensors", "--img", "384", "--rule", "pos_embd = 1 (p h w) c"], "names no tensor", "did you mean pos_embed?"),
    (["resize", "vit_b.safetensors", "--img", "384", "--method", "cubic"], "there is no method 'cubic'", "nearest, nearest-exact, bilinear"),
    (["resize", "vit_b.safetensors", "--img", "384", "--method", "area", "--antialias"], "area has no antialiased form", "bicubic"),
    (["resize", "vit_b.safetensors", "--img", "384", "--src-img", "256"], "--src-img says 256, a grid of 16×16; pos_embed of shape 1×197×8 is for 224 (14×14)", "224"),
    (["resize", "vit_b.safetensors", "--img", "384", "--family", "sam-base"], "this is no sam-base: it lacks", "leave --family out"),
    (["resize", "vit_b.safetensors", "--img", "384", "-o", "x.onnx"], ".onnx files are not written", ".safetensors"),
    (["resize", "vit_b.safetensors", "--img", "384", "-o", "vit_b.safetensors"], "vit_b.safetensors is the source itself", "--force"),
    (["resize", "vit_b.safetensors", "--img", "384", "-o", "rect.safetensors"], "rect.safetensors exists", "--force"),
    (["resize", "missing.safetensors", "--img", "384"], "there is no checkpoint at missing.safetensors", "a file, a folder, hf-hub:ORG/NAME"),
    (["resize", "notes.txt", "--img", "384"], "no safetensors file", None),
    (["resize", "empty", "--img", "384"], "empty has no weights: it is empty", "looked for model.safetensors"),
    (["resize", "convnet.safetensors", "--img", "384"], "no known family, and no position embedding", "`posinterp families`"),
    (["resize", "text.safetensors", "--img", "384"], "these tensors are of no family known here; its positions: positional_embedding 77×8", "`posinterp families`"),
    (["resize", "rect.safetensors", "--img", "384"], "pos_embed of shape 1×129×8 holds no square grid beside 0 or 1 prefix rows", "--src-img"),
    (["resize", "nan.safetensors", "--img", "384"], "pos_embed holds values that are not finite", "repair"),
    (["resize", "int.safetensors", "--img", "384"], "pos_embed is stored as I64", "cast"),
    (["inspect", "missing"], "no file, folder or timm model is called missing", None),
    (["verify", "missing.safetensors"], "there is no checkpoint at missing.safetensors", None),
]  # fmt: skip


@pytest.fixture
def mistakes(tmp_path: Path, ckpt: Path) -> Path:
    (tmp_path / "notes.txt").write_text("not a checkpoint, but some notes on one")
    (tmp_path / "empty").mkdir()
    save(tmp_path / "convnet.safetensors", {"conv1.weight": np.zeros((4, 3, 3, 3), np.float32)})
    save(tmp_path / "text.safetensors", {"positional_embedding": np.zeros((77, 8), np.float32)})
    save(tmp_path / "rect.safetensors", vit((16, 8)))
    save(tmp_path / "nan.safetensors", vit() | {"pos_embed": np.full((1, 197, 8), np.nan, np.float32)})
    save(tmp_path / "int.safetensors", vit() | {"pos_embed": np.zeros((1, 197, 8), np.int64)})
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message", "hint"), MISTAKES, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_mistakes(cli: Run, mistakes: Path, words: list[str], message: str, hint: str | None) -> None:
    before = {path: path.stat().st_mtime_ns for path in mistakes.rglob("*")}
    done = cli(*words, env=OFFLINE)
    assert (done.returncode, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert len(rest) <= 1
    assert hint is None or (rest[0].startswith("hint: ") and hint in rest[0])
    assert {path: path.stat().st_mtime_ns for path in mistakes.rglob("*")} == before
    answer = json.loads(cli(*words, "--json", env=OFFLINE).stdout)
    assert message in answer["error"]["message"]
    assert answer["error"]["kind"]


OFFLINE = {"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin", "HOME": "/nonexistent"}


def test_wrong_options_are_usage_errors(cli: Run) -> None:
    done = cli("resize", "x", "--imgs", "384")
    assert done.returncode == 2
    assert "--imgs" in done.stderr


@pytest.mark.parametrize(
    ("words", "command", "message"),
    [
        (["resize", "x", "--imgs", "384"], "resize", "--imgs"),
        (["resize"], "resize", "CKPT"),
        (["verify", "x", "--fail-under", "much"], "verify", "--fail-under"),
        (["resise", "x"], "", "resise"),
    ],
)
def test_wrong_options_are_json_too(cli: Run, words: list[str], command: str, message: str) -> None:
    done = cli(*words, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    said = json.loads(done.stdout)
    assert (said["command"], said["error"]["kind"]) == (command, "bad_usage")
    assert message in said["error"]["message"]


def test_json_keeps_the_exit_codes(cli: Run, ckpt: Path) -> None:
    assert cli("inspect", ckpt, "--img", "390", "--json").returncode == 1
    assert cli("inspect", ckpt, "--json").returncode == 0
    assert cli("resize", ckpt, "--img", "x", "--json").returncode == 2


def test_an_unexpected_exception_is_called_a_bug(tmp_path: Path, ckpt: Path) -> None:
    script = "import posinterp.planning as p; p.find_models = None; import sys; sys.argv = ['posinterp', 'inspect', 'vit_b.safetensors']\nfrom posinterp.cli import main; main()"
    script = script.replace("p.find_models = None", "import posinterp.inspection as i; i.models_of = None")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "this is a bug in posinterp" in done.stderr
    assert "Traceback" in done.stderr


# ------------------------------------------------------------------ colour


@pytest.mark.parametrize(
    ("words", "coloured"), [([], False), (["--color", "always"], True), (["--color", "never"], False)]
)
def test_no_colour_when_piped(cli: Run, ckpt: Path, words: list[str], coloured: bool) -> None:
    assert ("\033[" in cli("inspect", ckpt.name, *words).stdout) == coloured
    assert ("\033[" in cli("resize", ckpt.name, "--img", "390", *words).stderr) == coloured


def test_an_ascii_terminal_is_no_reason_to_fail(cli: Run, ckpt: Path) -> None:
    done = cli("resize", ckpt.name, "--img", "384", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("vit ? 224 ? 384 ? patch 16")


# ------------------------------------------------------------------ completion


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("posinterp ins", "inspect"),
        ("posinterp resize x --method bic", "bicubic"),
        ("posinterp resize x --family hf-dinov2-", "hf-dinov2-registers"),
        ("posinterp families mvit", "mvitv2"),
        ("posinterp peg x --mode hy", "hybrid"),
        ("posinterp resize x --optimizer k", "keep"),
    ],
)
def test_a_shell_completes_what_can_be_named(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_POSINTERP_COMPLETE": "complete_bash"}
    script = "import sys; sys.argv = ['posinterp']; from posinterp.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **words})
    assert done.stdout.split() == [offered]


# ------------------------------------------------------------------ weight

HEAVY = ("torch", "timm", "huggingface_hub", "matplotlib", "rich")
PROBE = """
import sys
sys.argv = ["posinterp", *{words!r}]
from posinterp.cli import main
try:
    main()
finally:
    sys.stderr.write("loaded: " + " ".join(name for name in {heavy!r} if name in sys.modules))
"""


def loaded(tmp_path: Path, *words: str) -> set[str]:
    script = PROBE.format(words=list(words), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    return set(done.stderr.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize(
    "words",
    [
        ["resize", "vit_b.safetensors", "--img", "384"],
        ["resize", "vit_b.pth", "--img", "384"],
        ["inspect", "vit_b.safetensors"],
        ["families"],
        ["plot", "vit_b.safetensors", "--img", "384", "--term"],
        ["--help"],
        ["resize", "vit_b.safetensors", "--img", "390"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(tmp_path: Path, ckpt: Path, words: list[str]) -> None:
    import torch

    torch.save({name: torch.from_numpy(value) for name, value in vit().items()}, tmp_path / "vit_b.pth")
    assert loaded(tmp_path, *words) == set()


def test_the_probe_can_fail(tmp_path: Path, ckpt: Path) -> None:
    assert "torch" in loaded(tmp_path, "resize", "vit_b.safetensors", "--img", "384", "-o", "out.pth")


def test_importing_the_package_is_light() -> None:
    script = (
        "import sys, posinterp; print([n for n in ('numpy', 'torch', 'typer') if n in sys.modules]); posinterp.resample"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n")


def test_every_public_name_is_there() -> None:
    import posinterp as pi

    for name in pi.__all__:
        assert getattr(pi, name) is not None
    with pytest.raises(AttributeError):
        pi.interpolate  # noqa: B018
