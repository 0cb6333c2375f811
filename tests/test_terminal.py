"""What a person at a terminal sees beside the answer, and a pipe does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FIXTURE, save, vit


def on_terminal(place: Path, *words: object) -> tuple[int, str, str]:
    """Exit code, stdout (a pipe), and what a terminal was sent on stderr."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "posinterp", *map(str, words)],
        cwd=place, stdout=subprocess.PIPE, stderr=slave, text=True,
    ) as process:  # fmt: skip
        os.close(slave)
        said = b""
        try:
            while part := os.read(master, 65536):
                said += part
        except OSError:  # Linux's word for a terminal whose other end is closed
            pass
        stdout = process.stdout.read() if process.stdout else ""
    os.close(master)
    return process.returncode, stdout, said.decode()


def test_verify_names_what_it_checks(tmp_path: Path) -> None:
    words = ("verify", FIXTURE, "--against", FIXTURE)
    code, stdout, said = on_terminal(tmp_path, *words)
    assert (code, "checking" in stdout) == (0, False)
    shown = [line.strip() for line in said.split("\r") if line.strip()]
    names = ("file", "recipe", "untouched", "resampled", "values", "config", "loads, forward, similarity")
    assert shown == [f"checking: {name} ..." for name in names]
    assert said.endswith("\r" + " " * len(shown[-1]) + "\r")  # nothing of it is left
    assert on_terminal(tmp_path, *words, "--json")[2] == ""
    piped = subprocess.run(
        [sys.executable, "-m", "posinterp", *map(str, words)], capture_output=True, text=True, cwd=tmp_path
    )
    assert piped.stderr == ""


def test_a_long_copy_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posinterp.report import progress as bars

    class Screen:
        text = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    monkeypatch.setattr(bars.sys, "stderr", screen := Screen())
    clock = iter(range(100))
    monkeypatch.setattr(bars.time, "monotonic", lambda: float(next(clock)))
    progress = bars.Progress(2 << 30, quiet=False)
    progress(1 << 30)
    assert " 50%  1.1 of 2.1 GB, 1 s left" in screen.text
    progress.close()
    assert screen.text.endswith("\r" + " " * 70 + "\r")
    screen.text = ""
    for silent in (bars.Progress(1 << 20, quiet=False), bars.Progress(2 << 30, quiet=True)):
        silent(1 << 20)
        silent.close()
    assert screen.text == ""


def test_colour_is_for_terminals(tmp_path: Path) -> None:
    save(tmp_path / "vit.safetensors", vit())
    code, stdout, said = on_terminal(tmp_path, "resize", "vit.safetensors", "--img", "390")
    assert (code, stdout) == (2, "")
    assert "\033[31merror:\033[0m" in said
    assert "\033" not in on_terminal(tmp_path, "resize", "vit.safetensors", "--img", "390", "--color", "never")[2]
