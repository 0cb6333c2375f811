"""Which way from a position table to PEGs keeps most, measured on the small ViT of this repository.

    apt-get install dataset-fashion-mnist
    python docs/peg_recipes.py --out recipes.json --jobs 2  # measures what recipes.json does not hold yet
    python docs/peg_recipes.py --out recipes.json --show    # prints what docs/peg.md says

Every recipe starts from fixtures/fashion-vit and is trained at the sizes that the distillation mixes; those with labels
see the same batches. Accuracies are of the test set. How the distillation is done (its teacher, sizes and rates) was
chosen on the last 4,000 training images, which were held out for that. Errors are binomial; differences are paired, on
the same images (McNemar).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
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
from posinterp.torch.conversion import distil, fit, sizes_around  # noqa: E402

STEPS, BATCH = 250, 32
RATE, PEG_RATE = 3e-4, 10.0  # of fine-tuning with labels; the distillation has its own
TESTED = {4: 4000, 7: 4000, 11: 2000, 14: 1000, 21: 400}  # grid -> test images; but for 7, none is trained on
PATCH, NATIVE = 4, 7
SEEDS = (0, 1, 2)
Build = Callable[["Data"], Any]


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
    grids = [height // PATCH for height, _ in sizes_around(source())]
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
        grid = grids[int(torch.randint(len(grids), (1,), generator=generator))]
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


Recipe = Callable[[Data], tuple[Any, Any]]  # the model before training, and after it


def labelled(build: Build, steps: int = STEPS, seed: int = 0) -> Recipe:
    def run(data: Data) -> tuple[Any, Any]:
        model = build(data)
        finetune(model, data, steps, seed=seed)
        return build(data), model

    return run


def distilled(build: Build, steps: int = STEPS, seed: int = 0) -> Recipe:
    def run(data: Data) -> tuple[Any, Any]:
        model = build(data)
        distil(model, source(), data.images, steps, batch=BATCH, seed=seed)
        return build(data), model

    return run


def recipes() -> dict[str, Recipe]:
    """By name, in the order of the table."""
    places = (0, 1, 2, 3)

    def kept(data: Data) -> Any:
        return dynamic()

    def hybrid(data: Data) -> Any:
        return to_peg(source())

    def wide(data: Data) -> Any:
        return table_free(data, kernel=13)

    def several(data: Data) -> Any:
        return table_free(data, kernel=7, after=places)

    found = {
        "resized table": labelled(kept),
        "resized table, 1000 steps": labelled(kept, 4 * STEPS),
        "hybrid": labelled(hybrid),
        "replace, zero PEG": labelled(partial(table_free, ridge=False)),
        "replace, fitted PEG": labelled(table_free),
        "replace, fitted PEGs after 0-3": labelled(partial(table_free, after=places)),
        "replace, fitted 7×7 PEGs after 0-3": labelled(several),
        "replace, fitted 13×13 PEG": labelled(wide),
        "distill, 3×3 PEG": distilled(table_free),
        "distill, 3×3 PEGs after 0-3": distilled(partial(table_free, after=places)),
        "distill, 13×13 PEG": distilled(wide),
        "distill, 7×7 PEGs after 0-3": distilled(several),
        "distill, 7×7 PEGs after 0-3, 1000 steps": distilled(several, 4 * STEPS),
        "hybrid, distilled": distilled(hybrid),
        "hybrid, distilled, 1000 steps": distilled(hybrid, 4 * STEPS),
    }
    for seed in SEEDS[1:]:
        found |= {
            _seeded("resized table", seed): labelled(kept, seed=seed),
            _seeded("distill, 7×7 PEGs after 0-3, 1000 steps", seed): distilled(several, 4 * STEPS, seed),
            _seeded("hybrid, distilled, 1000 steps", seed): distilled(hybrid, 4 * STEPS, seed),
        }
    return found


def _seeded(name: str, seed: int) -> str:
    return name if seed == 0 else f"{name}, seed {seed}"


@cache
def the_data(folder: Path) -> Data:
    return Data(folder)


def measure(name: str, folder: Path) -> dict[str, Any]:
    """What one recipe gives, by one core."""
    torch.set_num_threads(1)
    data = the_data(folder)
    torch.manual_seed(0)
    began = time.process_time()
    before, after = recipes()[name](data)
    trained = time.process_time() - began
    start = TESTED if name == "resized table" else (NATIVE,)
    return {"before": measured(before, data, start), "after": measured(after, data, TESTED), "seconds": trained}


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
    found = {name: one for name, one in found.items() if "seed" not in name}
    heads = " | ".join(f"×{g / NATIVE:.2g} (n {n})" for g, n in TESTED.items())
    lines = [f"| recipe | at the source's size, untrained | {heads} |", "|---|---|" + "---|" * len(TESTED)]
    plain = [f"{100 * hits(found['resized table']['before'][str(g)]).mean():.1f}" for g in TESTED]
    lines.append(f"| resized table, not trained | {plain[1]} | {' | '.join(plain)} |")
    for name in (one for one in recipes() if one in found):
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
    ("replace, fitted 7×7 PEGs after 0-3", "replace, fitted PEGs after 0-3"),
    ("replace, fitted 13×13 PEG", "replace, fitted PEG"),
    ("distill, 3×3 PEG", "replace, fitted PEG"),
    ("distill, 13×13 PEG", "replace, fitted 13×13 PEG"),
    ("distill, 7×7 PEGs after 0-3", "distill, 13×13 PEG"),
    ("distill, 7×7 PEGs after 0-3", "distill, 3×3 PEGs after 0-3"),
    ("distill, 7×7 PEGs after 0-3, 1000 steps", "distill, 7×7 PEGs after 0-3"),
    ("hybrid, distilled", "hybrid"),
    ("distill, 7×7 PEGs after 0-3, 1000 steps", "resized table, 1000 steps"),
    ("hybrid, distilled, 1000 steps", "resized table, 1000 steps"),
    ("hybrid, distilled, 1000 steps", "distill, 7×7 PEGs after 0-3, 1000 steps"),
)


def over_seeds(found: dict[str, Any]) -> str:
    """Mean and standard deviation over seeds, and of the difference to the resized table of the same seed."""
    heads = " | ".join(f"×{g / NATIVE:.2g}" for g in TESTED)
    lines = [f"| recipe, {len(SEEDS)} seeds | {heads} |", "|---|" + "---|" * len(TESTED)]
    for name in ("resized table", "distill, 7×7 PEGs after 0-3, 1000 steps", "hybrid, distilled, 1000 steps"):
        runs = [(found.get(_seeded(name, s)), found.get(_seeded("resized table", s))) for s in SEEDS]
        if any(own is None or base is None for own, base in runs):
            continue
        cells = []
        for g in TESTED:
            own, base = (np.array([100 * hits(run[k]["after"][str(g)]).mean() for run in runs]) for k in (0, 1))
            gain = "" if name == "resized table" else f" ({(own - base).mean():+.1f} ± {(own - base).std(ddof=1):.1f})"
            cells.append(f"{own.mean():.1f} ± {own.std(ddof=1):.1f}{gain}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


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
    parser.add_argument("--jobs", type=int, default=1, help="recipes at a time, a core each")
    parser.add_argument("--show", action="store_true", help="measure nothing: print the tables")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    names = [] if args.show else [name for name in recipes() if name not in found and (args.only or "") in name]
    with ProcessPoolExecutor(args.jobs) as pool:
        tasks = {pool.submit(measure, name, args.data): name for name in names}
        for task in as_completed(tasks):
            name = tasks[task]
            found[name] = task.result()
            args.out.write_text(json.dumps(found))
            print(f"{name}: trained {found[name]['seconds']:.0f} s of one core", flush=True)
    if "resized table" in found:  # what the others are held against
        print(table(found), over_seeds(found), pairs(found), sep="\n\n")


if __name__ == "__main__":
    main()
