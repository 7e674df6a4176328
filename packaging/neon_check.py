"""Checks the few-row kernels for ARM without an ARM processor: packaging/neon-check.

Compiles ggml and native/tests/rows_check.cpp for each kind of processor we name and runs the check under an
emulator. Takes minutes; it goes on where it was stopped. Not part of every CI run.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from s2build.cache import Cache
from s2build.children import Command, run
from s2build.console import say
from s2build.emulation import find_emulator
from s2build.machine import find_compiler, jobs_here
from s2build.problem import SetupError
from s2build.recipe import NATIVE, make_inputs
from s2build.source import fetch_sdist, make_source
from s2build.tools import build_environment, build_tools, run_build


@dataclass(frozen=True)
class Variant:
    """A kind of processor: what it is compiled for and what the emulator plays."""

    what: str
    arch: str
    cpu: str


VARIANTS = {
    "dotprod": Variant("dot products (Jetson Orin)", "armv8.2-a+dotprod+fp16", "neoverse-n1"),
    "i8mm": Variant("int8 matrices", "armv8.6-a+dotprod+fp16+i8mm", "max,sve=off"),
    # The only one whose Q4_0 ggml repacks by eight columns.
    "sve256": Variant(
        "256-bit SVE (Graviton 3)", "armv8.4-a+dotprod+fp16+i8mm+sve", "max,sve-default-vector-length=32"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="packaging/neon-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--for", dest="names", choices=VARIANTS, action="append", help="only this processor")
    parser.add_argument("types", nargs="*", help="only these, as ggml names them (q4_0, q4_K, …)")
    options = parser.parse_args()
    try:
        return 0 if check(options.names or list(VARIANTS), options.types) else 1
    except SetupError as error:
        say(f"neon-check: {error}")
        return 1
    except KeyboardInterrupt:
        say("neon-check: stopped; the next run goes on from here")
        return 130


def check(names: list[str], types: list[str]) -> bool:
    """Whether the kernels are right on every processor named."""
    emulator, compiler = find_emulator("aarch64"), find_compiler("aarch64")
    cache = Cache.default()
    inputs = make_inputs(preset="neon-check", compiler=compiler.text, cpu="aarch64", patched=True)
    tree = cache.trees / f"{inputs.tree_key}-neon-check"
    right = True
    with cache.lock("neon-check"):
        tree.mkdir(parents=True, exist_ok=True)
        tools = build_tools(cache)
        make_source(fetch_sdist(cache.sdist, tools), tree / "source", version=inputs.version, patched=True)
        environment = build_environment(tools, compiler, jobs_here())
        for name in names:
            program = built_check(tree, tools, environment, name)
            say(f"{VARIANTS[name].what}:")
            right &= run_check([emulator, "-cpu", VARIANTS[name].cpu, program, *types])
    return right


def built_check(tree: Path, tools: Path, environment: dict[str, str], name: str) -> Path:
    variant, objects, log = VARIANTS[name], tree / f"objects-{name}", tree / f"build-{name}.log"
    defines = {
        "LLAMA_CPP": str(tree / "source/vendor/llama.cpp"),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "GGML_NATIVE": "OFF",
        "GGML_CPU_ARM_ARCH": variant.arch,
    }
    options = [f"-D{key}={value}" for key, value in defines.items()]
    configure: Command = [tools / "bin/cmake", "-S", NATIVE / "tests", "-B", objects, *options]
    run_build(configure, f"{variant.what}, configuration", log, tree, environment)
    build: Command = [tools / "bin/cmake", "--build", objects]
    run_build(build, variant.what, log, tree, environment)
    return objects / "rows_check"


def run_check(command: Command) -> bool:
    """Runs the check, showing its lines as they come."""
    # Threads that spin for each other would wait for the emulator's turns.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return run(command, on_line=lambda line: print(line, end="", flush=True), env=environment).ok


if __name__ == "__main__":
    sys.exit(main())
