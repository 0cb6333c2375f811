"""PEG models on a GPU: graphs, time, memory, numerics, several processes.

pytest -m gpu -n 0 -s tests/gpu        # prints the tables of docs/peg.md
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import posinterp.torch  # timm knows the PEG names from here on
from posinterp.torch.conversion import distil

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

SIZES = ((224, 224), (384, 384), (512, 512), (384, 640))
EIGHT = ((224, 224), (256, 256), (288, 288), (320, 320), (384, 384), (256, 384), (384, 256), (448, 448))
TOKENS = 64 * 197  # a batch has about as many at every size
SLOWER, LARGER = 1.03, 1.02  # the most that PEGs may cost


def base(kind: str, size: tuple[int, int]) -> nn.Module:
    """ViT-B/16 for a size: its table resized once; kept and resampled in forward, with a PEG; without one."""
    name = "vit_base_patch16_224" if kind == "resized table" else "peg_vit_base_patch16_224"
    more = {"resized table": {"img_size": size}, "hybrid": {}, "replace": {"pos_embed": "none"}}[kind]
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **more)
    for name, parameter in model.named_parameters():
        if name.startswith("peg."):
            nn.init.normal_(parameter, std=0.05)
    return model.cuda()


def step(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()


def timed(calls: list[Callable[[], None]], repeats: int = 15) -> list[float]:
    """Median milliseconds of each call, taken in turn: what the machine does meanwhile, it does to all."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 3):
        for call, own in zip(calls, times, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= 3:
                own.append(start.elapsed_time(end))
    return [statistics.median(own) for own in times]


def peak(call: Callable[[], None]) -> int:
    """Bytes that one call takes at most, beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_time_and_memory() -> None:
    kinds = ("resized table", "hybrid", "replace")
    print(
        f"\n\n{torch.cuda.get_device_name()}, torch {torch.__version__}: ViT-B/16, forward and backward, bf16 autocast"
    )
    print("| size | batch | " + " | ".join(f"{kind}: ms, GiB" for kind in kinds) + " |\n|---|---|---|---|---|")
    worst: dict[str, tuple[float, float]] = dict.fromkeys(kinds[1:], (0.0, 0.0))
    for size in SIZES:
        batch = max(TOKENS // (size[0] * size[1] // 256 + 1), 1)
        x = torch.randn(batch, 3, *size, device="cuda")
        models = {kind: base(kind, size) for kind in kinds}
        calls = [partial(step, model, x) for model in models.values()]
        milliseconds = timed(calls)
        memory = [peak(call) for call in calls]
        cells = []
        for kind, ms, used in zip(kinds, milliseconds, memory, strict=True):
            ratios = (ms / milliseconds[0], used / memory[0])
            more = f" ({ratios[0] - 1:+.1%}, {ratios[1] - 1:+.1%})" if kind in worst else ""
            cells.append(f"{ms:.1f}, {used / 2**30:.2f}{more}")
            if kind in worst:
                worst[kind] = (max(worst[kind][0], ratios[0]), max(worst[kind][1], ratios[1]))
        print(f"| {size[0]}×{size[1]} | {batch} | {' | '.join(cells)} |")
        del models, calls
    for kind, (slower, larger) in worst.items():
        assert slower <= SLOWER, f"{kind} is {slower - 1:.1%} slower"
        assert larger <= LARGER, f"{kind} takes {larger - 1:.1%} more memory"


@pytest.mark.parametrize("kind", ["hybrid", "replace"])
def test_eight_sizes_make_two_graphs(kind: str) -> None:
    torch._dynamo.reset()
    more = {} if kind == "hybrid" else {"pos_embed": "none"}
    model = timm.create_model("peg_vit_base_patch16_224", depth=2, **more).cuda().eval()
    compiled = torch.compile(model)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for size in EIGHT:
            x = torch.randn(4, 3, *size, device="cuda")
            off = (compiled(x).float() - model(x).float()).abs().max()
            assert off < 0.05, f"{size}: {off}"
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print(f"\n{kind}: {graphs} graphs for {len(EIGHT)} sizes")
    assert graphs <= 2


@pytest.mark.parametrize("kind", ["hybrid", "replace"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.02)])
def test_numbers_are_the_cpus(kind: str, dtype: torch.dtype | None, tolerance: float) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    more = {} if kind == "hybrid" else {"pos_embed": "none"}
    model: Any = timm.create_model("peg_vit_tiny_patch16_224", depth=3, peg_after=(0, 1), **more).eval()
    for parameter in model.peg.parameters():
        nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, 3, 256, 160)
    with torch.no_grad():
        exact = model.forward_features(x)
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            found = model.cuda().forward_features(x.cuda())
    off = float((found.float().cpu() - exact).abs().max() / exact.abs().max())
    print(f"\n{kind}, {dtype or torch.float32}: within {off:.1e} of the CPU's largest value")
    assert off <= tolerance


def test_a_distillation_runs_there() -> None:
    torch.manual_seed(0)
    source: Any = timm.create_model("vit_tiny_patch16_224", depth=3)
    nn.init.normal_(source.pos_embed)  # a table that is missed
    model: Any = posinterp.torch.to_peg(source, table=False).cuda()
    losses: list[float] = []
    images = torch.randn(32, 3, 224, 224)
    distil(
        model, source, images, 20, batch=16, sizes=[(224, 224), (160, 288)], tick=lambda _, loss: losses.append(loss)
    )
    print(f"\ndistillation: loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps")
    assert all(value.is_cuda and bool(value.isfinite().all()) for value in model.state_dict().values())
    assert losses[-1] < losses[0]


def test_ddp_and_fsdp() -> None:
    count = max(torch.cuda.device_count(), 1)
    script = str(Path(__file__).with_name("distributed.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    print("\n" + done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("parameters within") == 2
    assert posinterp.torch
