"""Runs code that a model wrote: in a process of its own that can compute, and nothing else.

Nobody attacks here, but a small model may write anything. Where the kernel lets it, the process has no
network; in any case Python itself refuses whatever is not on a list of harmless things, and the kernel limits
time, memory and files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

_WAIT_S = 10.0  # of the clock; the process may have fewer seconds of a processor
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_RUNNER = Path(__file__).with_name("tasks_runner.py")


def code_in(answer: str) -> str:
    """The first fenced block of `answer`, or all of it."""
    found = _FENCED.search(answer)
    return found.group(1) if found else answer


def holds(code: str) -> bool:
    """Whether `code` runs to its end: it did not raise, leave early, or take too long or too much."""
    with tempfile.TemporaryDirectory(prefix="s2chat-code-") as folder:
        try:
            result = subprocess.run(
                [sys.executable, "-I", "-S", "-B", str(_RUNNER)],
                input=code,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                timeout=_WAIT_S,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return False
    return result.stdout == "done"  # the runner's own word; code that leaves early does not say it
