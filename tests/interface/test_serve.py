"""`s2chat serve` as a person starts it: it says where, outlives its engine, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support import SECONDS, end_engine, engine_pid, paths_in, until
from toys import write_llama


@contextmanager
def serving(home: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    model = write_llama(home / "toy.gguf")
    words = [sys.executable, "-m", "app.cli", "serve", "-m", str(model), "-t", "1", *flags]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "S2CHAT_HOME": str(home)}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        end_engine(paths_in(home))


def line(process: subprocess.Popen[str], name: str) -> str:
    """What it says under `name`."""
    assert process.stdout is not None
    while text := process.stdout.readline():
        if text.startswith(name):
            return text.removeprefix(name).strip()
    raise AssertionError(f"it never said its {name}")


def asked(url: str, token: str) -> int:
    body = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_port_survives_a_crash_and_ends_with_the_command(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as process:
        url, file = line(process, "port"), line(process, "token")
        token = Path(file).read_text().strip()
        line(process, "socket")
        assert asked(url, token) == 200
        assert asked(url, "wrong") == 401
        first = engine_pid(paths_in(tmp_path))
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert line(process, "port") == url
        line(process, "socket")
        assert asked(url, token) == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        until(lambda: asked(url, token) == 0)
        second = engine_pid(paths_in(tmp_path))
        assert second not in (None, first)
        until(lambda: is_gone(second or 0))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("flags", "code"),
    [(("--origin", "http://x"), 2), (("--port", "70000"), 2), (("--port", "0", "--origin", "*"), 2)],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, flags: tuple[str, ...], code: int) -> None:
    with serving(tmp_path, *flags) as process:
        assert process.wait(SECONDS) == code
