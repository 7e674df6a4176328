"""Starting an engine, sharing it, and its end when nobody needs it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import is_gone, make_paths, until

from engine.death import LOG_START
from engine.errors import EngineUnavailable
from engine.launcher import Handle, ensure_engine, find_engine
from engine.paths import EMBEDDED_MODEL, Paths
from engine.probe import call

STARTER = """
import json, sys, time
from pathlib import Path
from engine.launcher import ensure_engine
from engine.paths import Paths
run, state, then = sys.argv[1:]
handle = ensure_engine(Paths(Path(run), Path(state), Path(state)))
print(json.dumps([handle.hello.pid, handle.process is not None]), flush=True)
if then == "stay":
    time.sleep(600)
"""


def starter(paths: Paths, then: str) -> subprocess.Popen[bytes]:
    """Another program that uses the engine of `paths`."""
    arguments = [sys.executable, "-I", "-c", STARTER, str(paths.runtime), str(paths.state), then]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE)


def answer(program: subprocess.Popen[bytes]) -> tuple[int, bool]:
    assert program.stdout is not None
    pid, started = json.loads(program.stdout.readline())
    return pid, started


def end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.communicate()


def test_an_engine_is_started_once_and_found_again(paths: Paths) -> None:
    assert find_engine(paths) is None
    first, second = ensure_engine(paths), ensure_engine(paths)
    assert first.process is not None
    assert second.process is None
    assert first.hello == second.hello
    found = find_engine(paths)
    assert found is not None
    assert found.hello.pid == first.process.pid
    assert stat.S_IMODE(paths.log.stat().st_mode) == 0o600


def test_programs_that_start_at_the_same_moment_share_one_engine(paths: Paths) -> None:
    programs = [starter(paths, "stay") for _ in range(4)]
    answers = [answer(program) for program in programs]
    for program in programs:
        end(program)
    assert len({pid for pid, _ in answers}) == 1
    assert sum(started for _, started in answers) == 1


def test_threads_of_one_program_share_one_engine(paths: Paths) -> None:
    handles: list[Handle] = []
    threads = [threading.Thread(target=lambda: handles.append(ensure_engine(paths))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({handle.hello.instance for handle in handles}) == 1


def test_after_a_kill_the_next_program_gets_a_new_engine(paths: Paths) -> None:
    first = ensure_engine(paths)
    os.kill(first.hello.pid, signal.SIGKILL)
    second = ensure_engine(paths)
    assert second.hello.instance != first.hello.instance


def test_an_engine_that_is_leaving_is_waited_for(paths: Paths) -> None:
    first = ensure_engine(paths)
    call(first.socket, "POST", "/shutdown")
    second = ensure_engine(paths)
    assert second.hello.instance != first.hello.instance
    assert second.process is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_in_good_order(engine: Handle, number: signal.Signals) -> None:
    assert engine.process is not None
    engine.process.send_signal(number)
    assert engine.process.wait(10) == 0
    assert not engine.socket.exists()
    death = engine.death()
    assert death is not None
    assert death.expected


def test_an_engine_nobody_attached_to_leaves_when_its_starter_is_killed(paths: Paths) -> None:
    program = starter(paths, "stay")
    pid, started = answer(program)
    assert started
    began = time.monotonic()
    end(program)
    until(lambda: is_gone(pid))
    assert time.monotonic() - began < 6  # not the ten seconds a starter is given
    assert not paths.socket.exists()


def test_a_starter_killed_before_it_could_connect_leaves_no_engine(paths: Paths) -> None:
    program = starter(paths, "stay")
    until(lambda: paths.lock.exists() and paths.lock.read_text() != "")
    pid = int(paths.lock.read_text())
    end(program)
    until(lambda: is_gone(pid))


def test_an_engine_whose_client_is_killed_while_it_loads_leaves(paths: Paths) -> None:
    program = starter(paths, "stay")
    pid, _ = answer(program)
    call(paths.socket, "POST", "/load", {"model": str(EMBEDDED_MODEL)})
    end(program)
    until(lambda: is_gone(pid))


def test_a_service_without_its_socket_leaves(engine: Handle) -> None:
    assert engine.process is not None
    engine.socket.unlink()
    assert engine.process.wait(20) == 0


def test_a_log_that_cannot_be_written_does_not_matter(paths: Paths) -> None:
    paths.state.parent.mkdir(exist_ok=True)
    paths.state.touch()  # a file where the folder should be
    assert ensure_engine(paths).process is not None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_log_does_not_matter(paths: Paths) -> None:
    paths.state.mkdir()
    paths.log.symlink_to("/dev/full")
    handle = ensure_engine(paths, service=True)
    assert call(handle.socket, "POST", "/load", {"model": "/no/such/file"}) == {"state": "loading"}
    until(lambda: call(handle.socket, "GET", "/health")["status"] == "error")


def test_a_long_log_is_emptied_at_start(paths: Paths) -> None:
    paths.state.mkdir()
    paths.log.write_bytes(b"x\n" * (1 << 20))
    handle = ensure_engine(paths)
    until(lambda: handle.hello.instance in paths.log.read_text())
    assert paths.log.stat().st_size < 1000


def test_a_folder_that_cannot_be_used_is_named(paths: Paths) -> None:
    paths.runtime.parent.mkdir(exist_ok=True)
    paths.runtime.touch()
    with pytest.raises(EngineUnavailable, match=str(paths.runtime)):
        ensure_engine(paths)


@pytest.mark.parametrize("root", [Path("/proc/none"), Path("/dev/null/home"), Path("/tmp") / ("x" * 300)])
def test_a_home_that_cannot_be_used_is_named_though_there_is_no_log(root: Path) -> None:
    with pytest.raises(EngineUnavailable, match=f"{root}.* cannot be used|cannot be used.*{root}") as caught:
        ensure_engine(make_paths(root))
    assert len(caught.value.message.splitlines()) == 1


def test_an_engine_told_to_stop_is_no_crash_though_more_was_logged(paths: Paths) -> None:
    ensure_engine(paths)
    theirs = find_engine(paths)
    assert theirs is not None
    call(paths.socket, "POST", "/shutdown")
    until(lambda: not paths.socket.exists())
    with open(paths.log, "a") as log:
        log.write("noise\n" * 9 + f"{LOG_START} another\nits own words\n")
    death = theirs.death()
    assert death is not None
    assert death.expected
    assert "its own words" not in death.log_lines


def test_an_engine_that_hangs_is_named_with_its_process(engine: Handle) -> None:
    assert engine.process is not None
    engine.process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineUnavailable) as caught:
        ensure_engine(engine.paths, timeout_s=3)
    assert str(engine.process.pid) in caught.value.hint


def test_those_who_did_not_start_it_hear_what_the_log_tells(paths: Paths) -> None:
    mine = ensure_engine(paths)
    theirs = find_engine(paths)
    assert theirs is not None
    assert theirs.death() is None
    os.kill(mine.hello.pid, signal.SIGSEGV)
    until(lambda: is_gone(mine.hello.pid))
    death = theirs.death()
    assert death is not None
    assert "SIGSEGV" in death.cause


def test_the_client_is_imported_quickly_and_lightly() -> None:
    check = (
        "import sys, engine.client, engine.supervisor; print([m for m in sys.modules if m in sys.argv[1:]])"
    )
    heavy = ["starlette", "uvicorn", "numpy", "llama_cpp", "textual", "engine.session", "engine.native"]
    run = subprocess.run([sys.executable, "-I", "-c", check, *heavy], stdout=subprocess.PIPE, check=True)
    assert run.stdout == b"[]\n"
