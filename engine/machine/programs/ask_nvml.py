"""Prints what NVML says about each GPU, as one JSON object. Run as a program, never imported.

With a number behind it, it does so again every so many seconds until nobody reads it or there is no answer.
Each call stands alone: one that this driver, this board or this version of the library does not know gives an
error in its place and nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError as error:
        return {"error": f"the Python package nvidia-ml-py cannot be imported: {error}"}
    try:
        pynvml.nvmlInit()
    except Exception as error:
        return {"error": str(error)}
    found: dict[str, Any] = {
        "driver": call(pynvml, "nvmlSystemGetDriverVersion"),
        "cuda": call(pynvml, "nvmlSystemGetCudaDriverVersion"),
    }
    count = call(pynvml, "nvmlDeviceGetCount")
    if "error" in count:
        return {"error": count["error"], "driver": found["driver"]}
    found["gpus"] = [gpu(pynvml, index) for index in range(count["value"])]
    lost = [card["name"]["error"] for card in found["gpus"] if "error" in card["name"]]
    if lost and len(lost) == len(found["gpus"]):  # fell off the bus, or the driver was changed
        return {"error": lost[0], "driver": found["driver"]}
    return found


def gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = call(nvml, "nvmlDeviceGetHandleByIndex", index)
    if "error" in handle:
        return {"name": handle}
    handle = handle["value"]
    memory = call(nvml, "nvmlDeviceGetMemoryInfo", handle)
    use = call(nvml, "nvmlDeviceGetUtilizationRates", handle)
    mode = call(nvml, "nvmlDeviceGetMigMode", handle)
    found: dict[str, Any] = {
        "name": call(nvml, "nvmlDeviceGetName", handle),
        "memory": part(memory, lambda value: int(value.total)),
        "memory_free": part(memory, lambda value: int(value.free)),
        "load": part(use, lambda value: int(value.gpu)),
        "power_mw": call(nvml, "nvmlDeviceGetPowerUsage", handle),
        "power_limit_mw": call(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle),
        "temperature": call(nvml, "nvmlDeviceGetTemperature", handle, 0),
        "bus_bits": call(nvml, "nvmlDeviceGetMemoryBusWidth", handle),
        "memory_clock_mhz": call(nvml, "nvmlDeviceGetMaxClockInfo", handle, 2),
        "throttle": call(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        "capability": part(call(nvml, "nvmlDeviceGetCudaComputeCapability", handle), list),
        "mig": part(mode, lambda value: bool(value[0])),
    }
    if found["mig"].get("value"):  # a part of a GPU answers for itself only
        found["parts"] = parts(nvml, handle)
    return found


def parts(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    count = call(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle)
    found = []
    for index in range(count.get("value", 0)):
        piece = call(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if "error" in piece:
            continue
        memory = call(nvml, "nvmlDeviceGetMemoryInfo", piece["value"])
        found.append(
            {
                "name": call(nvml, "nvmlDeviceGetName", piece["value"]),
                "memory": part(memory, lambda value: int(value.total)),
                "memory_free": part(memory, lambda value: int(value.free)),
            }
        )
    return found


def call(nvml: Any, name: str, *arguments: Any) -> dict[str, Any]:
    try:
        value = getattr(nvml, name)(*arguments)
    except AttributeError:
        return {"error": f"this version of the library has no {name}"}
    except Exception as error:
        return {"error": str(error)}
    return {"value": value.decode("utf-8", "replace") if isinstance(value, bytes) else value}


def part(answer: dict[str, Any], take: Callable[[Any], Any]) -> dict[str, Any]:
    if "error" in answer:
        return answer
    try:
        return {"value": take(answer["value"])}
    except Exception as error:
        return {"error": f"unexpected answer: {error!r}"}


if __name__ == "__main__":
    answer = main()
    print("\n" + json.dumps(answer), flush=True)
    while len(sys.argv) > 1 and "error" not in answer:
        time.sleep(float(sys.argv[1]))
        answer = main()
        print(json.dumps(answer), flush=True)
