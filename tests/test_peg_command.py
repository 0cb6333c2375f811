"""`posinterp peg` and what proves it: what each mode promises, on files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import FIXTURE, load, save, swin, timm_config, vit
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_peg import EXAMPLES, example, image, other_sizes, strengthened
from typer.testing import CliRunner

import posinterp as pi
from posinterp.errors import BadUsage, BadValues, NotFound, OutputExists, PosinterpError, Unsupported
from posinterp.pegging import completed, plan_peg
from posinterp.torch import load_resized, to_peg
from posinterp.torch.conversion import distil, fit, fitted
from posinterp.verification import Verdict

torch.set_num_threads(1)
Cli = Callable[..., subprocess.CompletedProcess[str]]


def folder(place: Path, kind: str) -> tuple[Path, Any]:
    """An example as a folder that timm would have saved, and the model."""
    name, arguments = EXAMPLES[kind]
    model: Any = example(kind)
    size = list(model.patch_embed.img_size)
    config = {
        "architecture": name,
        "num_classes": 5,
        "model_args": {**{k: v for k, v in arguments.items() if k != "num_classes"}, "img_size": size},
        "pretrained_cfg": {"input_size": [3, *size], "num_classes": 5},
    }
    path = place / kind
    path.mkdir(parents=True)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt", "kept": "yes"})
    (path / "config.json").write_text(json.dumps(config))
    return path, model


def opened(path: Path) -> Any:
    return timm.create_model(f"local-dir:{path}", pretrained=True).eval()


def failures(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.checks if check.status == "fail"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, some of them below it, grey."""
    place = tmp_path_factory.mktemp("pictures")
    (place / "more").mkdir()
    with np.load(FIXTURE.parent / "fashion-test.npz") as data:
        for i, pixels in enumerate(data["images"][:48]):
            Image.fromarray(pixels).save(place / ("more" if i % 2 else ".") / f"{i:02}.png")
    (place / "notes.txt").write_text("no image")
    return place


# ------------------------------------------------------------------ hybrid


@pytest.mark.parametrize("kind", EXAMPLES)
def test_hybrid_is_its_source_bit_for_bit(kind: str, tmp_path: Path) -> None:
    source, model = folder(tmp_path, kind)
    pi.peg(source, tmp_path / "out", after=(0, 1))
    new = opened(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(new(image(model)), model(image(model)))
        assert torch.equal(new.forward_features(image(model)), model.forward_features(image(model)))
        for size in other_sizes(model):
            assert torch.isfinite(new(image(model, size))).all()
    verdict = pi.verify(tmp_path / "out", against=source)
    assert failures(verdict) == []
    assert verdict.checks[-1].detail.endswith("bit for bit")


def test_what_does_not_change_is_copied_as_bytes(tmp_path: Path) -> None:
    source, _ = folder(tmp_path, "distilled")
    for mode, untouched in (("hybrid", 0), ("replace", 3)):
        out = tmp_path / mode
        plan = pi.peg(source, out, mode=mode)
        old, new = load(source), load(out)
        same = [name for name in old if name in new and old[name].tobytes() == new[name].tobytes()]
        assert len(same) == len(old) - untouched - (mode == "replace")
        assert {*new} - {*old} == {"peg.0.proj.weight", "peg.0.proj.bias"} <= {*plan.made}
        with safe_open(out / "model.safetensors", "pt") as file:
            metadata = file.metadata()
        assert metadata["kept"] == "yes"
        said = json.loads(metadata["posinterp_peg"])
        assert (said["mode"], said["after"], said["kernel"], said["pool"]) == (mode, [0], 3, "token")


def test_another_size_stores_the_table_that_resize_stores(tmp_path: Path) -> None:
    pi.peg(FIXTURE, tmp_path / "peg", img=(44, 36))
    pi.resize(FIXTURE, (44, 36), tmp_path / "resized")
    assert np.array_equal(load(tmp_path / "peg")["pos_embed"], load(tmp_path / "resized")["pos_embed"])
    new, old = opened(tmp_path / "peg"), opened(tmp_path / "resized")
    x = torch.randn(2, 1, 44, 36)
    with torch.no_grad():
        assert torch.equal(new(x), old(x))
    assert pi.verify(tmp_path / "peg", against=FIXTURE).ok
    assert pi.verify(tmp_path / "peg").ok


# ------------------------------------------------------------------ replace


@pytest.mark.parametrize("kind", EXAMPLES)
def test_replace_is_what_to_peg_gives(kind: str, tmp_path: Path) -> None:
    source, model = folder(tmp_path, kind)
    pi.peg(source, tmp_path / "out", mode="replace", kernel=5)
    wanted = to_peg(model, kernel=5, table=False).state_dict()
    new = load_file(tmp_path / "out" / "model.safetensors")
    assert "pos_embed" not in new
    assert new.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in new.items())
    assert opened(tmp_path / "out")(image(model, other_sizes(model)[2])).shape == (2, 5)
    verdict = pi.verify(tmp_path / "out", against=source)
    assert failures(verdict) == []
    assert "the table added back: the source's outputs" in verdict.checks[-1].detail


def test_pooling_over_patches_takes_the_class_token_out(tmp_path: Path) -> None:
    source, model = folder(tmp_path, "class")
    plan = pi.peg(source, tmp_path / "out", mode="replace", pool="avg")
    new = load(tmp_path / "out")
    assert {"pos_embed", "cls_token"} & {*new} == set()
    assert {"norm.weight", "norm.bias"} < {*new}, "timm would call it fc_norm"
    assert plan.dropped == ("pos_embed", "cls_token")
    built = opened(tmp_path / "out")
    wanted = to_peg(model, table=False, pool="avg")
    with torch.no_grad():
        assert torch.equal(built(image(model)), wanted(image(model)))
    assert pi.verify(tmp_path / "out", against=source).ok


def test_half_precision_is_rounded_once(tmp_path: Path) -> None:
    source, _ = folder(tmp_path, "class")
    weights = load_file(source / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in weights.items()}, source / "model.safetensors")
    pi.peg(source, tmp_path / "out", mode="replace")
    old, new = (load_file(path / "model.safetensors") for path in (source, tmp_path / "out"))
    exact = old["patch_embed.proj.bias"].double() + old["pos_embed"].double()[0, 1:].mean(0)
    assert torch.equal(new["patch_embed.proj.bias"], exact.bfloat16())
    assert {value.dtype for value in new.values()} == {torch.bfloat16}


# ------------------------------------------------------------------ fitting


def test_the_fit_is_ridge_regression(tmp_path: Path) -> None:
    """One channel's numbers by torch's least squares on shifted maps, built without unfold."""
    model: Any = example("class").double()
    new, x = to_peg(model, table=False), image(model, batch=6).double()
    plain = to_peg(model, table=False)
    fit(new, model, x, penalty=1e-9, batch=4)
    with torch.no_grad():
        aim, own = (m.forward_intermediates(x, indices=[0], intermediates_only=True)[0] for m in (model, plain))
    for channel in (0, 17):
        lack = (aim - own)[:, channel]
        padded = torch.zeros(6, 16, 16, dtype=torch.float64)
        padded[:, 1:15, 1:15] = own[:, channel]
        taps = [padded[:, a : a + 14, b : b + 14].flatten() for a in range(3) for b in range(3)]
        columns = torch.stack([*taps, torch.ones(lack.numel(), dtype=torch.float64)], 1)
        found = torch.linalg.lstsq(columns, lack.flatten()[:, None]).solution[:, 0]
        peg = new.peg["0"].proj
        torch.testing.assert_close(peg.weight[channel, 0].flatten(), found[:9], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(peg.bias[channel], found[9], rtol=1e-4, atol=1e-6)


def test_fitting_helps_on_images_it_did_not_see(tmp_path: Path, pictures: Path) -> None:
    plan = completed(plan_peg(FIXTURE, mode="replace", after=(0, 1)), tmp_path / "out", images=pictures)
    assert plan.record["fitted"] == 48
    pi.peg(FIXTURE, tmp_path / "out", mode="replace", after=(0, 1), images=pictures)
    pi.peg(FIXTURE, tmp_path / "zero", mode="replace", after=(0, 1))
    source = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()
    with np.load(FIXTURE.parent / "fashion-test.npz") as data:
        x = (torch.from_numpy(data["images"][500:700]).float()[:, None] / 255 - 0.286041) / 0.353024
    with torch.no_grad():
        aim = source.forward_features(x)
        off = {name: (opened(tmp_path / name).forward_features(x) - aim).square().mean() for name in ("out", "zero")}
    assert off["out"] < 0.95 * off["zero"]
    verdict = pi.verify(tmp_path / "out", against=FIXTURE, images=pictures)
    assert failures(verdict) == []
    assert "4 random and 32 real images" in verdict.checks[-1].detail


# ------------------------------------------------------------------ distilling


def test_distillation_comes_nearer_to_the_source_and_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posinterp.torch import conversion

    with np.load(FIXTURE.parent / "fashion-test.npz") as data:
        x = (torch.from_numpy(data["images"][:200]).float()[:, None] / 255 - 0.286041) / 0.353024
    source = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()

    def run(steps: int = 8, **more: Any) -> tuple[Any, list[float]]:
        model, losses = to_peg(source, table=False), []
        tick = more.pop("tick", lambda step, loss: losses.append(loss))
        distil(model, source, x, steps, batch=16, tick=tick, **more)
        return model, losses

    whole, losses = run()
    assert np.mean(losses[-3:]) < 0.8 * losses[0]

    monkeypatch.setattr(conversion, "SAVE_EVERY", 0.0)
    state = tmp_path / "state"

    def stop(step: int, loss: float) -> None:
        if step == 5:  # the state of step 4 is on the disk
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(state=state, tick=stop)
    assert state.exists()
    with pytest.raises(BadUsage, match="other settings"):
        run(steps=9, state=state)
    resumed, left = run(state=state)
    assert len(left) == 4
    assert not state.exists()
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in resumed.state_dict().items())


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_the_teacher_sees_each_image_at_its_own_size(pool: str) -> None:
    source = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()
    model, seen = to_peg(source, table=False, pool=pool), {"teacher": set(), "model": set()}
    for name, one in (("teacher", source), ("model", model)):
        one.patch_embed.proj.register_forward_pre_hook(lambda _, x, name=name: seen[name].add(tuple(x[0].shape[-2:])))
    x = torch.randn(8, 1, 52, 52)
    distil(model, source, x, 12, batch=2, sizes=[(28, 28), (20, 36), (52, 52)])
    assert seen == {"teacher": {(28, 28)}, "model": {(28, 28), (20, 36), (52, 52)}}


@pytest.mark.parametrize(("width", "rate"), [(48, 1e-3), (128, 1e-3), (192, 0.128 / 192)])
def test_wider_models_learn_at_a_lower_rate(width: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    source = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=width, num_heads=2, num_classes=3
    )
    seen: list[list[float]] = []
    whole = torch.optim.AdamW

    def watched(groups: Any, **options: Any) -> torch.optim.AdamW:
        optimizer = whole(groups, **options)
        seen.append([group["lr"] for group in optimizer.param_groups])
        return optimizer

    monkeypatch.setattr(torch.optim, "AdamW", watched)
    distil(to_peg(source, table=False), source, torch.randn(4, 3, 32, 32), 1, batch=2)
    assert seen == [[pytest.approx(rate), 3e-3]]


def test_a_large_size_takes_a_batch_in_parts_and_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from posinterp.torch import conversion

    source = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()
    x, seen, models = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(3)), [], []
    whole = conversion._loss

    def counted(model: Any, teacher: Any, own: torch.Tensor, at_its_own: torch.Tensor) -> torch.Tensor:
        seen.append(len(own))
        return whole(model, teacher, own, at_its_own)

    monkeypatch.setattr(conversion, "_loss", counted)
    for parts in (True, False):
        if not parts:
            monkeypatch.setattr(torch.Tensor, "chunk", lambda tensor, n: (tensor,))
        models.append(to_peg(source, table=False))
        distil(models[-1], source, x, 2, batch=8, sizes=[(52, 52)])
    assert seen == [2, 2, 2, 2] * 2 + [8, 8]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4)


def test_a_model_that_computes_what_its_teacher_does_has_nothing_to_learn() -> None:
    from posinterp.torch.conversion import _loss

    source = timm.create_model(f"local-dir:{FIXTURE}", pretrained=True).eval()
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(4))
    same, other = to_peg(source).eval(), to_peg(source, table=False).eval()
    with torch.no_grad():
        assert _loss(same, source, x, x) < 1e-9
        assert _loss(other, source, x, x) > 0.02


def test_a_distillation_has_more_and_wider_pegs_unless_it_is_told(tmp_path: Path) -> None:
    plans = {mode: plan_peg(FIXTURE, mode=mode) for mode in ("hybrid", "replace", "distill")}
    assert {mode: (plan.after, plan.kernel) for mode, plan in plans.items()} == {
        "hybrid": ((0,), 3),
        "replace": ((0,), 3),
        "distill": ((0, 1, 2, 3), 7),
    }
    shallow = timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=48, num_heads=3)
    config = timm_config("vit_tiny_patch16_224", (224, 224), depth=2, embed_dim=48, num_heads=3)
    state = {name: value.numpy() for name, value in shallow.state_dict().items()}
    assert plan_peg(save(tmp_path / "shallow", state, config), mode="distill").after == (0,)
    told = plan_peg(FIXTURE, mode="distill", after=[1], kernel=5)
    assert (told.after, told.kernel) == ((1,), 5)


def test_the_sizes_that_are_taught(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    words = ["peg", FIXTURE, "-o", "out", "--mode", "distill", "--images", pictures, "--steps", "1"]
    done = cli(*words, "--sizes", "20,28x36")
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["posinterp_peg"])["sizes"] == [[20, 20], [28, 36]]
    wrong = cli(*words, "--force", "--sizes", "20,30")
    assert wrong.returncode == 2
    assert "30 is not a multiple of the patch size 4" in wrong.stderr
    with pytest.raises(BadUsage, match="sizes are the distillation's"):
        pi.peg(FIXTURE, tmp_path / "none", mode="replace", sizes=[20])


def test_a_hybrid_can_be_taught_other_sizes(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    done = cli("peg", FIXTURE, "-o", "out", "--images", pictures, "--steps", "2", "--sizes", "20,36", "--img", "56")
    assert done.returncode == 0, done.stderr
    assert "then distilled for 2 steps" in done.stdout
    assert "bit for bit" not in done.stdout
    source, new = load_file(FIXTURE / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert new["pos_embed"].shape == (1, 197, 128)
    assert not torch.equal(new["blocks.0.mlp.fc1.weight"], source["blocks.0.mlp.fc1.weight"])
    assert new["peg.0.proj.weight"].abs().max() > 0
    verdict = pi.verify(tmp_path / "out", against=FIXTURE, images=pictures)
    assert failures(verdict) == []
    told = re.search(r"its class is the source's for (\d+) of 32 real ones", verdict.checks[-1].detail)
    assert told
    assert int(told[1]) > 8, "two steps at the highest rate disturb it; chance is 3"
    with pytest.raises(BadUsage, match="distillation needs images"):
        pi.peg(FIXTURE, tmp_path / "none", steps=2)
    with pytest.raises(BadUsage, match="sizes are the distillation's"):
        pi.peg(FIXTURE, tmp_path / "none", sizes=[20])


def test_distil_from_the_command_line(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    done = cli("peg", FIXTURE, "-o", "out", "--mode", "distill", "--images", pictures, "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert "step 2 of 2, loss" in done.stderr
    assert "fitted to 48 images, then distilled for 2 steps" in done.stdout
    checked = cli("verify", "out", "--against", FIXTURE)
    assert checked.stdout.splitlines()[-1] == "verified: 4 checks pass, 2 skipped"
    verdict = pi.verify(tmp_path / "out", against=FIXTURE)
    assert failures(verdict) == []
    assert not (tmp_path / "out.distill").exists()


def test_an_interrupted_distillation_says_how_to_go_on(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posinterp.cli import app
    from posinterp.torch import conversion

    whole = conversion.distil

    def interrupted(*args: Any, **options: Any) -> None:
        def tick(step: int, loss: float) -> None:
            if step == 2:
                raise KeyboardInterrupt

        whole(*args, **{**options, "tick": tick})

    monkeypatch.setattr(conversion, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(conversion, "distil", interrupted)
    words = [
        "peg",
        str(FIXTURE),
        "-o",
        str(tmp_path / "out"),
        "--mode",
        "distill",
        "--images",
        str(pictures),
        "--steps",
        "3",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert f"goes on from {tmp_path / 'out.distill'}" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["out.distill"]
    monkeypatch.setattr(conversion, "distil", whole)
    again = CliRunner().invoke(app, [*words[:2], "-o", str(tmp_path / "out"), "--kernel", "5", *words[4:]])
    assert again.exit_code == 2, "another model's run"
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ------------------------------------------------------------------ a wrong file is found


def tampered(place: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = place / "model.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    state = load_file(path)
    save_file({**state, name: change(state[name]).contiguous()}, path, metadata=metadata)


@pytest.mark.parametrize(
    ("mode", "name", "change", "found"),
    [
        ("hybrid", "blocks.1.mlp.fc1.weight", lambda t: t + 1e-3, {"untouched", "forward"}),
        ("hybrid", "peg.0.proj.weight", lambda t: t + 1e-3, {"untouched", "forward"}),
        ("hybrid", "pos_embed", lambda t: t.roll(1, 1), {"untouched", "forward"}),
        ("replace", "patch_embed.proj.bias", lambda t: t * 1.1, {"folded", "forward"}),
        ("replace", "cls_token", lambda t: t * 1.1, {"folded", "forward"}),
        ("replace", "peg.0.proj.bias", lambda t: t + 1e-3, {"untouched"}),
        ("replace", "norm.weight", lambda t: t[:-1], {"file", "untouched", "loads"}),
    ],
)
def test_a_wrong_tensor_is_found(
    mode: str, name: str, change: Callable[[torch.Tensor], torch.Tensor], found: set[str], tmp_path: Path
) -> None:
    source, _ = folder(tmp_path, "class")
    pi.peg(source, tmp_path / "out", mode=mode)
    assert pi.verify(tmp_path / "out", against=source).ok
    tampered(tmp_path / "out", name, change)
    assert {*failures(pi.verify(tmp_path / "out", against=source))} == found


def test_a_table_of_another_size_and_a_wrong_config_are_found(tmp_path: Path) -> None:
    pi.peg(FIXTURE, tmp_path / "out", img=56)
    tampered(tmp_path / "out", "pos_embed", lambda t: t.flip(1))
    assert "resampled" in failures(pi.verify(tmp_path / "out", against=FIXTURE))
    pi.peg(FIXTURE, tmp_path / "two", after=(0, 1))
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    config["model_args"]["peg_after"] = [0]
    (tmp_path / "two" / "config.json").write_text(json.dumps(config))
    assert {"config", "loads"} <= {*failures(pi.verify(tmp_path / "two", against=FIXTURE))}
    assert not pi.verify(tmp_path / "two", against=folder(tmp_path, "class")[0]).ok


# ------------------------------------------------------------------ other containers


def test_a_training_checkpoint_gives_its_weights(tmp_path: Path) -> None:
    source, model = folder(tmp_path, "class")
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "train.pth")
    with pytest.raises(BadUsage, match="which architecture"):
        plan_peg(tmp_path / "train.pth")
    path = tmp_path / "lone" / "train.pth"
    path.parent.mkdir()
    (tmp_path / "train.pth").rename(path)
    (path.parent / "config.json").write_text((source / "config.json").read_text())
    pi.peg(path, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(opened(tmp_path / "out")(image(model)), model(image(model)))
    assert pi.verify(tmp_path / "out", against=path).ok


def test_a_bare_file_is_told_its_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = strengthened(timm.create_model("test_vit", num_classes=7)).eval()
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    pi.peg(tmp_path / "bare.safetensors", tmp_path / "out", family="test_vit")
    with torch.no_grad():
        assert torch.equal(opened(tmp_path / "out")(image(model)), model(image(model)))
    assert pi.verify(tmp_path / "out", against=tmp_path / "bare.safetensors", family="test_vit").ok


def test_shards_stay_shards(tmp_path: Path) -> None:
    source, model = folder(tmp_path, "class")
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = {name: f"model-{1 + ('blocks' in name)}.safetensors" for name in state}
    for shard in sorted({*names.values()}):
        save_file({name: value for name, value in state.items() if names[name] == shard}, source / shard)
    index = {"metadata": {"total_size": 0}, "weight_map": names}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    pi.peg(source, tmp_path / "out", mode="replace")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert {"peg.0.proj.weight"} < {*index["weight_map"]}
    assert "pos_embed" not in index["weight_map"]
    found: dict[str, torch.Tensor] = {}
    for shard in {*index["weight_map"].values()}:
        found |= load_file(tmp_path / "out" / shard)
    wanted = to_peg(model, table=False).state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


# ------------------------------------------------------------------ what is refused


def refused(match: str, error: type[PosinterpError], ckpt: Path, **wishes: Any) -> None:
    with pytest.raises(error, match=match):
        plan_peg(ckpt, **wishes)


def test_refusals_have_a_reason(tmp_path: Path) -> None:
    source, _ = folder(tmp_path, "class")
    refused(
        "relative",
        Unsupported,
        save(tmp_path / "swin", swin(), timm_config("swin_tiny_patch4_window7_224", (224, 224))),
    )
    config = timm_config("vit_tiny_patch16_224", (224, 224), patch_drop_rate=0.5)
    refused("patch dropout", Unsupported, save(tmp_path / "drop", vit(), config))
    config = timm_config("vit_tiny_patch16_224", (224, 224), use_naflex=True)
    refused("NaFlex", Unsupported, save(tmp_path / "naflex", vit(), config))
    normed = {**vit(), "patch_embed.norm.weight": np.ones(8, np.float32)}
    refused(
        "has a norm", Unsupported, save(tmp_path / "normed", normed, timm_config("vit_tiny_patch16_224", (224, 224)))
    )
    pi.peg(source, tmp_path / "out")
    refused("has PEGs already", Unsupported, tmp_path / "out")
    refused("3 blocks", BadUsage, source, after=(2,))
    refused("odd kernel", BadUsage, source, kernel=4)
    refused("no mode", BadUsage, source, mode="hybird")
    refused("no pooling", BadUsage, source, pool="max")
    refused("drops the class token and the table", BadUsage, source, pool="avg")
    refused("class token alone", BadUsage, folder(tmp_path, "distilled")[0], pool="avg", mode="replace")
    for name in ("eva02_tiny_patch14_224", "beit_base_patch16_224", "pvt_v2_b0", "mixer_s32_224", "cait_xxs24_224"):
        with torch.device("meta"):
            shapes = timm.create_model(name).state_dict()
        state = {
            key: torch.zeros(value.shape, dtype=value.dtype) for key, value in shapes.items() if value.numel() < 3e6
        }
        place = tmp_path / name
        place.mkdir()
        save_file(state, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(timm_config(name, (224, 224))))
        refused("get no PEG: ", Unsupported, place)


def test_values_that_cannot_be_folded_are_refused(tmp_path: Path) -> None:
    source, _ = folder(tmp_path, "class")
    weights = load_file(source / "model.safetensors")
    weights["pos_embed"][0, 5, 3] = float("nan")
    save_file(weights, source / "model.safetensors")
    refused("NaN or Inf", BadValues, source, mode="replace")
    weights["pos_embed"] = torch.zeros(weights["pos_embed"].shape, dtype=torch.int8)
    save_file(weights, source / "model.safetensors")
    refused("stored as I8", BadValues, source)


def test_an_old_config_is_completed(tmp_path: Path) -> None:
    """One without `pretrained_cfg`, as timm wrote them once: its size is said where timm reads it now."""
    source, model = folder(tmp_path, "class")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "input_size": [3, 224, 224]}
    config["model_args"] = {k: v for k, v in EXAMPLES["class"][1].items() if k != "num_classes"}
    (source / "config.json").write_text(json.dumps(config))
    pi.peg(source, tmp_path / "out", img=(256, 192))
    assert failures(pi.verify(tmp_path / "out", against=source)) == []
    assert opened(tmp_path / "out").patch_embed.img_size == (256, 192)
    assert model.pos_embed.shape == (1, 197, 48)


def test_mistakes_of_usage(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    for words, message in (
        (["--after", "one"], "names no blocks"),
        (["--images", pictures], "nothing to fit"),
        (["--steps", "3"], "needs images"),
        (["--mode", "replace", "--steps", "3"], "steps are the distillation's"),
        (["--sizes", "20,28"], "sizes are the distillation's"),
        (["--batch", "8"], "a batch is the distillation's"),
        (["--mode", "distill", "--images", pictures, "--batch", "0"], "a batch of 0 images is none"),
        (["--mode", "distill"], "needs images"),
        (["--mode", "distill", "--images", pictures, "--steps", "0"], "0 steps"),
        (["--mode", "replace", "--images", tmp_path], "there are no images"),
    ):
        done = cli("peg", FIXTURE, "-o", "out", *words)
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()
    assert "name a folder" in cli("peg", FIXTURE, "-o", "out.safetensors").stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    assert "not empty" in cli("peg", FIXTURE, "-o", "full").stderr
    with pytest.raises(NotFound):
        pi.peg(FIXTURE, tmp_path / "out", mode="replace", images=tmp_path / "nowhere")
    with pytest.raises(OutputExists):
        pi.peg(FIXTURE, tmp_path / "full", mode="distill", images=pictures, steps=10**6)


# ------------------------------------------------------------------ the command


def test_the_answer(cli: Cli, tmp_path: Path) -> None:
    done = cli("peg", FIXTURE, "-o", "out", "--mode", "replace", "--after", "0,1", "--dry-run")
    assert not (tmp_path / "out").exists()
    assert "vit · 28 · PEG 3×3 after blocks 0, 1 · replace" in done.stdout
    assert "dropped; folded into patch_embed.proj.bias, cls_token" in done.stdout
    assert "65 other tensors copied" in done.stdout
    assert "a start for training" in done.stdout
    fields = json.loads(cli("peg", FIXTURE, "-o", "out", "--json").stdout)
    assert fields["peg"]["made"] == ["peg.0.proj.weight", "peg.0.proj.bias"]
    assert fields["output"]["files"] == ["model.safetensors", "config.json"]
    assert cli("peg", FIXTURE, "-o", "out", "-q", "--force").stdout == "out\n"
    done = cli("verify", "out", "--against", FIXTURE)
    assert done.returncode == 0
    assert "bit for bit" in done.stdout
    tampered(tmp_path / "out", "head.weight", lambda t: t * 2)
    assert cli("verify", "out", "--against", FIXTURE).returncode == 1


def test_a_plan_and_a_hybrid_need_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
sys.argv = ["posinterp", "peg", {str(FIXTURE)!r}, "-o", {str(tmp_path / "out")!r}, "--mode", sys.argv[1]]
from posinterp.cli import main
try: main()
except SystemExit as end: assert not end.code, end.code
assert "torch" not in sys.modules and "timm" not in sys.modules
"""
    for mode in ("hybrid", "replace"):
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for path in (tmp_path / "out").iterdir():
            path.unlink()


# ------------------------------------------------------------------ PEG files in the other commands


def test_resize_changes_only_what_depends_on_the_size(tmp_path: Path) -> None:
    for mode in ("hybrid", "replace"):
        pi.peg(FIXTURE, tmp_path / mode, mode=mode)
        plan = pi.resize(tmp_path / mode, 56, tmp_path / f"{mode}-56")
        assert plan.family.name == ("peg-vit" if mode == "hybrid" else "peg-free-vit")
        assert [edit.name for edit in plan.edits] == (["pos_embed"] if mode == "hybrid" else [])
        assert pi.verify(tmp_path / f"{mode}-56", against=tmp_path / mode).ok
        assert pi.verify(tmp_path / f"{mode}-56", against=FIXTURE).ok
        assert opened(tmp_path / f"{mode}-56").patch_embed.img_size == (56, 56)


@pytest.mark.parametrize("mode", ["hybrid", "replace"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_peg_model_is_known_and_resized_as_its_source(kind: str, mode: str, tmp_path: Path) -> None:
    source, model = folder(tmp_path, kind)
    pi.peg(source, tmp_path / "peg", mode=mode)
    for size in other_sizes(model):
        plan, wanted = pi.plan(tmp_path / "peg", size), pi.plan(source, size)
        assert plan.family.name.startswith("peg-free-" if mode == "replace" else "peg-")
        assert plan.src_img == wanted.src_img
        assert plan.models[0].unit == wanted.models[0].unit
        assert plan.edits == (wanted.edits if mode == "hybrid" else ())
    assert pi.verify(tmp_path / "peg").ok


def test_twins_and_cpvt_have_nothing_that_follows_the_size(tmp_path: Path) -> None:
    for name in ("twins_pcpvt_small", "twins_svt_small"):
        state = timm.create_model(name, depths=(1, 1, 1, 1), num_classes=5).state_dict()
        save_file(state, tmp_path / f"{name}.safetensors")
        plan = pi.plan(tmp_path / f"{name}.safetensors", 448)
        assert (plan.family.name, plan.edits) == ("twins", ())
    plain = {name: value for name, value in vit().items() if name != "pos_embed"}
    peg = {
        "pos_block.0.proj.0.weight": np.ones((8, 1, 3, 3), np.float32),
        "pos_block.0.proj.0.bias": np.ones(8, np.float32),
    }
    save(tmp_path / "cpvt.safetensors", {**plain, **peg})
    plan = pi.plan(tmp_path / "cpvt.safetensors", 448)
    assert (plan.family.name, plan.edits) == ("cpvt", ())
    save(tmp_path / "table.safetensors", {**vit(), **peg})
    assert [edit.name for edit in pi.plan(tmp_path / "table.safetensors", 448).edits] == ["pos_embed"]


def test_load_resized_into_a_peg_model(tmp_path: Path) -> None:
    model = timm.create_model(f"local-dir:{FIXTURE}", pretrained=False, img_size=56)
    new = to_peg(model)
    assert load_resized(new, FIXTURE, skip="peg.**") == ["pos_embed"]
    pi.resize(FIXTURE, 56, tmp_path / "56")
    x = torch.randn(2, 1, 56, 56)
    with torch.no_grad():
        assert torch.equal(new.eval()(x), opened(tmp_path / "56")(x))
    pi.peg(FIXTURE, tmp_path / "peg")
    assert load_resized(new, tmp_path / "peg") == ["pos_embed"]


def test_fitted_plans_leave_the_rest_alone(pictures: Path) -> None:
    plan = plan_peg(FIXTURE, mode="replace")
    new = fitted(plan, torch.randn(8, 1, 28, 28))
    old, made = plan.resizing.source.tensors, new.resizing.source.tensors
    assert [name for name in made if made[name] is not old[name]] == ["peg.0.proj.weight", "peg.0.proj.bias"]
