"""Every mistake a user can make, as one sentence and one way out.

Only these are rendered as a sentence by the command line (exit code 2); any other exception is a bug.
`kind` is the stable, machine-readable name that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Iterable


class PosinterpError(Exception):
    """What was found and what was expected (`message`), and what to do next (`hint`)."""

    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} (hint: {self.hint})"


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The names like a misspelt one, as the beginning of a hint; "" if none is."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}? " if near else ""


class BadUsage(PosinterpError):
    """An argument that cannot be read: a size, a method, a rule, a pair of options."""

    kind = "bad_usage"


class BadSize(PosinterpError):
    """A size the model cannot have."""

    kind = "bad_size"


class NotFound(PosinterpError):
    """No such file, folder, model name or hub repository."""

    kind = "not_found"


class BadFile(PosinterpError):
    """A file that is damaged, dangerous, or no checkpoint."""

    kind = "bad_file"


class BadConfig(PosinterpError):
    """A config.json that cannot be read, or that says what the weights deny."""

    kind = "bad_config"


class UnknownFamily(PosinterpError):
    """No family's tensors are in the checkpoint, or those of several."""

    kind = "unknown_family"


class Ambiguous(PosinterpError):
    """The source grid cannot be told from what the file says."""

    kind = "ambiguous_grid"


class Mismatch(PosinterpError):
    """A tensor has not the shape that its rule, or the model, predicts."""

    kind = "shape_mismatch"


class BadValues(PosinterpError):
    """A tensor to be resampled holds values that cannot be: NaN, Inf, integers."""

    kind = "bad_values"


class Unsupported(PosinterpError):
    """A thing that has no right answer here, refused by name with the reason."""

    kind = "unsupported"


class HubError(PosinterpError):
    """The hub could not be reached, refused, or holds no weights we can read."""

    kind = "hub"


class OutputExists(PosinterpError):
    """The output is there already, or is not a place to write to."""

    kind = "output_exists"


class WriteFailed(PosinterpError):
    """The machine would not take the output: disk full, no permission, read-only."""

    kind = "write_failed"
