"""Makes the figures of docs/plots.md, the same each time: `python docs/figures.py` (or `-o FOLDER`).

All are of fixtures/fashion-vit but two: the PEG's is of the same model with its table folded into a PEG that is fitted
to 40 test images, and the bias table's is of a small Swin, drawn from seed 0, whose table is made up, so that there is
something to see: each head prefers an offset of its own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import posinterp
from posinterp.plotting import make_figure, save_figure

ROOT = Path(__file__).resolve().parent.parent
FIXTURE = ROOT / "fixtures" / "fashion-vit"
SWIN, TABLE = "swin_tiny_patch4_window7_224", "layers.0.blocks.0.attn.relative_position_bias_table"
IMAGES = 40


def swin(folder: Path) -> Path:
    """A Swin of one block a stage, with a bias table of three heads that prefer an offset each."""
    torch.manual_seed(0)
    model = timm.create_model(SWIN, depths=(1, 1, 1, 1), num_classes=5)
    offsets = torch.stack(torch.meshgrid(torch.arange(-6.0, 7), torch.arange(-6.0, 7), indexing="ij"), -1)
    heads = []
    for middle, width in (((-3.0, 0.0), 2.0), ((0.0, 4.0), 1.5), ((0.0, 0.0), 3.0)):
        squares = ((offsets - torch.tensor(middle)) ** 2).sum(-1)
        heads.append(4 * torch.exp(-squares / (2 * width**2)) - 1)
    tensors = model.state_dict()
    tensors[TABLE] = torch.stack(heads, -1).reshape(169, 3) + 0.1 * tensors[TABLE]
    folder.mkdir()
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, folder / "model.safetensors")
    arguments = {"img_size": [224, 224], "depths": [1, 1, 1, 1]}
    config = {"architecture": SWIN, "num_classes": 5, "model_args": arguments}
    (folder / "config.json").write_text(json.dumps({**config, "pretrained_cfg": {"input_size": [3, 224, 224]}}))
    return folder


def pegged(folder: Path, images: Path) -> Path:
    """The fixture with its table folded into a PEG."""
    images.mkdir()
    with np.load(ROOT / "fixtures" / "fashion-test.npz") as data:
        for i, pixels in enumerate(data["images"][:IMAGES]):
            Image.fromarray(pixels).save(images / f"{i:02}.png")
    posinterp.peg(FIXTURE, folder, mode="replace", images=images)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "figures", help="a folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        figures = {
            "tiles": make_figure(FIXTURE),
            "resize": make_figure(FIXTURE, img=56),
            "methods": make_figure(FIXTURE, "methods", img=56, at=[(3, 3)]),
            "components": make_figure(FIXTURE, "components", img=56),
            "bias": make_figure(swin(Path(place) / "swin"), img=384, window="scale"),
            "peg": make_figure(pegged(Path(place) / "peg-vit", Path(place) / "images")),
        }
    for name, figure in figures.items():
        save_figure(figure, out / f"{name}.png", overwrite=True)


if __name__ == "__main__":
    main()
