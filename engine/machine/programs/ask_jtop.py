"""Prints what the service of jetson-stats says, as one JSON object. Run as a program, never imported.

With a number behind it, it does so again every so many seconds, until nobody reads it or the service is gone.
jetson-stats is under the AGPL and installed by whoever wants it: this runs in a process of its own, with the
Python that it was installed for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> dict[str, Any]:
    try:
        from jtop import jtop
    except ImportError as error:
        return {"error": f"jetson-stats cannot be imported: {error}"}
    try:
        with jtop() as jetson:
            return found_by(jetson)
    except Exception as error:
        return {"error": " ".join(str(error).split()) or type(error).__name__}


def follow(interval_s: float) -> dict[str, Any]:
    """Why it ended."""
    try:
        from jtop import jtop
    except ImportError as error:
        return {"error": f"jetson-stats cannot be imported: {error}"}
    try:
        with jtop(interval_s) as jetson:
            while jetson.ok():  # waits for what is new
                print(json.dumps(found_by(jetson)), flush=True)
    except BrokenPipeError:
        return {}
    except Exception as error:
        return {"error": " ".join(str(error).split()) or type(error).__name__}
    return {"error": "the service says nothing any more"}


def found_by(jetson: Any) -> dict[str, Any]:
    return {
        "model": take(lambda: jetson.board["hardware"]["Model"]),
        "module": take(lambda: jetson.board["hardware"]["Module"]),
        "l4t": take(lambda: jetson.board["hardware"]["L4T"]),
        "jetpack": take(lambda: jetson.board["hardware"]["Jetpack"]),
        "memory": take(lambda: int(jetson.memory["RAM"]["tot"]) * 1024),
        "memory_used": take(lambda: int(jetson.memory["RAM"]["used"]) * 1024),
        "power_mw": take(lambda: jetson.power["tot"]["power"]),
        "power_mode": take(lambda: str(jetson.nvpmodel.name)),
        "clocks_fixed": take(lambda: bool(jetson.jetson_clocks)),
        "load": take(lambda: next(gpu["status"]["load"] for gpu in jetson.gpu.values())),
        "temperature": take(lambda: max(zone["temp"] for zone in jetson.temperature.values())),
    }


def take(probe: Callable[[], Any]) -> dict[str, Any]:
    try:
        value = probe()
    except Exception as error:
        return {"error": f"not told: {error!r}"}
    return {"value": value}


if __name__ == "__main__":
    answer = json.dumps(follow(float(sys.argv[1])) if len(sys.argv) > 1 else main())
    print("\n" + answer, flush=True)
    os._exit(0)  # threads of the client may wait for a service that is gone
