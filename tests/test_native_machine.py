"""What the set-up makes of a machine, from text recorded on such machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from s2build.cuda import (
    ARCHS_ENV,
    CPU,
    Gpu,
    Toolkit,
    choose_preset,
    find_gpu,
    gpu_present,
    parse_compute_caps,
    parse_nvcc_release,
)
from s2build.machine import (
    Compiler,
    checked,
    find_compiler,
    parallel_jobs,
    parse_available_bytes,
    parse_cpu_features,
)
from s2build.problem import SetupError

NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2024 NVIDIA Corporation
Built on Wed_Aug_14_10:14:07_PDT_2024
Cuda compilation tools, release 12.6, V12.6.68
Build cuda_12.6.r12.6/compiler.34714021_0
"""
X86 = """processor\t: 0
model name\t: AMD EPYC
cpu MHz\t\t: 2596.120
flags\t\t: fpu sse2 avx2 avx512f

processor\t: 1
model name\t: AMD EPYC
cpu MHz\t\t: 1900.001
flags\t\t: fpu sse2 avx2 avx512f
"""
ORIN = """processor\t: 0
BogoMIPS\t: 62.50
Features\t: fp asimd fphp asimddp
CPU implementer\t: 0x41
CPU part\t: 0xd42
"""
GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("8.9\n", "89"),
        ("9.0\n9.0\n", "90"),
        ("12.0\n8.6\n", "86;120"),
        ("11.0\n", "110"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""),
        ("", ""),
    ],
)
def test_architectures_of_a_desktop(text: str, archs: str) -> None:
    assert parse_compute_caps(text) == archs


@pytest.mark.parametrize(
    ("model", "archs"),
    [
        ("NVIDIA Jetson AGX Orin Developer Kit\0", "87"),
        ("NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0", "87"),
        ("NVIDIA Jetson AGX Thor Developer Kit\0", "110"),
    ],
)
def test_a_jetson_is_known_by_its_model(tmp_path: Path, model: str, archs: str) -> None:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_text(model)
    assert find_gpu(tmp_path) == Gpu(archs, jetson=True)
    assert gpu_present(tmp_path)


def test_an_unknown_jetson_is_a_gpu_that_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text("# R36 (release), REVISION: 4.0\n")
    assert find_gpu(tmp_path) == Gpu("", jetson=True)


def test_other_arm_boards_and_machines_without_a_device_have_no_gpu(tmp_path: Path) -> None:
    assert find_gpu(tmp_path) is None
    assert not gpu_present(tmp_path)
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_text("Raspberry Pi 5 Model B Rev 1.0\0")
    assert find_gpu(tmp_path) is None
    assert not gpu_present(tmp_path)


def test_release_of_nvcc() -> None:
    assert parse_nvcc_release(NVCC) == "12.6"
    assert parse_nvcc_release("") == ""


def test_a_gpu_with_a_toolkit_is_used_unless_the_person_says_no() -> None:
    gpu, toolkit = Gpu("87", jetson=True), Toolkit("/usr/local/cuda/bin/nvcc", "12.6")
    preset, notice = choose_preset(gpu, toolkit, cpu_only=False)
    assert preset.cuda
    assert preset.defines["CMAKE_CUDA_ARCHITECTURES"] == "87"
    assert "12.6" in preset.name
    assert not notice
    assert choose_preset(gpu, toolkit, cpu_only=True) == (CPU, "")
    assert choose_preset(None, toolkit, cpu_only=False) == (CPU, "")


def test_a_gpu_that_does_not_tell_is_asked_by_cmake() -> None:
    preset, _ = choose_preset(Gpu("", jetson=False), Toolkit("nvcc", "13.0"), cpu_only=False)
    assert preset.defines["CMAKE_CUDA_ARCHITECTURES"] == "native"


def test_a_gpu_may_be_named_where_none_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHS_ENV, "87")
    assert gpu_present(tmp_path)
    preset, notice = choose_preset(find_gpu(tmp_path), Toolkit("nvcc", "12.6"), cpu_only=False)
    assert preset.defines["CMAKE_CUDA_ARCHITECTURES"] == "87"
    assert not notice


@pytest.mark.parametrize(("jetson", "package"), [(True, "cuda-toolkit-12-6"), (False, "nvidia-cuda-toolkit")])
def test_a_gpu_without_a_toolkit_is_said_to_be_lost(jetson: bool, package: str) -> None:
    preset, notice = choose_preset(Gpu("87", jetson), None, cpu_only=False)
    assert preset is CPU
    assert "CPU" in notice
    assert package in notice
    assert "\n" not in notice


def test_processor_features_ignore_what_changes_from_minute_to_minute() -> None:
    assert parse_cpu_features(X86) == "avx2 avx512f fpu sse2"
    assert "CPU part=0xd42" in parse_cpu_features(ORIN)
    assert parse_cpu_features(ORIN) != parse_cpu_features(ORIN.replace("asimddp", ""))


@pytest.mark.parametrize(
    ("text", "family", "major"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "gcc", 12),
        ("c++ (Ubuntu 9.4.0-1ubuntu1~20.04.2) 9.4.0", "gcc", 9),
        ("g++ (GCC) 15.1.1 20250521 (Red Hat 15.1.1-2)", "gcc", 15),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", "clang", 14),
        ("something else", "gcc", 0),
    ],
)
def test_version_of_a_compiler(text: str, family: str, major: int) -> None:
    compiler = Compiler("cc", "c++", text)
    assert (compiler.family, compiler.major) == (family, major)
    assert checked(compiler) is compiler


def test_an_old_compiler_is_refused_in_one_line() -> None:
    with pytest.raises(SetupError, match=r"gcc 7, 9 or newer .*apt install") as refusal:
        checked(Compiler("cc", "c++", "g++ (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0"))
    assert "\n" not in str(refusal.value)


def test_a_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SetupError, match=r"apt install g\+\+"):
        find_compiler()


def test_jobs_fit_processors_and_memory() -> None:
    assert parallel_jobs(8, 64 * GIB) == 8
    assert parallel_jobs(8, 3 * GIB) == 3
    assert parallel_jobs(8, 7 * GIB, cuda=True) == 3
    with pytest.raises(SetupError, match="free memory"):
        parallel_jobs(8, GIB // 2)
    assert parse_available_bytes("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2 << 20
