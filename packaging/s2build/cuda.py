"""Finds an NVIDIA GPU and a CUDA toolkit, and says what to build for them."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from s2build.children import printed

# Jetson boards before JetPack 7 have no nvidia-smi that tells; the model name does.
_JETSON_ARCHS = (("thor", "110"), ("orin", "87"), ("xavier", "72"))
#: Names the architectures to build for where no GPU can be seen, as in the build of a container image.
ARCHS_ENV = "S2CHAT_CUDA_ARCHS"
_ASK_GPU = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]


@dataclass(frozen=True)
class Gpu:
    """`archs`: compute capabilities as CMake writes them, "" when a GPU is there but does not tell."""

    archs: str
    jetson: bool


@dataclass(frozen=True)
class Toolkit:
    """The CUDA compiler and its release, such as "12.6"."""

    nvcc: str
    release: str


@dataclass(frozen=True)
class Preset:
    """What the native library is built for. `name` is part of the cache key, `defines` go to CMake.

    `platform` is the tag of a wheel for other machines than this one, "" for this one alone; `kernels` are
    those it brings beside the oldest ones, with the processor features each asks for, best first. `machine`
    is the architecture, "" for this machine's.
    """

    name: str
    defines: dict[str, str]
    nvcc: str = ""
    platform: str = ""
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    machine: str = ""

    @property
    def cuda(self) -> bool:
        return bool(self.nvcc)


CPU = Preset("cpu", {})


def parse_compute_caps(nvidia_smi: str) -> str:
    """CMake's list of architectures from `nvidia-smi --query-gpu=compute_cap --format=csv,noheader`."""
    caps = re.findall(r"^\s*(\d+)\.(\d)\s*$", nvidia_smi, re.MULTILINE)
    return ";".join(sorted({major + minor for major, minor in caps}, key=int))


def parse_jetson_model(model: str) -> str:
    """The architecture of a board named in /proc/device-tree/model, or ""."""
    name = model.lower()
    return next((arch for part, arch in _JETSON_ARCHS if part in name), "")


def parse_nvcc_release(text: str) -> str:
    match = re.search(r"release (\d+\.\d+)", text)
    return match.group(1) if match else ""


def find_gpu(root: Path = Path("/")) -> Gpu | None:
    """The GPU of this machine, or the one that is to be built for; `root` stands for / in tests."""
    named = os.environ.get(ARCHS_ENV)
    if named:
        return Gpu(named, jetson=False)
    arch = jetson_arch(root)
    if arch or (root / "etc/nv_tegra_release").exists():
        return Gpu(arch, jetson=True)
    if not (root / "dev/nvidia0").exists():
        return None
    return Gpu(parse_compute_caps(printed(_ASK_GPU)), jetson=False)


def gpu_present(root: Path = Path("/")) -> bool:
    """Whether find_gpu() would find one; asks no driver, so it takes no time."""
    marks = (root / "dev/nvidia0", root / "etc/nv_tegra_release")
    return bool(os.environ.get(ARCHS_ENV)) or any(mark.exists() for mark in marks) or jetson_arch(root) != ""


def jetson_arch(root: Path) -> str:
    model = root / "proc/device-tree/model"
    return parse_jetson_model(model.read_text(errors="replace")) if model.exists() else ""


def find_nvcc() -> str:
    """The path of nvcc on PATH or where toolkits install themselves, newest first; "" without one."""
    found = shutil.which("nvcc")
    if found:
        return found
    places = [
        Path("/usr/local/cuda/bin/nvcc"),
        *sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), reverse=True),
    ]
    return next((str(path) for path in places if os.access(path, os.X_OK)), "")


def find_toolkit() -> Toolkit | None:
    nvcc = find_nvcc()
    return Toolkit(nvcc, parse_nvcc_release(printed([nvcc, "--version"]))) if nvcc else None


def cuda_preset(archs: str, toolkit: Toolkit) -> Preset:
    """The CUDA backend for these architectures; "native" lets CMake ask the GPU itself."""
    archs = archs or "native"
    name = f"cuda {archs} nvcc {toolkit.release}"
    defines = {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": archs, "CMAKE_CUDA_COMPILER": toolkit.nvcc}
    return Preset(name, defines, toolkit.nvcc)


def choose_preset(gpu: Gpu | None, toolkit: Toolkit | None, *, cpu_only: bool) -> tuple[Preset, str]:
    """What to build, and a line for the person when something is lost by it (else "")."""
    if cpu_only or gpu is None:
        return CPU, ""
    if toolkit is None:
        return CPU, (
            "this machine's NVIDIA GPU stays unused: generation runs on the CPU, several times slower. "
            f"To use it, {install_hint(gpu)}, then start again."
        )
    return cuda_preset(gpu.archs, toolkit), ""


def install_hint(gpu: Gpu) -> str:
    if gpu.jetson:
        return (
            "install the CUDA toolkit (JetPack 6: sudo apt install cuda-toolkit-12-6; else: nvidia-jetpack)"
        )
    return "install the CUDA toolkit (Debian and Ubuntu: sudo apt install nvidia-cuda-toolkit)"
