"""Builds the native wheel, or takes it from the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from s2build.cache import Cache
from s2build.children import Command, run
from s2build.console import Step
from s2build.cuda import Preset
from s2build.machine import Compiler, check_disk, cpu_features, find_compiler, jobs_here
from s2build.problem import SetupError
from s2build.recipe import TOOLS_LOCK, UPSTREAM_COMMIT, Inputs, file_sha256, hook_symbols, make_inputs
from s2build.source import fetch_sdist, make_source

_STEERING = re.compile(r"(C|CXX|CPP|LD|CUDA)FLAGS$|(CMAKE|SKBUILD|GGML|LLAMA)_|NVCC_(APPEND|PREPEND)_FLAGS$")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_FAILURES = (
    ("No space left on device", "the disk is full"),
    ("Killed signal terminated program", "a compiler ran out of memory: close other programs or add swap"),
    ("virtual memory exhausted", "a compiler ran out of memory: close other programs or add swap"),
)


def native_wheel(
    preset: Preset, *, patched: bool = True, keep_tree: bool = False, cache: Cache | None = None
) -> Path:
    """The wheel for this machine. `keep_tree` keeps the objects: the next build compiles only changes."""
    cache = cache or Cache.default()
    compiler = find_compiler()
    inputs = make_inputs(preset=preset.name, compiler=compiler.text, cpu=cpu_features(), patched=patched)
    wheel = cache.wheel(inputs.key)
    if wheel:
        return wheel
    with cache.lock("build"):
        return cache.wheel(inputs.key) or _build(
            cache, preset, compiler, inputs, patched=patched, keep_tree=keep_tree
        )


def _build(
    cache: Cache, preset: Preset, compiler: Compiler, inputs: Inputs, *, patched: bool, keep_tree: bool
) -> Path:
    check_disk(cache.root, cuda=preset.cuda)
    jobs = jobs_here()
    tree = cache.trees / f"{inputs.tree_key}{'' if patched else '-stock'}"
    tree.mkdir(parents=True, exist_ok=True)
    log = tree / "build.log"
    tools = build_tools(cache, log)
    step = Step(f"source of llama.cpp {UPSTREAM_COMMIT}")
    sdist = fetch_sdist(cache.sdist, tools / "bin/python", log)
    make_source(sdist, tree / "source", version=inputs.version, patched=patched)
    step.done()
    built = _run_hook(tree, tools, _settings(tree, preset), _environment(tools, compiler, jobs), preset)
    check_wheel(built, hook_symbols() if patched else set())
    wheel = cache.put(inputs.key, built)
    if not keep_tree:
        shutil.rmtree(tree)
    cache.prune()
    return wheel


def build_tools(cache: Cache, log: Path) -> Path:
    """A virtual environment with CMake, ninja and scikit-build-core, made once per lock file and Python."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    tools = cache.tools / f"{python}-{file_sha256(TOOLS_LOCK)[:20]}"
    if (tools / "complete").exists() and os.access(tools / "bin/python", os.X_OK):
        return tools
    step = Step("build tools")
    pip: Command = [tools / "bin/python", "-I", "-m", "pip", "install", "--no-deps"]
    commands: list[Command] = [
        [sys.executable, "-I", "-m", "venv", "--clear", tools],
        [*pip, "--require-hashes", "-r", TOOLS_LOCK],
    ]
    for command in commands:
        outcome = run(command)
        if not outcome.ok:
            step.failed()
            log.write_text(outcome.output)
            raise SetupError(f"cannot install CMake and ninja: is the package index reachable? Log: {log}")
    (tools / "complete").touch()
    step.done()
    return tools


def _settings(tree: Path, preset: Preset) -> dict[str, object]:
    """scikit-build-core's settings; what is compiled at all is decided in native/CMakeLists.txt."""
    defines = {
        "LLAMA_BUILD_NUMBER": "0",
        "LLAMA_BUILD_COMMIT": UPSTREAM_COMMIT,
        "GGML_NATIVE": "ON",
        **preset.defines,
    }
    return {
        "build-dir": str(tree / "objects"),
        "cmake.build-type": "Release",
        "build.verbose": "false",
        "wheel.py-api": "py3",
        "wheel.exclude": ["llama_cpp/server/**"],
        **{f"cmake.define.{name}": value for name, value in defines.items()},
    }


def _environment(tools: Path, compiler: Compiler, jobs: int) -> dict[str, str]:
    """The caller's, less what would steer the compilers behind the cache key's back."""
    kept = {name: value for name, value in os.environ.items() if not _STEERING.match(name)}
    return {
        **kept,
        "PATH": f"{tools / 'bin'}:{kept.get('PATH', os.defpath)}",
        "CC": compiler.c,
        "CXX": compiler.cxx,
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "GIT_DIR": "/nonexistent",  # upstream asks for a commit and would get that of a repository around it
    }


def _run_hook(
    tree: Path, tools: Path, settings: dict[str, object], environment: dict[str, str], preset: Preset
) -> Path:
    output = tree / "wheel"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    hook = Path(__file__).with_name("wheel_hook.py")
    command: Command = [tools / "bin/python", "-I", hook, output, json.dumps(settings)]
    step = Step(f"native library ({preset.name})")
    log = tree / "build.log"
    with log.open("w") as file:

        def on_line(line: str) -> None:
            file.write(line)
            if count := _NINJA.match(line):
                step.update(int(count.group(1)), int(count.group(2)), _file_of(line))

        outcome = run(command, on_line=on_line, cwd=tree / "source", env=environment)
    if not outcome.ok:
        step.failed()
        raise SetupError(f"the native library did not build: {reason_of(outcome.output)}; log: {log}")
    step.done()
    (wheel,) = output.glob("*.whl")
    return wheel


def _file_of(line: str) -> str:
    return line.rstrip().rpartition("/")[2].removesuffix(".o")


def reason_of(log: str) -> str:
    """What went wrong, from a build log: a known cause, else the first error it holds."""
    for sign, reason in _FAILURES:
        if sign in log:
            return reason
    errors = [
        line.strip() for line in log.splitlines() if re.search(r"\berror:|CMake Error", line, re.IGNORECASE)
    ]
    return errors[0] if errors else "no reason given"


def check_wheel(wheel: Path, symbols: set[str]) -> None:
    """Raises SetupError unless the wheel holds a library with these functions and only the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        astray = [name for name in names if not name.startswith(("llama_cpp/", "llama_cpp_python-"))]
        if astray:
            raise SetupError(f"{wheel.name} holds files outside its package: {astray[0]}")
        library = archive.read("llama_cpp/lib/libllama.so") if "llama_cpp/lib/libllama.so" in names else b""
    missing = sorted(name for name in symbols if f"\0{name}\0".encode() not in library)
    if missing or not library:
        raise SetupError(
            f"{wheel.name} lacks {missing[0] if missing else 'libllama.so'}: the patches are not in it"
        )
