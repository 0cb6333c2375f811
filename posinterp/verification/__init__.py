"""Proving a resized checkpoint right, by other means than those that made it.

Bytes are compared with the source's, tables with torch's own kernels in float64, and the whole with the home library:
it must load the checkpoint, hold exactly its values, and compute with them. Nothing here uses `resampling`'s matrices,
and nothing assumes that posinterp made the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import BadConfig, BadFile, BadUsage, Unsupported
from ..method import Method
from ..planning import Wish
from ..rules import rule_of
from ..size import as_size
from ..store import open_checkpoint
from .case import Case
from .claims import check_file, check_recipe
from .contents import check_untouched, check_values
from .home import check_home
from .images import of_folder, patterns
from .peg import is_pegged, verify_peg
from .preparation import NotUnderstood, prepare
from .resampled import check_resampled
from .settings import check_config
from .verdict import Check, Verdict

__all__ = ["Case", "Check", "Verdict", "verify"]

NAMES = ("file", "recipe", "untouched", "resampled", "values", "config", "loads", "forward", "similarity")


def verify(
    ckpt: str | Path,
    *,
    against: str | Path | None = None,
    img: int | Sequence[int] | str | None = None,
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
    rules: Sequence[str] = (),
    method: str = "auto",
    antialias: bool | None = None,
    align_corners: bool | None = None,
    images: str | Path | None = None,
    fail_under: float | None = None,
    allow_nonfinite: bool = False,
    tell: Callable[[str], None] = lambda stage: None,
) -> Verdict:
    """Check that a checkpoint is another one taken to another size, whoever made it.

    Args:
        ckpt: the result: a path, a hub or timm name.
        against: its source. None: what needs the source is skipped.
        img: the size `ckpt` should be for. None: its recipe says, else its config, else its tensors prove it.
        src_img, family, rules: as `plan` takes them; a timm model name as `family` says the architecture, too.
        method, antialias, align_corners: how it was resampled. "auto": the recipe says, else the home library's way.
        images: a folder of images on which the features of source and checkpoint are compared; None: four patterns.
        fail_under: the least mean cosine similarity (-1 to 1) of those features; None: it is said, and never fails.
        allow_nonfinite: values of a table that NaN or Inf in the source's reach may be NaN.
        tell: called with what is done next, for whoever waits.

    Returns:
        One check for each of `NAMES`, in that order; a difference between the two is a failed check, and so is a
        checkpoint that is damaged. For a PEG model and the model it was made from, what its mode promises is checked in
        place of the resampling.

    Raises:
        NotFound: there is no such checkpoint, or folder of images.
        PosinterpError: what `plan` raises: for a source that cannot be opened or planned, and for a checkpoint that
            cannot be understood where there is no source to say what it is.
    """
    wish = Wish(method, antialias, align_corners)
    wish.apply(Method("bicubic"))  # a misspelt method is a mistake, whatever the checkpoint
    if fail_under is not None and not -1 <= fail_under <= 1:
        raise BadUsage(f"a cosine similarity of {fail_under} is asked for", hint="it lies between -1 and 1, as 0.95")
    shown = patterns() if images is None else of_folder(images)
    source = None if against is None else open_checkpoint(against)
    asked = None if img is None else as_size(img)
    try:
        out = open_checkpoint(ckpt)
    except (BadFile, BadConfig, Unsupported) as error:
        return _unread(error.message, "the file is not read")
    if source is not None and is_pegged(out) and not is_pegged(source):
        folder = None if images is None else Path(images)
        return verify_peg(out, source, images=folder, src_img=src_img, family=family)
    try:
        own = [rule_of(text) for text in rules]
        case = prepare(out, source, asked, wish, family, None if src_img is None else as_size(src_img), own)
    except NotUnderstood as failure:
        return _unread(str(failure), "the file is not understood")
    case = replace(case, allow_nonfinite=allow_nonfinite)
    looks = (check_file, check_recipe, check_untouched, check_resampled, check_values, check_config)
    checks = []
    for name, look in zip(NAMES, looks, strict=False):
        tell(name)
        checks.append(look(case))
    tell(", ".join(NAMES[len(looks) :]))
    return Verdict((*checks, *check_home(case, shown, fail_under)), case)


def _unread(why: str, rest: str) -> Verdict:
    return Verdict((Check("file", "fail", why), *(Check(name, "skip", rest) for name in NAMES[1:])))
