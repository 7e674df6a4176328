"""Compiles and links the CUDA backend for each architecture we name, without a GPU: packaging/cuda-check.

Takes hours on two cores for all three; it goes on where it was stopped. Not part of every CI run.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from s2build.cache import Cache
from s2build.children import Command, run
from s2build.console import Step, say
from s2build.cuda import Toolkit, cuda_preset, find_toolkit
from s2build.machine import check_disk, cpu_features, find_compiler, jobs_here
from s2build.pip import pip, pip_problem
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY, make_inputs
from s2build.source import fetch_sdist, make_source
from s2build.tools import build_environment, build_tools, run_build

ARCHITECTURES = {"87": "Jetson Orin", "89": "Ada desktops", "90": "Hopper"}
_CUBLAS_LOCK = REPOSITORY / "packaging/cuda.lock"
# One of each kind: dispatch, narrow and wide matrix products, expert selection, attention.
_SAMPLE = (
    *("ggml-cuda", "mmvq", "mmvf", "mmid", "topk-moe", "argsort", "getrows", "norm", "rope"),
    *("mmq-instance-q4_0", "fattn-mma-f16-instance-ncols1_8-ncols2_4"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="packaging/cuda-check", description=__doc__)
    parser.add_argument(
        "--arch", choices=ARCHITECTURES, action="append", help="only this one (may be repeated)"
    )
    parser.add_argument("--sample", action="store_true", help="only some files: minutes, not hours")
    parser.add_argument("--jobs", type=int, default=0, help="compilers at once (default: what memory allows)")
    options = parser.parse_args()
    try:
        check(options.arch or list(ARCHITECTURES), sample=options.sample, jobs=options.jobs)
    except SetupError as error:
        say(f"cuda-check: {error}")
        return 1
    except KeyboardInterrupt:
        say("cuda-check: stopped; the next run goes on from here")
        return 130
    return 0


@dataclass(frozen=True)
class Build:
    """What all architectures share: one source tree, one set of tools."""

    toolkit: Toolkit
    tools: Path
    tree: Path
    environment: dict[str, str]
    defines: dict[str, str]  # where to find what the toolkit lacks


def check(archs: list[str], *, sample: bool, jobs: int) -> None:
    toolkit = find_toolkit()
    if toolkit is None:
        raise SetupError("nvcc is needed: install a CUDA toolkit, or put its bin folder on PATH")
    cache, compiler = Cache.default(), find_compiler()
    preset = f"cuda {toolkit.release}"
    inputs = make_inputs(preset=preset, compiler=compiler.text, cpu=cpu_features(), patched=True)
    tree = cache.trees / f"{inputs.tree_key}-cuda-check"
    with cache.lock("cuda-check"):
        tree.mkdir(parents=True, exist_ok=True)
        check_disk(tree, cuda=True)
        tools = build_tools(cache)
        sdist = fetch_sdist(cache.sdist, tools)
        make_source(sdist, tree / "source", version=inputs.version, patched=True)
        environment = build_environment(tools, compiler, jobs or jobs_here(cuda=True))
        defines = cublas_defines(toolkit, tools, tree, compiler.c)
        for arch in archs:
            check_arch(Build(toolkit, tools, tree, environment, defines), arch, sample=sample)


def check_arch(build: Build, arch: str, *, sample: bool) -> None:
    """Configures and compiles for one architecture; each has objects of its own."""
    name, objects = f"CUDA backend for {ARCHITECTURES[arch]} (sm_{arch})", build.tree / f"objects-{arch}"
    defines = {**cuda_preset(arch, build.toolkit).defines, "CMAKE_BUILD_TYPE": "Release", **build.defines}
    options = [f"-D{key}={value}" for key, value in defines.items()]
    configure: Command = [build.tools / "bin/cmake", "-S", build.tree / "source", "-B", objects, *options]
    log = build.tree / f"build-{arch}.log"
    run_build(configure, f"{name}, configuration", log, build.tree, build.environment)
    # -k 0: one run names every file that fails.
    ninja: Command = [build.tools / "bin/ninja", "-C", objects, "-k", "0", *jobs_of(build.environment)]
    targets = sample_targets(ninja, build.environment) if sample else ["ggml-cuda"]
    run_build([*ninja, *targets], name, log, build.tree, build.environment)


def jobs_of(environment: dict[str, str]) -> tuple[str, str]:
    return "-j", environment["CMAKE_BUILD_PARALLEL_LEVEL"]


def sample_targets(ninja: Command, environment: dict[str, str]) -> list[str]:
    """The object files of the sample, as ninja names them."""
    listing = run([*ninja, "-t", "targets", "all"], env=environment).output
    found = re.findall(r"^(\S+/([^/\s]+)\.cu\.o):", listing, re.MULTILINE)
    targets = [path for path, name in found if name in _SAMPLE]
    missing = set(_SAMPLE) - {name for _, name in found}
    if missing:
        raise SetupError(f"the sample names files that are gone: {', '.join(sorted(missing))}")
    return targets


def cublas_defines(toolkit: Toolkit, tools: Path, tree: Path, c_compiler: str) -> dict[str, str]:
    """What CMake must be told where the toolkit lacks cuBLAS; nothing on a full one."""
    include = toolkit_root(toolkit) / "include"
    if (include / "cublas_v2.h").exists():
        return {}
    if not toolkit.release.startswith("13."):
        raise SetupError(f"CUDA {toolkit.release} here lacks cuBLAS: install its libcublas-dev package")
    package = cublas_package(tools, tree) / "nvidia/cu13"
    return {
        "CMAKE_CUDA_FLAGS": f"-I{package / 'include'}",
        "CUDA_cublas_LIBRARY": str(package / "lib/libcublas.so.13"),
        "CUDA_cublasLt_LIBRARY": str(package / "lib/libcublasLt.so.13"),
        "CUDA_cuda_driver_LIBRARY": str(driver_stub(tree, c_compiler)),
    }


def toolkit_root(toolkit: Toolkit) -> Path:
    """Asks nvcc, which may be a script or a link elsewhere."""
    output = run([toolkit.nvcc, "--dryrun", "x.cu"]).output
    match = re.search(r"^#\$ TOP=(.*)$", output, re.MULTILINE)
    return Path(match.group(1)).resolve() if match else Path(toolkit.nvcc).resolve().parents[1]


def cublas_package(tools: Path, tree: Path) -> Path:
    target = tree / "cublas"
    if (target / "complete").exists():
        return target
    options = ("--no-deps", "--upgrade", "--require-hashes", "--target", target)
    with Step("cuBLAS"):
        outcome = pip(tools, "install", *options, "-r", _CUBLAS_LOCK)
        if not outcome.ok:
            raise SetupError(f"cannot install nvidia-cublas: {pip_problem(outcome.output)}")
        (target / "complete").touch()
    return target


def driver_stub(tree: Path, c_compiler: str) -> Path:
    """An empty libcuda.so to link against: the real one is the driver's, a full toolkit has a stub."""
    stub = tree / "libcuda.so"
    if not run([c_compiler, "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", stub]).ok:
        raise SetupError(f"{c_compiler} cannot link a library")
    return stub


if __name__ == "__main__":
    sys.exit(main())
