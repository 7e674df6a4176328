"""Writes the lock files beside this script; run by hand after a pin in pyproject.toml changes.

Needs `uv` on PATH (`pip install uv`). The locks hold versions and hashes only, valid for every supported
Python on x86-64 and arm64; they name no index, so that each machine uses the one it is set up with.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = "llama-cpp-python"  # comes from our own build, never from an index

# What the native wheel itself imports; pinned with the rest because it is installed without its dependencies.
NATIVE_IMPORTS = ("diskcache==5.6.3", "jinja2==3.1.6", "typing-extensions==4.16.0")
# What an editable install of this checkout needs, so that no build environment has to be made for it.
EDITABLE = ("hatchling==1.33.0", "editables==0.6")
# cuBLAS for packaging/cuda-check, where the toolkit has none; goes with CUDA 13.
CUDA = ("nvidia-cublas==13.0.2.14",)
# What installs the wheels of a package: Debian keeps pip apart from Python.
INSTALLER = ("pip==26.3",)
# What builds the native wheel, in an environment of its own.
NATIVE_TOOLS = ("scikit-build-core==1.1.2", "cmake==4.4.5", "ninja==1.13.2")


def main() -> int:
    pyproject = (HERE.parent / "pyproject.toml").read_text()
    runtime = [line for line in parse_array(pyproject, "dependencies") if not line.startswith(OURS)]
    runtime += [*NATIVE_IMPORTS, *EDITABLE]
    compile_lock("requirements.lock", runtime)
    compile_lock("dev.lock", [*runtime, *parse_array(pyproject, "dev")])
    compile_lock("native.lock", list(NATIVE_TOOLS))
    compile_lock("cuda.lock", list(CUDA))
    compile_lock("installer.lock", list(INSTALLER))
    return 0


def parse_array(pyproject: str, name: str) -> list[str]:
    """The strings of `name = [...]`, one to a line; Python 3.10 has no TOML parser."""
    match = re.search(rf"^{name} = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    return re.findall(r'^\s*"(.*?)",', match.group(1), re.MULTILINE) if match else []


def compile_lock(name: str, requirements: list[str]) -> None:
    command = [
        *("uv", "pip", "compile", "-", "--quiet", "--universal", "--python-version", "3.10"),
        *("--no-header", "--no-annotate", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"),
    ]
    result = subprocess.run(
        command, input="\n".join(requirements), text=True, stdout=subprocess.PIPE, check=True
    )
    (HERE / name).write_text(f"# Written by packaging/lock.py; do not edit.\n{result.stdout}")


if __name__ == "__main__":
    sys.exit(main())
