"""`s2chat doctor`: what is installed, what this machine has, and what is lost for lack of something."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app import exits
from app.privacy import HIDDEN, hide, hide_in
from app.server import key_source, take_server
from app.settings import read_settings
from app.text import one_line
from engine import __version__
from engine.errors import S2Error
from engine.kernels import REINSTALL
from engine.machine.reading import Reading
from engine.paths import EMBEDDED_MODEL, Paths, settings_file
from engine.remote.probe import connect
from engine.size import size

if TYPE_CHECKING:
    from engine.remote.address import Address

_TIMEOUT_S = 20.0

# In a process of its own: a library built for another CPU kills the process that loads it.
_NATIVE = """
import json
from engine.kernels import load_library, native_build
build = native_build()
load_library(build.backend)
import llama_cpp.llama_cpp as bindings
lib = bindings._lib
found = {"library": lib._name, "kernels": build.chosen}
found["gpu_offload"] = bool(bindings.llama_supports_gpu_offload())
found["hooks"] = int(lib.s2_abi_version()) if hasattr(lib, "s2_abi_version") else None
found["cpu_features"] = bindings.llama_print_system_info().decode("utf-8", "replace").strip()
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one probe. `problem`: what is lost and what to do, "" when all is well."""

    name: str
    value: Any
    problem: str = ""


def examine(*, as_json: bool, bundle: Path | None = None) -> int:
    """Exit code 1 when something that is needed is missing. `bundle`: also writes all of it to this file."""
    findings = [_isolated(name, probe) for name, probe in _PROBES]
    readings = _machine()
    findings += _missing(readings)
    report = hide_in(
        {
            **{item.name: dataclasses.asdict(item) for item in findings},
            "probes": {name: dataclasses.asdict(reading) for name, reading in readings.items()},
        }
    )
    text = hide("\n".join([*(line for item in findings for line in _lines(item)), *_probe_lines(readings)]))
    print(json.dumps(report, default=str) if as_json else text)
    if bundle is not None:
        from app.bundle import write_bundle

        names = write_bundle(
            bundle, {"doctor.json": json.dumps(report, indent=2, default=str), "doctor.txt": text}
        )
        print(f"wrote {bundle}: {', '.join(names)}; look into it before you send it", file=sys.stderr)
    needed = ("native", "model", "packages")
    return exits.ERROR if any(item.problem for item in findings if item.name in needed) else exits.OK


def _machine() -> dict[str, Reading]:
    """Every probe of the machine, disk and memory measured anew."""
    from engine.machine.inventory import merged, of_disk, quick, slow

    return merged(quick(), slow(), of_disk(EMBEDDED_MODEL, measured=True))


def _missing(readings: Mapping[str, Reading]) -> list[Finding]:
    """Probes without an answer whose answer would be of use here, and how to get one."""
    findings = []
    for name, needed_by in (("jtop", "jetson.model"), ("nvml", "driver.version")):
        reading = readings.get(name)
        if reading is not None and needed_by in readings:
            findings.append(Finding(name, reading.value, reading.error))
    return findings


def _probe_lines(readings: Mapping[str, Reading]) -> list[str]:
    """Each value with its source, n/a with its reason."""
    lines = ["", "What this machine says of itself, and where:"]
    for name, reading in readings.items():
        words = (
            _value(name, reading.value)
            if reading.known
            else f"n/a{': ' if reading.error else ''}{reading.error}"
        )
        lines.append(f"  {name:<22} {one_line(words)}  [{reading.source}]")
    return lines


def _value(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool) and value > 1 << 20:
        return f"{size(value)}/s" if name.endswith(("speed", "bandwidth")) else size(value)
    return str(value)


def _isolated(name: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:
        # A probe that trips is itself a finding; the others still have their say.
        return Finding(name, None, one_line(f"{type(error).__name__}: {error}"))


def _lines(item: Finding) -> list[str]:
    values = item.value if isinstance(item.value, dict) else {"": item.value}
    text = ", ".join(f"{key} {value}".strip() for key, value in values.items() if value is not None)
    mark = "▲" if item.problem else "✓"
    lines = [f"{mark} {item.name:<9} {text}"]
    return [*lines, f"    {item.problem}"] if item.problem else lines


def _program() -> Finding:
    return Finding(
        "program", {"s2chat": __version__, "python": platform.python_version(), "at": sys.executable}
    )


def _packages() -> Finding:
    names = ("llama-cpp-python", "textual", "httpx", "starlette", "uvicorn", "numpy", "gguf")
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    return Finding("packages", versions, f"missing: {', '.join(missing)}; {REINSTALL}" if missing else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _native() -> Finding:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _NATIVE],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        cause = f"signal {-done.returncode}" if done.returncode < 0 else one_line(last)
        return Finding("native", None, f"the native library does not load ({cause}); {REINSTALL}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    problem = ""
    if found["hooks"] is None:
        problem = f"this is llama.cpp without our hooks, nothing will run; {REINSTALL}"
    return Finding("native", found, problem)


def _device() -> Finding:
    from engine.machine.inventory import this_machine

    device, _ = this_machine(EMBEDDED_MODEL)
    return Finding(
        "device",
        {
            "": device.name,
            "arch": device.arch,
            "cores": device.cores,
            "memory": size(device.memory_bytes),
            "available": size(device.available_bytes) + (" by a cgroup" if device.limited else ""),
        },
    )


def _gpu() -> Finding:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        jetson = Path("/etc/nv_tegra_release")
        seen = one_line(jetson.read_text()) if jetson.exists() else "no NVIDIA GPU"
        return Finding("gpu", seen)
    query = [smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        return Finding(
            "gpu", None, f"nvidia-smi fails: {one_line(done.stdout + done.stderr)}; check the driver"
        )
    return Finding("gpu", one_line(done.stdout))


def _toolkit() -> Finding:
    standard = Path("/usr/local/cuda/bin/nvcc")
    nvcc = shutil.which("nvcc") or (str(standard) if standard.exists() else None)
    if nvcc is not None:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        release = next((line for line in done.stdout.splitlines() if "release" in line), "?")
        return Finding("toolkit", one_line(release))
    lost = "the GPU stays unused; install the CUDA toolkit, then run packaging/chat"
    return Finding("toolkit", "no CUDA toolkit", lost if shutil.which("nvidia-smi") else "")


def _model() -> Finding:
    if not EMBEDDED_MODEL.is_file():
        return Finding("model", str(EMBEDDED_MODEL), "the model that ships is missing; give another with -m")
    from engine.model import read_model_info

    try:
        info = read_model_info(EMBEDDED_MODEL)
    except S2Error as error:
        return Finding("model", str(EMBEDDED_MODEL), error.line())
    return Finding("model", {info.name: f"({info.arch}, {size(info.size_bytes)})", "at": str(EMBEDDED_MODEL)})


def _paths() -> Finding:
    paths = Paths.default()
    places = {"chats": paths.history, "log": paths.log, "socket": paths.socket}
    blocked = [path for path in places.values() if not _writable(path.parent)]
    problem = f"cannot be written: {', '.join(map(str, blocked))}" if blocked else ""
    return Finding("paths", {name: str(path) for name, path in places.items()}, problem)


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _terminal() -> Finding:
    names = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "TMUX", "SSH_CONNECTION")
    values = {name: os.environ[name] for name in names if name in os.environ}
    if "SSH_CONNECTION" in values:  # its addresses are nobody's business
        values["SSH_CONNECTION"] = "yes"
    return Finding("terminal", values)


def _server() -> Finding:
    """Whether answers come from elsewhere. Its name and key are nobody's business."""
    settings = read_settings(settings_file())
    arguments = argparse.Namespace(model=None, server=None, key_file=None)
    take_server(arguments, settings)
    address = arguments.address
    if address is None:
        return Finding("server", "none, this machine answers")
    value = {"": urlsplit(address.root).scheme, "key": key_source(address, arguments.key_file)}
    try:
        kind = asyncio.run(_kind(address, arguments.remote_model))
    except S2Error as error:
        words = error.line().replace(address.place, HIDDEN).replace(address.host, HIDDEN)
        return Finding("server", value, one_line(words))
    return Finding("server", {**value, "kind": kind})


async def _kind(address: Address, model: str) -> str:
    async with await connect(address, model or "any") as client:
        return client.offer.kind


_PROBES: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("program", _program),
    ("packages", _packages),
    ("native", _native),
    ("device", _device),
    ("gpu", _gpu),
    ("toolkit", _toolkit),
    ("model", _model),
    ("paths", _paths),
    ("terminal", _terminal),
    ("server", _server),
)
