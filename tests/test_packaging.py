"""What is given to others: kernels for their processors, nothing that may not be passed on, a clean removal.

The rest is `packaging/check`: it builds everything, which takes minutes.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from s2build import emulation, locked
from s2build.artifact import check_wheels, forbid
from s2build.deb import make_deb
from s2build.emulation import PROCESSORS, Emulated
from s2build.kernels import AARCH64, X86_64, Kernels, portable_preset
from s2build.machine import find_compiler
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY, UPSTREAM_COMMIT, UPSTREAM_VERSION
from s2build.wheelhouse import PYTHONS, s2chat_version

from app.cli import main
from engine import kernels
from engine.errors import NativeError
from engine.kernels import KERNELS_ENV, OLDEST, NativeBuild
from engine.machine.cpu import all_features
from engine.model import files_of
from engine.paths import EMBEDDED_MODEL

_DEB = REPOSITORY / "packaging/deb"
_AVX2 = "sse4_2 avx2 fma f16c bmi1 bmi2 abm movbe"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


def build_of(table: tuple[Kernels, ...]) -> NativeBuild:
    return NativeBuild(Path("/lib"), "commit", {row.name: frozenset(row.features) for row in table})


@pytest.mark.parametrize(
    ("table", "features", "chosen"),
    [
        (X86_64, f"{_AVX512} avx512_vnni avx512vbmi avx_vnni", "avx512"),  # Zen 5
        (X86_64, f"{_AVX512} avx512_vnni", "avx512"),  # Cascade Lake
        (X86_64, _AVX512, "avx2"),  # Skylake-X
        (X86_64, f"{_AVX2} avx_vnni", "avx2-vnni"),  # Alder Lake
        (X86_64, _AVX2, "avx2"),
        (X86_64, "sse4_2 avx", OLDEST),
        (X86_64, "", OLDEST),  # /proc cannot be read
        (AARCH64, "fp asimd fphp asimdhp asimddp i8mm sve", "i8mm"),
        (AARCH64, "fp asimd fphp asimdhp asimddp", "dotprod"),
        (AARCH64, "fp asimd", OLDEST),
    ],
)
def test_the_best_kernels_a_processor_can_run(table: tuple[Kernels, ...], features: str, chosen: str) -> None:
    assert build_of(table).choose(set(features.split())) == chosen


def test_kernels_may_be_named_but_only_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    build, features = build_of(X86_64), set(_AVX2.split())
    monkeypatch.setenv(KERNELS_ENV, OLDEST)
    assert build.choose(features) == OLDEST
    for name in ("avx512", "neon", ""):
        monkeypatch.setenv(KERNELS_ENV, name)
        with pytest.raises(NativeError, match="no such kernels run here"):
            build.choose(features)


def test_a_build_for_this_machine_has_one_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert kernels.native_build().backend == tmp_path / "libggml-cpu.so"
    (tmp_path / "s2-build.json").write_text("{")
    with pytest.raises(NativeError, match="cannot be used"):
        kernels.native_build()
    (tmp_path / "s2-build.json").write_text('{"llama.cpp": "c0ffee", "kernels": {"all": []}}')
    assert kernels.native_build().backend == tmp_path / "kernels/all/libggml-cpu.so"


def test_a_portable_build_starts_from_the_oldest_processor() -> None:
    preset = portable_preset("x86_64")
    assert [name for name, value in preset.defines.items() if value == "ON"] == ["GGML_SSE42"]
    assert preset.platform == "manylinux_2_35_x86_64"
    with pytest.raises(SetupError, match="riscv64"):
        portable_preset("riscv64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_build_for_another_architecture_is_a_cross_build(
    machine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for here in ("x86_64", "aarch64"):
        monkeypatch.setattr(platform, "machine", lambda here=here: here)
        defines = portable_preset(machine).defines
        assert defines.get("CMAKE_SYSTEM_PROCESSOR") == (None if machine == here else machine)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "g++")  # names one for this machine
    with pytest.raises(SetupError, match=rf"install g\+\+-{machine.replace('_', '-')}-linux-gnu"):
        find_compiler(machine)


def test_there_is_a_processor_to_emulate_for_each_of_the_kernels() -> None:
    for row in AARCH64:
        assert set(row.features) == set(PROCESSORS["aarch64"][row.name].features)


def test_the_engine_takes_an_emulated_processor_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "find_emulator", lambda machine: f"/usr/bin/qemu-{machine}")
    for name, processor in PROCESSORS["aarch64"].items():
        entered = Emulated("aarch64", tmp_path).entered(processor)
        assert entered[-1] == processor.model
        (tmp_path / "proc").mkdir(exist_ok=True)
        shutil.copy(entered[-2], tmp_path / "proc/cpuinfo")
        assert build_of(AARCH64).choose(all_features(tmp_path)) == name


@pytest.mark.parametrize(
    "name",
    ["jetson_stats-7.2.2.whl", "jtop/core.py", "libcudart.so.12", "lib/libggml-cuda.so", "libcuda.so.1"],
)
def test_what_may_not_be_passed_on(name: str) -> None:
    forbid(Path("x.whl"), ["engine/machine/jetson.py", "engine/machine/programs/ask_jtop.py", "libgomp.so.1"])
    with pytest.raises(SetupError, match="may not be passed on"):
        forbid(Path("x.whl"), [name])


def test_a_wheel_without_a_notice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "stranger-1-py3-none-any.whl", "w") as archive:
        archive.writestr("stranger.py", "")
    with pytest.raises(SetupError, match="stranger is not among the notices"):
        check_wheels(tmp_path, platform.machine())


def test_the_notices_name_the_versions_that_are_built() -> None:
    notices = (REPOSITORY / "packaging/THIRD_PARTY.md").read_text()
    assert f"llama-cpp-python {UPSTREAM_VERSION}," in notices
    assert f"commit {UPSTREAM_COMMIT}" in notices


def test_the_licence_file_names_every_file_of_the_model() -> None:
    lines = (_DEB / "copyright").read_text().splitlines()
    patterns = [line.removeprefix("Files: ") for line in lines if line.startswith("Files: assets/")]
    for file in files_of(EMBEDDED_MODEL):
        assert any(file.relative_to(REPOSITORY).match(pattern) for pattern in patterns), file


def test_a_lock_reads_as_the_other_python_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "x.lock"
    entries = {
        "always==1": "",
        "old==1": " ; python_full_version < '3.11'",
        "windows==1": " ; sys_platform == 'win32'",
    }
    lock.write_text(
        "# Written.\n" + "".join(f"{pin}{when} \\\n    --hash=sha256:ab\n" for pin, when in entries.items())
    )
    pins = {}
    for python in PYTHONS:
        locked.main(str(lock), python, "x86_64")
        pins[python] = [line for line in capsys.readouterr().out.splitlines() if "==" in line]
    assert pins["3.10"] == ["always==1 \\", "old==1 \\"]
    assert pins["3.11"] == pins["3.13"] == ["always==1 \\"]


def test_the_manual_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    manual = (_DEB / "s2chat.1").read_text()
    assert commands
    for command in commands:
        assert command in manual


@pytest.fixture
def deb(tmp_path: Path) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/one.whl").write_text("one")
    own_wheel(tmp_path / "wheels/s2chat-1-py3-none-any.whl")
    return make_deb(tmp_path / "wheels", tmp_path, "x86_64")


def own_wheel(wheel: Path) -> None:
    """Ours in small: code, a model of two files, the list of all."""
    files = {"app/cli.py": "code", "assets/m-1.gguf": "first", "assets/m-2.gguf": "second"}
    record = "s2chat-1.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},sha256=x,1\n" for name in (*files, record)))


def test_a_package_holds_the_model_once(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", deb, tmp_path / "root"], check=True)
    models = tmp_path / "root/usr/share/s2chat"
    assert {path.name: path.read_text() for path in models.iterdir()} == {
        "m-1.gguf": "first",
        "m-2.gguf": "second",
    }
    with zipfile.ZipFile(tmp_path / "root/usr/lib/s2chat/wheels/s2chat-1-py3-none-any.whl") as archive:
        assert archive.namelist() == ["app/cli.py", "s2chat-1.dist-info/RECORD"]
        record = archive.read("s2chat-1.dist-info/RECORD").decode()
    assert record == "app/cli.py,sha256=x,1\ns2chat-1.dist-info/RECORD,sha256=x,1\n"
    with zipfile.ZipFile(tmp_path / "wheels/s2chat-1-py3-none-any.whl") as archive:
        assert "assets/m-1.gguf" in archive.namelist()  # the wheelhouse keeps its own


def test_a_wheel_without_its_model_is_not_packaged(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "s2chat-1-py3-none-any.whl", "w") as archive:
        archive.writestr("app/cli.py", "code")
    with pytest.raises(SetupError, match="holds no model"):
        make_deb(wheels, tmp_path, "x86_64")


def test_the_package_says_what_it_needs_and_who_owns_it(deb: Path) -> None:
    control = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True).stdout
    assert f"Version: {s2chat_version()}\n" in control
    assert "python3 (>= 3.10), python3 (<< 3.14), libc6 (>= 2.35)" in control
    assert "@" not in control.replace("s2chat@localhost", "")
    listed = subprocess.run(
        ["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    for name in (
        "usr/lib/s2chat/wheels/one.whl",
        "man1/s2chat.1.gz",
        "user/s2chat.service",
        "doc/s2chat/copyright",
    ):
        assert name in listed
    assert "usr/bin/s2chat -> ../lib/s2chat/venv/bin/s2chat" in listed


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """One that ends when it is asked to, one that has to be killed, and a stranger's."""
    programs = f"{tmp_path}/usr/lib/s2chat/venv/bin"
    polite = "import time; print(flush=True); time.sleep(60)"
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {polite}"
    started = {
        name: subprocess.Popen([argv0, "-c", code, *words], executable=sys.executable, stdout=subprocess.PIPE)
        for name, argv0, code, words in (
            ("polite", f"{programs}/python", polite, []),
            ("deaf", f"{programs}/python3", deaf, []),
            ("stranger", sys.executable, polite, [f"{programs}/python"]),
        )
    }
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
    yield started
    for process in started.values():
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_removal_ends_what_runs_from_it_and_nothing_else(
    processes: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    began = time.monotonic()
    environment = {**os.environ, "DPKG_ROOT": str(tmp_path)}
    # The ended are ours to bury, so prerm sees them until its patience ends.
    subprocess.run(["sh", _DEB / "prerm", "remove"], check=True, env=environment, timeout=60)
    assert processes["polite"].wait(10) == -signal.SIGTERM
    assert processes["deaf"].wait(10) == -signal.SIGKILL
    assert processes["stranger"].poll() is None
    assert time.monotonic() - began < 30


def test_purging_keeps_what_people_made(tmp_path: Path) -> None:
    theirs = tmp_path / "home/me/.local/share/s2chat/engine.lock"
    lock = "s2chat/engine.lock"
    ours = [
        tmp_path / name
        for name in ("usr/lib/s2chat/venv/x", f"run/user/1000/{lock}", f"tmp/runtime-0/{lock}")
    ]
    for path in (theirs, *ours):
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / "tmp/runtime-1").symlink_to(theirs.parents[1])  # somebody's trap
    for word in ("upgrade", "remove", "purge"):
        subprocess.run(
            ["sh", _DEB / "postrm", word],
            check=True,
            env={**os.environ, "DPKG_ROOT": str(tmp_path)},
            timeout=60,
        )
        assert [path.exists() for path in (theirs, *ours)] == [True, *[word == "upgrade"] * 3]
