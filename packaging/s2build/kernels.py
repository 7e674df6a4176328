"""The processors a portable build has matrix kernels for: what is compiled, and which features that asks for.

The CPU backend of llama.cpp is built once for the oldest processor and once for each of these; the engine
loads the first one whose features the machine has (engine/kernels.py).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from s2build.cuda import Preset
from s2build.problem import SetupError

#: No symbol newer than this glibc's: Ubuntu 22.04, JetPack 6, Debian 12.
GLIBC = (2, 35)


@dataclass(frozen=True)
class Kernels:
    """`flags` go to the compiler, `features` are what /proc/cpuinfo must name."""

    name: str
    flags: tuple[str, ...]
    features: tuple[str, ...]


_V3 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_DOT = ("asimddp", "asimdhp", "fphp")

#: Best first. AVX-512 without VNNI has no row of its own: our kernels would be those of AVX2.
X86_64 = (
    Kernels("avx512", ("-march=x86-64-v4", "-mavx512vnni"), (*_V4, "avx512_vnni")),  # Cascade Lake, Zen 4
    Kernels("avx2-vnni", ("-march=x86-64-v3", "-mavxvnni"), (*_V3, "avx_vnni")),  # Alder Lake
    Kernels("avx2", ("-march=x86-64-v3",), _V3),
)
AARCH64 = (
    Kernels("i8mm", ("-march=armv8.6-a+dotprod+fp16+i8mm",), (*_DOT, "i8mm")),  # Thor, Grace
    Kernels("dotprod", ("-march=armv8.2-a+dotprod+fp16",), _DOT),  # Orin
)

_TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
_X86_OPTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX_VNNI", "AVX512")


def features_of(machine: str, name: str) -> tuple[str, ...]:
    """What the kernels of that name ask for."""
    return next(row.features for row in _TABLES[machine] if row.name == name)


def portable_preset(machine: str = platform.machine()) -> Preset:
    """A build for every processor of this architecture, CPU only."""
    if machine not in _TABLES:
        raise SetupError(f"no kernels are chosen for {machine} yet")
    table = _TABLES[machine]
    oldest = (
        {f"GGML_{name}": "ON" if name == "SSE42" else "OFF" for name in _X86_OPTIONS}
        if machine == "x86_64"
        else {"GGML_CPU_ARM_ARCH": "armv8-a"}
    )
    listed = ";".join(",".join((row.name, *row.flags)) for row in table)
    elsewhere = {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine}
    return Preset(
        name=f"portable {machine}",
        defines={
            "GGML_NATIVE": "OFF",
            **oldest,
            "S2_KERNELS": listed,
            **(elsewhere if machine != platform.machine() else {}),
        },
        platform=f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}",
        kernels={row.name: row.features for row in table},
        machine=machine,
    )
