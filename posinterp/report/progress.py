"""What a terminal shows while long work goes on; all of it on stderr, nothing of it where stderr is none."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line on stderr that follows a long copy; nothing where stderr is no terminal, or the copy is short."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.done, self.began, self.shown = total, 0, time.monotonic(), 0.0
        self.active = not quiet and sys.stderr.isatty() and total > 256 << 20

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self.active and now - self.shown > 0.1:
            self.shown = now
            share = min(self.done / self.total, 1.0)
            left = (now - self.began) * (1 - share) / share if share else 0.0
            bar = "━" * int(24 * share) + "─" * (24 - int(24 * share))
            sys.stderr.write(
                f"\r{bar} {share:4.0%}  {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB, {left:.0f} s left "
            )
            sys.stderr.flush()

    def close(self) -> None:
        if self.active and self.shown:
            sys.stderr.write("\r" + " " * 70 + "\r")
            sys.stderr.flush()


class Stage:
    """The name of what is done, on a terminal's stderr, until the next or the end."""

    def __init__(self, doing: str, *, quiet: bool) -> None:
        self.doing, self.active, self.width = doing, not quiet and sys.stderr.isatty(), 0

    def __call__(self, name: str) -> None:
        if self.active:
            line = f"{self.doing}: {name} ..."
            sys.stderr.write(f"\r{line:<{self.width}}")
            sys.stderr.flush()
            self.width = len(line)

    def close(self) -> None:
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


class Steps:
    """A line on stderr that follows a training: rewritten on a terminal, a line for every tenth elsewhere."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.quiet, self.began, self.shown, self.first = total, quiet, time.monotonic(), 0.0, 0
        self.live = sys.stderr.isatty()

    def __call__(self, step: int, loss: float) -> None:
        now = time.monotonic()
        if not self.first:  # a run that was resumed does not begin at 1
            self.first, self.began = step, now
        due = now - self.shown > 0.2 if self.live else step % max(self.total // 10, 1) == 0 or step == self.total
        if self.quiet or not due:
            return
        self.shown = now
        done = step - self.first
        left = f", {(now - self.began) / done * (self.total - step):.0f} s left" if done else ""
        line = f"step {step} of {self.total}, loss {loss:.4f}{left}"
        sys.stderr.write(f"\r{line:<70}" if self.live else line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self.live and self.shown:
            sys.stderr.write("\r" + " " * 70 + "\r")
            sys.stderr.flush()
