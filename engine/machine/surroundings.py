"""Where this process runs: operating system, container, WSL, over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.machine.reading import Reading, line_of, read, text_of

_CONTAINER_WORDS = ("docker", "containerd", "kubepods", "libpod", "lxc")


def read_surroundings(root: Path, environment: Mapping[str, str]) -> dict[str, Reading]:
    return {
        "system.name": read("/etc/os-release", lambda: _release(root)),
        "system.kernel": read(
            "/proc/sys/kernel/osrelease", lambda: text_of(root, "proc/sys/kernel/osrelease")
        ),
        "system.container": read("/.dockerenv, /run, /proc/1", lambda: container(root, environment)),
        "system.wsl": read("/proc/sys/kernel/osrelease", lambda: wsl(root)),
        "system.ssh": Reading(_ssh(environment), "environment"),
        "system.model": read("/sys/class/dmi/id", lambda: _board(root)),
    }


def container(root: Path, environment: Mapping[str, str]) -> str | None:
    """What kind of container this is, as far as it can be told from inside."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    named = environment.get("container") or line_of(root, "run/systemd/container")
    if named:
        return named
    groups = line_of(root, "proc/1/cgroup")
    return next((word for word in _CONTAINER_WORDS if word in groups), None)


def wsl(root: Path) -> str | None:
    kernel = line_of(root, "proc/sys/kernel/osrelease").lower()
    if "microsoft" not in kernel:
        return None
    return "WSL2" if "wsl2" in kernel or "standard" in kernel else "WSL1"


def _release(root: Path) -> str | None:
    for line in text_of(root, "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return None


def _ssh(environment: Mapping[str, str]) -> str | None:
    # The variable's value holds addresses, which are nobody's business.
    return "yes" if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY") else None


def _board(root: Path) -> str | None:
    """Maker and model; the serial numbers beside them stay unread."""
    words = [line_of(root, f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return " ".join(word for word in words if word) or None
