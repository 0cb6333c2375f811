"""Proving a resized checkpoint right, by other means than those that made it.

Bytes are compared with the source's, tables with torch's own kernels in float64, and the whole with the home library:
it must load the checkpoint, hold exactly its values, and compute with them. Nothing here uses `resampling`'s matrices,
and nothing assumes that posinterp made the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..method import Method
from ..planning import Wish
from ..rules import rule_of
from ..size import as_size
from ..store import open_checkpoint
from .claims import check_config, check_file, check_recipe
from .contents import check_untouched, check_values
from .home import check_home
from .peg import is_pegged, verify_peg
from .preparation import NotUnderstood, prepare
from .resampled import check_resampled
from .verdict import Check, Verdict

__all__ = ["Check", "Verdict", "verify"]

NAMES = ("file", "recipe", "untouched", "resampled", "values", "config", "loads", "forward")


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
) -> Verdict:
    """Check that a checkpoint is another one taken to another size, whoever made it.

    Args:
        ckpt: the result: a path, a hub or timm name.
        against: its source. None: what needs the source is skipped.
        img: the size `ckpt` should be for. None: its recipe says, else its config, else its tensors prove it.
        src_img, family, rules: as `plan` takes them; a timm model name as `family` says the architecture, too.
        method, antialias, align_corners: how it was resampled. "auto": the recipe says, else the home library's way.
        images: a folder of images, on which a PEG model is held against its source beside random ones.

    Returns:
        One check for each of `NAMES`, in that order; a difference between the two is a failed check. For a PEG model
        and the model it was made from, what its mode promises is checked in place of the resampling.

    Raises:
        What `plan` raises, for a source that cannot be planned and a checkpoint that cannot be opened or understood.
    """
    wish = Wish(method, antialias, align_corners)
    wish.apply(Method("bicubic"))  # a misspelt method is a mistake, whatever the checkpoint
    out = open_checkpoint(ckpt)
    source = None if against is None else open_checkpoint(against)
    if source is not None and is_pegged(out) and not is_pegged(source):
        folder = None if images is None else Path(images)
        return verify_peg(out, source, images=folder, src_img=src_img, family=family)
    asked = None if img is None else as_size(img)
    try:
        own = [rule_of(text) for text in rules]
        case = prepare(out, source, asked, wish, family, None if src_img is None else as_size(src_img), own)
    except NotUnderstood as failure:
        rest = (Check(name, "skip", "the file is not understood") for name in NAMES[1:])
        return Verdict((Check("file", "fail", str(failure)), *rest))
    looks = (check_file, check_recipe, check_untouched, check_resampled, check_values, check_config)
    return Verdict((*(look(case) for look in looks), *check_home(case)))
