"""Tries an installed s2chat as somebody does who has nothing else: no compiler, no network, an empty home."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from s2build.problem import SetupError

_PROMPT, _READY = (
    b"Enter sends",
    b"ready",
)  # what the chat shows when it takes text, and when the model is there


def without_network() -> tuple[str, ...]:
    """What a command is preceded by to have no network; nothing where the kernel does not allow that."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--net", "true"], capture_output=True).returncode:
        return ()
    return unshare, "--net"


@dataclass(frozen=True)
class Trial:
    """`program` is the installed command, `home` what is its user's, `runtime` where sockets lie.

    `before` is what every command is preceded by, `timeout_s` how long one may take.
    """

    program: Path
    home: Path
    runtime: Path
    before: tuple[str, ...] = field(default_factory=without_network)
    timeout_s: float = 120.0

    @property
    def environment(self) -> dict[str, str]:
        nothing = {"PATH": "/nonexistent", "LANG": "C.UTF-8", "TERM": "xterm-256color"}
        return {**nothing, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime)}

    @property
    def history(self) -> Path:
        return self.home / ".local/share/s2chat/history.sqlite3"

    def said(self, *words: str, **more: str) -> str:
        """What a command prints. Raises SetupError when it fails."""
        done = subprocess.run(
            [*self.before, self.program, *words],
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **more},
        )
        if done.returncode:
            raise SetupError(f"s2chat {' '.join(words)} failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    def answer(self, **more: str) -> str:
        """A short answer of the model that ships, and its speed, as a line."""
        words = ("run", "--json", "--temp", "0", "-n", "24", "-p", "Name three rivers.")
        try:
            found = json.loads(self.said(*words, **more))
        finally:
            self.said("stop")  # the engine, one that failed too, would stay some seconds and serve the next
        if not found["text"].strip():
            raise SetupError("the model that ships has nothing to say")
        return f"{found['timings']['predicted_per_second']:.0f} tok/s: {' '.join(found['text'].split())}"

    def chat(self, question: str = "") -> tuple[float, float]:
        """Opens a chat, asks a question if there is one, leaves. Seconds to the prompt and to the model."""
        with self._terminal() as (process, leader):
            began, seen = time.monotonic(), b""
            prompt = ready = 0.0
            while not (prompt and ready):
                if time.monotonic() - began > self.timeout_s:
                    raise SetupError(f"the chat does not open: {seen[-400:]!r}")
                seen += os.read(leader, 65536)
                prompt = prompt or (time.monotonic() - began if _PROMPT in seen else 0.0)
                ready = ready or (time.monotonic() - began if _READY in seen else 0.0)
            if question:
                os.write(leader, f"{question}\r".encode())
                time.sleep(3.0)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(OSError):  # the terminal is closed by the one who leaves last
                while os.read(leader, 65536):
                    pass
        return prompt, ready

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            [*self.before, self.program],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env=self.environment,
        )
        os.close(follower)
        try:
            yield process, leader
            process.wait(self.timeout_s)
        finally:
            process.kill()
            process.wait()
            os.close(leader)

    @contextlib.contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """`s2chat serve`, once it answers."""
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([self.program, "serve"], stdout=quiet, stderr=quiet, env=self.environment)
        try:
            began = time.monotonic()
            while not list(self.runtime.glob("s2chat/*.sock")):
                if time.monotonic() - began > self.timeout_s:
                    raise SetupError("s2chat serve does not answer")
                time.sleep(0.1)
            yield process
        finally:
            process.kill()
            process.wait()
