"""The only rooms that print. `reporter` answers, in `words` or as JSON's `fields`; `progress` is for waiting.

stdout carries the answer, stderr everything else. Colour and progress appear only where stderr is a terminal.
"""

from __future__ import annotations

from .progress import Progress, Stage, Steps
from .reporter import Reporter

__all__ = ["Progress", "Reporter", "Stage", "Steps"]
