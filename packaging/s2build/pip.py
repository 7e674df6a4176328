"""Virtual environments and pip, and what their failures mean."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

from s2build.children import Command, Outcome, run
from s2build.problem import SetupError

_UNREACHABLE = re.compile(r"connection|name resolution|timed out|retries|unreachable", re.IGNORECASE)


def make_venv(folder: Path) -> None:
    """A fresh virtual environment with pip, resting on the Python this one rests on."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    # Debian packs the two apart from Python.
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise SetupError(f"{base} cannot make virtual environments: sudo apt install {package}")
    outcome = run([base, "-I", "-m", "venv", "--clear", folder])
    if not outcome.ok:
        raise SetupError(f"cannot make {folder}: {last_line(outcome.output)}")


def pip(venv: Path, *arguments: str | Path, on_line: Callable[[str], None] | None = None) -> Outcome:
    """Runs the pip of a virtual environment."""
    command: Command = [venv / "bin/python", "-I", "-m", "pip", *arguments]
    return run([*command, "--disable-pip-version-check", "--no-input"], on_line=on_line)


def pip_problem(output: str) -> str:
    """Why pip failed, in a line."""
    if _UNREACHABLE.search(output):
        return "the package index cannot be reached; check the network and pip's settings"
    return last_line(output)


def last_line(output: str) -> str:
    """The last line that says something; errors of pip stand in lines of their own kind."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    lines = errors or [line for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR:").strip() if lines else "no reason given"
