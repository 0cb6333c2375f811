"""How much of timm posinterp converts: every name of `timm.list_models()`, held against timm's own shapes.

    python docs/coverage.py [GLOB]

Each model is built on the meta device (no weight is made) at its own size, at a larger and a smaller one, and, where it
takes that, one that is not square. A name counts as converted where posinterp plans exactly the shapes of timm's model
at each. What is refused is listed with the reason. About ten minutes for all names on two cores.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter, defaultdict
from multiprocessing import Pool
from typing import Any

from posinterp import PosinterpError, Size
from posinterp.models import Model, find_models
from posinterp.planning import Wish, model_edits


def build(name: str, **arguments: Any) -> dict[str, tuple[int, ...]]:
    """A model's shapes, by name."""
    import timm
    import torch

    with torch.device("meta"):
        state = timm.create_model(name, **arguments).state_dict()
    return {key: tuple(value.shape) for key, value in state.items()}


def sizes(model: Model) -> list[Size]:
    """Larger, smaller and not square, by what the model's sides must be multiples of."""
    assert model.src_img is not None
    step = max(model.unit[0], model.stride[0])
    step = step if step > 8 else 32
    side = model.src_img[0] // step
    pairs = [(side + 2, side + 2), (max(side - 2, 1), max(side - 2, 1))]
    pairs += [] if model.family.square else [(side, side + 1)]
    return [Size((h * step, w * step)) for h, w in pairs]


def judge(name: str) -> tuple[str, str, str]:
    """A name, what becomes of it, and why."""
    import timm
    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with torch.device("meta"):
        built = timm.create_model(name)
    native = Size.of(built.pretrained_cfg["input_size"][1:])
    state = built.state_dict()
    own = {key: tuple(value.shape) for key, value in state.items()}
    takes, follows = True, False
    try:
        (model,) = find_models(state, architecture=name, claims=[("config", native)])
    except PosinterpError as error:
        return name, "not known", error.message
    if model.family.refuses:
        return name, "refused", f"{model.family.name}: {model.family.refuses}"
    for size in sizes(model):
        planned = {edit.name: edit.new_shape for edit in model_edits(model, size, Wish())}
        try:
            wanted = build(name, img_size=tuple(size))
        except TypeError as error:
            if "img_size" not in str(error):
                return name, "timm fails", str(error)
            takes, wanted = False, own
        follows = follows or wanted != own
        if {key: planned.get(key, shape) for key, shape in own.items()} != wanted:
            return name, "wrong", f"{size}: {model.family.name} plans other shapes than timm builds"
    if not takes:
        return name, "takes no image size", model.family.name
    return name, "converted" if follows else "does not follow the size", model.family.name


def main() -> int:
    import timm

    names = timm.list_models(sys.argv[1] if len(sys.argv) > 1 else "")
    with Pool(2) as pool:
        found = pool.map(judge, names, chunksize=8)
    counts = Counter(verdict for _, verdict, _ in found)
    print(f"timm {timm.__version__}: {len(names)} names")
    for verdict, count in counts.most_common():
        print(f"  {count:5}  {verdict}")
    for verdict in ("refused", "not known", "wrong", "timm fails"):
        reasons: dict[str, list[str]] = defaultdict(list)
        for name, one, why in found:
            if one == verdict:
                reasons[why].append(name)
        for why, which in reasons.items():
            print(f"{verdict}: {why}\n    {len(which)} names: {', '.join(which[:6])}{' ...' * (len(which) > 6)}")
    return 1 if counts["wrong"] or counts["not known"] else 0


if __name__ == "__main__":
    sys.exit(main())
