"""Which way from a position table to PEGs keeps most, measured on the small ViT of this repository.

    apt-get install dataset-fashion-mnist
    python docs/peg_recipes.py --out recipes.json         # measures what recipes.json does not hold yet, one core
    python docs/peg_recipes.py --out recipes.json --show  # prints what docs/peg.md says

Every recipe starts from fixtures/fashion-vit; those with labels see the same batches at the same sizes. Accuracies are
of the test set. The 13×13 recipes were added after the 7×7 kernel had done well on it, so theirs are chosen on it.
Errors are binomial; differences are paired, on the same images (McNemar).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures"))

from train_fashion_vit import DEBIAN_DATA, augment, normalise, read_split  # noqa: E402

from posinterp.torch import to_peg  # noqa: E402
from posinterp.torch.conversion import distil, fit  # noqa: E402

STEPS, BATCH, RATE, PEG_RATE = 250, 32, 3e-4, 10.0
GRIDS = (5, 7, 9)  # trained on, in turn at random
TESTED = {4: 4000, 7: 4000, 11: 2000, 14: 1000, 21: 400}  # grid -> test images
PATCH, NATIVE = 4, 7

Recipe = Callable[[], Any]


def dynamic() -> Any:
    """The source, its table resampled in forward: what every recipe is held against."""
    return timm.create_model(f"local-dir:{ROOT / 'fixtures/fashion-vit'}", pretrained=True, dynamic_img_size=True)


def source() -> Any:
    return timm.create_model(f"local-dir:{ROOT / 'fixtures/fashion-vit'}", pretrained=True)


def table_free(data: Data, *, after: tuple[int, ...] = (0,), kernel: int = 3, ridge: bool = True) -> Any:
    model = to_peg(source(), after=after, kernel=kernel, table=False)
    if ridge:
        fit(model, source(), data.images[:400])
    return model


class Data:
    """Training images and labels, test images and labels, as the model takes them."""

    def __init__(self, folder: Path) -> None:
        cfg = source().pretrained_cfg
        mean, std = cfg["mean"][0], cfg["std"][0]
        images, labels = read_split(folder, "train")
        self.images, self.labels = normalise(images, mean, std), torch.from_numpy(labels.astype(np.int64))
        images, labels = read_split(folder, "t10k")
        self.test, self.truth = normalise(images, mean, std), torch.from_numpy(labels.astype(np.int64))


def resized(images: Tensor, grid: int) -> Tensor:
    side = grid * PATCH
    return images if side == images.shape[-1] else F.interpolate(images, (side, side), mode="bicubic", antialias=True)


def finetune(model: Any, data: Data, steps: int, *, seed: int = 0) -> None:
    """With labels, at mixed sizes."""
    generator = torch.Generator().manual_seed(seed)
    pegs = [*model.peg.parameters()] if hasattr(model, "peg") else []
    mine = {id(p) for p in pegs}
    groups = [{"params": [p for p in model.parameters() if id(p) not in mine]}, {"params": pegs, "lr": RATE * PEG_RATE}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.0)
    warm = steps // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (s + 1) / warm if s < warm else 0.5 + 0.5 * math.cos(math.pi * (s - warm) / (steps - warm)),
    )
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(data.images), (BATCH,), generator=generator)
        grid = GRIDS[int(torch.randint(len(GRIDS), (1,), generator=generator))]
        x = resized(augment(data.images[chosen], generator), grid)
        loss = F.cross_entropy(model(x), data.labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.inference_mode()
def right(model: Any, data: Data, grid: int, count: int) -> list[bool]:
    """For each of the first test images, whether the model is right at a size."""
    model.eval()
    parts = [slice(at, min(at + 250, count)) for at in range(0, count, 250)]
    found = [model(resized(data.test[part], grid)).argmax(1) == data.truth[part] for part in parts]
    return torch.cat(found).tolist()


def measured(model: Any, data: Data, grids: Iterable[int]) -> dict[str, str]:
    """Grid -> one character an image: 1 where the model is right."""
    return {str(g): "".join("01"[hit] for hit in right(model, data, g, TESTED[g])) for g in grids}


def recipes(data: Data) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Name -> what makes (the model before training, the model after it)."""
    places = (0, 1, 2, 3)

    def labelled(build: Recipe, steps: int = STEPS) -> Callable[[], tuple[Any, Any]]:
        def run() -> tuple[Any, Any]:
            model = build()
            finetune(model, data, steps)
            return build(), model

        return run

    def distilled(build: Recipe, steps: int = STEPS) -> Callable[[], tuple[Any, Any]]:
        def run() -> tuple[Any, Any]:
            model = build()
            distil(model, source(), data.images, steps, batch=BATCH, rate=RATE, peg_rate=PEG_RATE)
            return build(), model

        return run

    return {
        "resized table": labelled(dynamic),
        "hybrid": labelled(lambda: to_peg(source())),
        "replace, zero PEG": labelled(lambda: table_free(data, ridge=False)),
        "replace, fitted PEG": labelled(lambda: table_free(data)),
        "replace, fitted PEGs after 0-3": labelled(lambda: table_free(data, after=places)),
        "replace, fitted 7×7 PEG": labelled(lambda: table_free(data, kernel=7)),
        "replace, fitted 13×13 PEG": labelled(lambda: table_free(data, kernel=13)),
        "distill": distilled(lambda: table_free(data)),
        "distill, 13×13 PEG": distilled(lambda: table_free(data, kernel=13)),
        "distill, 13×13 PEG, 1000 steps": distilled(lambda: table_free(data, kernel=13), steps=4 * STEPS),
    }


# ------------------------------------------------------------------ the table


def hits(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8) == ord("1")


def compared(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """(points that a is better than b, two-sided exact p of McNemar's test)."""
    won, lost = int((a & ~b).sum()), int((b & ~a).sum())
    n, k = won + lost, min(won, lost)
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k + 1)]
    p = min(1.0, 2 * sum(map(math.exp, logs))) if n else 1.0
    return 100 * (won - lost) / len(a), p


def table(found: dict[str, Any]) -> str:
    base = found["resized table"]["after"]
    heads = " | ".join(f"×{g / NATIVE:.2g} (n {n})" for g, n in TESTED.items())
    lines = [f"| recipe | at the source's size, untrained | {heads} |", "|---|---|" + "---|" * len(TESTED)]
    plain = [f"{100 * hits(found['resized table']['before'][str(g)]).mean():.1f}" for g in TESTED]
    lines.append(f"| resized table, not trained | {plain[1]} | {' | '.join(plain)} |")
    for name in sorted(found, key=lambda name: name.startswith("distill")):
        one = found[name]
        cells = []
        for g in TESTED:
            own = hits(one["after"][str(g)])
            error = 100 * math.sqrt(own.mean() * (1 - own.mean()) / len(own))
            cell = f"{100 * own.mean():.1f} ± {error:.1f}"
            if name != "resized table":
                gain, p = compared(own, hits(base[str(g)]))
                cell += f" ({gain:+.1f}, p {p:.1g})"
            cells.append(cell)
        lines.append(f"| {name} | {100 * hits(one['before'][str(NATIVE)]).mean():.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


PAIRS = (  # what the page says of two recipes
    ("replace, fitted PEG", "replace, zero PEG"),
    ("replace, fitted 7×7 PEG", "replace, fitted PEG"),
    ("replace, fitted 13×13 PEG", "replace, fitted 7×7 PEG"),
    ("distill", "replace, fitted PEG"),
    ("distill, 13×13 PEG", "replace, fitted 13×13 PEG"),
)


def pairs(found: dict[str, Any]) -> str:
    """How much better one recipe is than another, before training (at the source's size) and after it."""
    lines = []
    for one, other in ((a, b) for a, b in PAIRS if a in found and b in found):
        moments = [("before", NATIVE), *(("after", g) for g in TESTED)]
        gains = [compared(hits(found[one][w][str(g)]), hits(found[other][w][str(g)])) for w, g in moments]
        cells = (
            f"{w} ×{g / NATIVE:.2g} {gain:+.1f} (p {p:.1g})" for (w, g), (gain, p) in zip(moments, gains, strict=True)
        )
        lines.append(f"{one} over {other}: {', '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure ways from a position table to PEGs.")
    parser.add_argument("--data", type=Path, default=DEBIAN_DATA, help="folder of Fashion-MNIST's .gz files")
    parser.add_argument("--out", type=Path, default=Path("recipes.json"), help="where the answers are kept")
    parser.add_argument("--only", help="recipes whose names hold this")
    parser.add_argument("--show", action="store_true", help="measure nothing: print the table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    if not args.show:
        data = Data(args.data)
        for name, run in recipes(data).items():
            if name in found or (args.only and args.only not in name):
                continue
            torch.manual_seed(0)
            began = time.process_time()
            before, after = run()
            trained = time.process_time() - began
            start = TESTED if name == "resized table" else (NATIVE,)
            found[name] = {
                "before": measured(before, data, start),
                "after": measured(after, data, TESTED),
                "seconds": trained,
            }
            args.out.write_text(json.dumps(found))
            print(f"{name}: trained {trained:.0f} s of one core, {time.process_time() - began:.0f} in all", flush=True)
    print(table(found), pairs(found), sep="\n\n")


if __name__ == "__main__":
    main()
