"""A few steps of a PEG model under DDP and under FSDP2, each against the same steps in one process.

    torchrun --nproc-per-node=2 tests/gpu/distributed.py

Uses NCCL with one GPU a process where there are enough, else gloo on the CPU.
"""

from __future__ import annotations

import os
from typing import Any

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import posinterp.torch  # timm knows the PEG names from here on

SIZES = ((64, 64), (96, 64), (64, 64))  # of the steps: shapes change under a wrapper, too
SMALL = {"depth": 3, "embed_dim": 48, "num_heads": 3, "num_classes": 5, "img_size": 64}


def built(device: torch.device) -> Any:
    torch.manual_seed(0)
    model = timm.create_model("peg_vit_tiny_patch16_224", peg_after=(0, 1), **SMALL)
    for peg in model.peg.parameters():
        torch.nn.init.normal_(peg, std=0.1)
    return model.to(device)


def trained(model: Any, device: torch.device, share: slice) -> list[torch.Tensor]:
    """The parameters after a step at each size; `share` of each batch is this process's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(1)
    for size in SIZES:
        x = torch.randn(8, 3, *size, generator=drawn)[share].to(device)
        y = torch.randint(5, (8,), generator=drawn)[share].to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    values = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return [value.detach() for value in values]


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    share = slice(rank * 8 // world, (rank + 1) * 8 // world)
    alone = trained(built(device), device, slice(None))
    sharded = built(device)
    for part in (*sharded.blocks, sharded):
        fully_shard(part, mesh=dist.device_mesh.init_device_mesh(device.type, (world,)))
    for name, model in (("DDP", DistributedDataParallel(built(device))), ("FSDP2", sharded)):
        found = trained(model, device, share)
        off = max(float((a - b).abs().max()) for a, b in zip(found, alone, strict=True))
        assert off < 1e-4, f"{name} is {off} off one process"
        if rank == 0:
            print(f"{name}: {world} processes on {device.type}, parameters within {off:.1e} of one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert posinterp.torch
    main()
