"""The windows that a model's tables span: what is asked for, what becomes of them, what the home library is told."""

from __future__ import annotations

import re
from typing import Any

from .errors import BadSize, BadUsage
from .measuring import NAMED_WINDOW, Model, windows_listed
from .rules import Grid, Windows
from .size import Size

FOUR_STAGES = 4  # of a Swin


def window_wish(value: Any) -> Any:
    """The window that was asked for, from text or numbers. Raises BadUsage for what is none."""
    if not isinstance(value, str) or value in ("keep", "scale"):
        return value
    words = value.replace(" ", "").split(",")
    if not all(re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})?", word) for word in words):
        raise BadUsage(
            f"--window {value!r} is no window", hint="write keep, scale, 8, 8x12, or one for each stage: 12,12,24,12"
        )
    sides: list[Any] = [[int(side) for side in word.split("x")] if "x" in word else int(word) for word in words]
    return sides[0] if len(sides) == 1 else sides


def target_windows(model: Model, dst_img: Size, wish: Any) -> Windows:
    """The windows that the model is to be built with, by stage. Raises BadUsage or BadSize for what it cannot have."""
    windows = _wished(model, dst_img, wish)
    if model.family.window is not None and model.family.window.within:
        _check_within(model, dst_img, windows)
    return windows


def _check_within(model: Model, dst_img: Size, windows: Windows) -> None:
    """Raises BadSize for a window, in places, that is larger than its stage's map at the target size, in pixels."""
    for stage, grid in windows.items():
        sides = _map(model, dst_img, stage)
        if any(side > n for side, n in zip(grid.values(), sides, strict=True)):
            shown, window = ("×".join(map(str, one)) for one in (sides, grid.values()))
            raise BadSize(
                f"{model.family.name} runs no window larger than a stage's map: at {dst_img} map {stage + 1} "
                f"is {shown}, and the window {window}",
                hint=f"--window {min(sides)} makes it smaller",
            )


def _map(model: Model, img: Size, stage: int) -> list[int]:
    """The sides of a stage's map."""
    return [-(-(pixels // step) >> stage) for pixels, step in zip(img, model.stride, strict=True)]


def _wished(model: Model, dst_img: Size, wish: Any) -> Windows:
    window = model.family.window
    if wish == "keep":
        return model.windows
    if window is None:
        raise BadUsage(f"{model.family.name} has no windows: leave --window out")
    if wish != "scale":
        asked = dict(enumerate(windows_listed(wish, model.stages or FOUR_STAGES)))
        _check_largest(model, dst_img, asked)
        return _allowed(model, asked)
    if model.src_img is None:
        raise BadUsage("--window scale needs the size the checkpoint is for", hint="say it with --src-img")
    scaled: dict[int, Grid] = {}
    for stage, grid in (model.windows or _named_windows(model)).items():
        sides = {
            axis: (n * new, old) for axis, n, old, new in zip("hw", grid.values(), model.src_img, dst_img, strict=True)
        }
        if any(product % old for product, old in sides.values()):
            shown = "x".join(map(str, dict.fromkeys(grid.values())))
            raise BadSize(
                f"a window of {shown} at {model.src_img} is no whole window at {dst_img}",
                hint="say the window with --window N, or keep it with --window keep",
            )
        scaled[stage] = {axis: product // old for axis, (product, old) in sides.items()}
    return _allowed(model, scaled)


def _check_largest(model: Model, dst_img: Size, windows: Windows) -> None:
    """Libraries cut a window to its map; one that is larger than the largest map is a slip. Raises BadUsage."""
    largest = {axis: -(-pixels // step) for axis, pixels, step in zip("hw", dst_img, model.stride, strict=True)}
    for grid in windows.values():
        if any(grid[axis] > side for axis, side in largest.items()):
            raise BadUsage(
                f"a window of {'×'.join(map(str, grid.values()))} is larger than every map of an image of {dst_img}",
                hint=f"its first map is {'×'.join(map(str, largest.values()))}",
            )


def _allowed(model: Model, windows: Windows) -> Windows:
    window = model.family.window
    if window is not None and window.square and any(grid["h"] != grid["w"] for grid in windows.values()):
        raise BadUsage(
            f"{model.family.name} takes square windows only", hint="say one side, or one for each stage: 12,12,24,12"
        )
    return windows


def _named_windows(model: Model) -> dict[int, Grid]:
    """The windows of a model whose tensors do not show them: its config's, else its name's."""
    window = model.family.window
    said = model.arguments.get(window.argument) if window else None
    if said is None and (found := NAMED_WINDOW.search(model.architecture or "")):
        said = int(found[1])
    if said is None:
        raise BadUsage(
            "nothing says the window that the model has now", hint="a config.json with the architecture's name does"
        )
    return dict(enumerate(windows_listed(said, FOUR_STAGES)))


def window_arguments(model: Model, windows: Windows) -> dict[str, Any]:
    """What the home library's constructor must be told of new windows."""
    family = model.family
    if family.window is None or windows == model.windows:
        return {}
    new = {family.window.argument: _told(windows, listed=family.window.listed)}
    if family.window.pretrained and family.window.pretrained not in model.arguments:
        old = _named_windows(model)
        if "to" not in (model.architecture or "").partition("window")[2]:  # its published models say it themselves
            new[family.window.pretrained] = [_seen(model, stage, grid) for stage, grid in old.items()]
    return new


def _told(windows: Windows, *, listed: bool) -> Any:
    """Windows as a constructor takes them: one, or one for each stage, as one side where that is enough."""
    sides = [tuple(windows[stage].values()) for stage in sorted(windows)]
    plain = [high if high == wide else [high, wide] for high, wide in sides]
    return plain[0] if not listed and len(set(sides)) == 1 else plain


def windows_fields(windows: Windows) -> list[list[int]] | None:
    """Windows as JSON has them: (height, width) for each stage."""
    return [list(windows[stage].values()) for stage in sorted(windows)] or None


def _seen(model: Model, stage: int, window: Grid) -> int | list[int]:
    """The window that a stage had in training: no larger than its map."""
    sides = list(window.values())
    if model.src_img is not None:
        sides = [min(pair) for pair in zip(sides, _map(model, model.src_img, stage), strict=True)]
    return sides[0] if sides[0] == sides[1] else sides


def window_notes(model: Model, windows: Windows, wish: Any, *, told: bool) -> list[str]:
    """What became of the windows, where there was a choice. `told`: a config says it to the home library."""
    if not windows or model.family.window is None:
        return []
    said = ", ".join("×".join(map(str, sides)) for sides in windows_fields(windows) or ())
    kept = wish == "keep"
    word = "windows kept" if kept else "windows now"
    window = model.family.window
    build = f"; build the model with {window.argument}={_told(windows, listed=window.listed)}" * (not kept and not told)
    return [f"{word}: {said}{build}" + (" (--window scale grows them with the image)" * kept)]
