"""What the service of jetson-stats (jtop) knows of a Jetson, asked in a process of its own."""

from __future__ import annotations

import grp
import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.machine.feed import Feed
from engine.machine.helper import HelperError, ask
from engine.machine.reading import Reading

SOCKET = Path("/run/jtop.sock")
DEADLINE_S = 3.0
_SCRIPT = Path(__file__).parent / "programs" / "ask_jtop.py"
_NAMES = {
    "model": "jetson.model",
    "module": "jetson.module",
    "l4t": "jetson.l4t",
    "jetpack": "jetson.jetpack",
    "power_mode": "jetson.power_mode",
    "clocks_fixed": "jetson.clocks_fixed",
    "load": "jetson.gpu_load",
    "temperature": "jetson.temperature",
}
_INSTALL = "sudo pip3 install -U jetson-stats, then log in again"


def read_jtop(
    *,
    socket: Path = SOCKET,
    python: str | None = None,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Reading]:
    """Readings under the names that sysfs gives too, or only "jtop" with an error that says what to do."""
    try:
        command = _command(socket, python)
    except HelperError as error:
        return {"jtop": Reading(None, str(socket), error.message)}
    try:
        answer = ask(command, deadline_s, environment)
    except HelperError as error:
        # Known to happen while the service starts or is stuck.
        hint = "; sudo systemctl restart jtop"
        return {"jtop": Reading(None, str(socket), error.message + hint)}
    return parse(answer)


def feed_jtop(
    interval_s: float,
    *,
    socket: Path = SOCKET,
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Feed:
    """The same again and again, for `parse`."""
    return Feed(
        lambda: [*_command(socket, python), f"{interval_s:g}"],
        start_s=DEADLINE_S,
        deadline_s=3 * interval_s,
        environment=environment,
    )


def _command(socket: Path, python: str | None) -> list[str]:
    """Raises HelperError where asking is of no use."""
    refusal = _refusal(socket)
    python = python or _python()
    if not refusal and python is None:
        refusal = f"its service runs, but not its client: {_INSTALL}"
    if refusal or python is None:
        raise HelperError(refusal)
    return [python, str(_SCRIPT)]


def parse(answer: Mapping[str, Any]) -> dict[str, Reading]:
    """The helper's answer as readings."""
    source = "jtop"
    if "error" in answer:
        return {"jtop": Reading(None, source, str(answer["error"])[:300])}
    found = {"jtop": Reading("answers", source)}
    for key, name in _NAMES.items():
        item = answer.get(key) or {"error": "not told"}
        value = item.get("value")
        found[name] = Reading(
            value, source, str(item.get("error", "")) or ("" if value is not None else "none")
        )
    power = (answer.get("power_mw") or {}).get("value")
    if isinstance(power, (int, float)):
        found["jetson.power_w"] = Reading(power / 1000, source)
    return found


def _refusal(socket: Path) -> str:
    """Why asking is of no use; asking a service that is not there takes the client seconds."""
    try:
        status = socket.stat()
    except FileNotFoundError:
        return f"jetson-stats does not run here; for power and temperature of a Jetson: {_INSTALL}"
    except OSError as error:
        return f"{socket}: {error.strerror}"
    if not stat.S_ISSOCK(status.st_mode):
        return f"{socket} is no socket: sudo systemctl restart jtop"
    if not os.access(socket, os.R_OK | os.W_OK, effective_ids=True):
        group = _group(status.st_gid)
        return (
            f"no permission, {socket} belongs to group {group}: sudo usermod -aG {group} $USER, log in again"
        )
    return ""


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _python() -> str | None:
    """The interpreter that has the client: that of the command `jtop`, or this one with the extra."""
    program = shutil.which("jtop")
    if program is not None:
        try:
            with open(program, "rb") as file:
                first = file.readline(300).decode("utf-8", "replace")
        except OSError:
            first = ""
        words = first[2:].split() if first.startswith("#!") else []
        if words and Path(words[0]).name.startswith("python"):
            return words[0]
        if len(words) == 2 and words[1].startswith("python"):  # #!/usr/bin/env python3
            return shutil.which(words[1])
    return sys.executable if importlib.util.find_spec("jtop") is not None else None
