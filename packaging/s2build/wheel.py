"""Builds the native wheel, or takes it from the cache."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from s2build.cache import Cache
from s2build.children import Command
from s2build.console import Step
from s2build.cuda import Preset
from s2build.machine import Compiler, check_disk, cpu_features, find_compiler, jobs_here
from s2build.problem import SetupError
from s2build.recipe import UPSTREAM_COMMIT, Inputs, hook_symbols, make_inputs
from s2build.source import fetch_sdist, make_source
from s2build.tools import build_environment, build_tools, run_build

_LIBRARY = "llama_cpp/lib/libllama.so"
_CUDA_LIBRARY = "llama_cpp/lib/libggml-cuda.so"


def native_wheel(
    preset: Preset, *, patched: bool = True, keep_tree: bool = False, cache: Cache | None = None
) -> Path:
    """The wheel that `preset` describes. `keep_tree` keeps the objects for the next build."""
    cache = cache or Cache.default()
    compiler = find_compiler(preset.machine)
    cpu = preset.platform or cpu_features()
    inputs = make_inputs(preset=preset.name, compiler=compiler.text, cpu=cpu, patched=patched)
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
    jobs = jobs_here(cuda=preset.cuda)
    tree = cache.trees / f"{inputs.tree_key}{'' if patched else '-stock'}"
    tree.mkdir(parents=True, exist_ok=True)
    tools = build_tools(cache)
    with Step(f"source of llama.cpp {UPSTREAM_COMMIT}"):
        sdist = fetch_sdist(cache.sdist, tools)
        make_source(sdist, tree / "source", version=inputs.version, patched=patched, kernels=preset.kernels)
    environment = build_environment(tools, compiler, jobs)
    if preset.platform:
        environment["_PYTHON_HOST_PLATFORM"] = preset.platform
    built = _run_hook(tree, tools, _settings(tree, preset), environment, preset)
    check_wheel(built, hook_symbols() if patched else set(), cuda=preset.cuda)
    wheel = cache.put(inputs.key, built)
    if not keep_tree:
        shutil.rmtree(tree)
    cache.prune()
    return wheel


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


def _run_hook(
    tree: Path, tools: Path, settings: dict[str, object], environment: dict[str, str], preset: Preset
) -> Path:
    output = tree / "wheel"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    hook = Path(__file__).with_name("wheel_hook.py")
    command: Command = [tools / "bin/python", "-I", hook, output, json.dumps(settings)]
    run_build(command, f"native library ({preset.name})", tree / "build.log", tree / "source", environment)
    (wheel,) = output.glob("*.whl")
    return wheel


def check_wheel(wheel: Path, symbols: set[str], *, cuda: bool = False) -> None:
    """Raises SetupError unless the wheel holds the libraries with these functions and only the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        astray = [name for name in names if not name.startswith(("llama_cpp/", "llama_cpp_python-"))]
        if astray:
            raise SetupError(f"{wheel.name} holds files outside its package: {astray[0]}")
        for library in (_LIBRARY, *((_CUDA_LIBRARY,) if cuda else ())):
            if library not in names:
                raise SetupError(f"{wheel.name} lacks {library}")
        strings = archive.read(_LIBRARY)
    missing = sorted(name for name in symbols if f"\0{name}\0".encode() not in strings)
    if missing:
        raise SetupError(f"{wheel.name} lacks {missing[0]}: the patches are not in it")
