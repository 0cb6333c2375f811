"""For the tests of other projects: assert that a checkpoint is another one, taken to another size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .verification import verify


def assert_resized(
    src: str | Path, out: str | Path, img: int | Sequence[int] | str | None = None, **wishes: Any
) -> None:
    """Assert that `out` is `src` taken to an image size, whoever made it.

    >>> assert_resized("vit_b.safetensors", "vit_b-384", 384, fail_under=0.8)  # doctest: +SKIP

    Args:
        src: the source: a path, a hub or timm name.
        out: the result.
        img: the size (height, width) in pixels, or one side, that it should be for. None: what the result itself says.
        **wishes: as `verify` takes them: method, family, rules, images, fail_under, ...

    Raises:
        AssertionError: a check failed; it lists every check.
        PosinterpError: what `verify` raises for what cannot be compared.
    """
    __tracebackhide__ = True  # pytest shows the line that called
    verdict = verify(out, against=src, img=img, **wishes)
    if not verdict.ok:
        checks = "\n".join(f"  {check.status:4}  {check.name}: {check.detail}" for check in verdict.checks)
        raise AssertionError(f"{out} is not {src} resized:\n{checks}")
