"""The program in a real terminal: how it leaves one, and what it does when the terminal leaves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support import engine_pid, paths_in, rows, until

from app import exits
from app.terminal import HANGUP_EXIT

# Makes the pseudo terminal the session's own, as a shell in a window has it, then becomes s2chat.
_START = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "ignore" else signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "app.cli", *sys.argv[2:]])
"""


class Terminal:
    """`s2chat` on a pseudo terminal of 80×24 cells, run by `inside`; `seen` is all it wrote."""

    def __init__(self, home: Path, *words: str, hangup: str = "default", inside: Sequence[str] = ()) -> None:
        self.home = home
        self.seen = b""
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(follower)
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-c", _START, hangup, *words],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={**os.environ, "S2CHAT_HOME": str(home), "TERM": "xterm-256color"},
        )
        self._follower: int | None = follower
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self._leader, 65536):
                self.seen += piece

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def close(self) -> None:
        """What closing the window does."""
        if self._follower is not None:
            os.close(self._follower)
            self._follower = None
            os.close(self._leader)

    def current_modes(self) -> list[object]:
        assert self._follower is not None
        return termios.tcgetattr(self._follower)

    def unread(self) -> int:
        """Bytes of input that the next program would read."""
        assert self._follower is not None
        return struct.unpack("i", fcntl.ioctl(self._follower, termios.FIONREAD, b"\0" * 4))[0]

    def wait(self) -> int:
        """The exit code, the signal's number below zero."""
        return self.process.wait(60)

    @property
    def chat(self) -> psutil.Process:
        """The interface, which the process that was started waits for."""
        return psutil.Process(self.process.pid).children()[0]

    def end(self) -> None:
        self.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(home: Path) -> Iterator[Terminal]:
    opened = Terminal(home, "-n", "100000", "--temp", "0")
    yield opened
    opened.end()


def is_gone(pid: int | None) -> bool:
    if pid is None:
        return True
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answering(home: Path) -> bool:
    with contextlib.suppress(Exception):
        found = rows(paths_in(home), "SELECT length(content) FROM messages WHERE status = 'streaming'")
        return bool(found) and found[0][0] > 0
    return False


def ask(terminal: Terminal) -> None:
    until(lambda: b"ready" in terminal.seen)
    terminal.type("Tell me a long story.\r")
    until(lambda: answering(terminal.home))


def test_quitting_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    until(lambda: b"ready" in terminal.seen)
    assert terminal.current_modes() != terminal.modes
    terminal.type("\x11")
    assert terminal.wait() == exits.OK
    assert terminal.current_modes() == terminal.modes
    for sequence in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?2004l", b"\x1b[?1003l"):
        assert sequence in terminal.seen
    until(lambda: is_gone(engine_pid(paths_in(terminal.home))))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_is_an_orderly_end(terminal: Terminal, number: signal.Signals) -> None:
    ask(terminal)
    terminal.process.send_signal(number)
    assert terminal.wait() == exits.OK
    assert terminal.current_modes() == terminal.modes
    ((status, content),) = rows(
        paths_in(terminal.home), "SELECT status, content FROM messages WHERE role = 'assistant'"
    )
    assert status == "stopped"
    assert content
    until(lambda: is_gone(engine_pid(paths_in(terminal.home))))


@pytest.mark.parametrize("hangup", ["default", "ignore"])
def test_a_window_that_closes_ends_it_with_the_text_saved(home: Path, hangup: str) -> None:
    opened = Terminal(home, "-n", "100000", "--temp", "0", hangup=hangup)
    ask(opened)
    opened.type("unsent")
    until(lambda: rows(paths_in(home), "SELECT draft FROM conversations") == [("unsent",)])
    opened.close()
    assert opened.wait() == HANGUP_EXIT
    ((status, content),) = rows(
        paths_in(home), "SELECT status, content FROM messages WHERE role = 'assistant'"
    )
    assert status == "interrupted"
    assert content
    assert rows(paths_in(home), "SELECT draft, owner FROM conversations") == [("unsent", None)]
    until(lambda: is_gone(engine_pid(paths_in(home))))


@pytest.mark.parametrize("how", ["window", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("phase", ["load", "prefill"])
def test_an_engine_that_is_busy_leaves_with_the_chat(home: Path, phase: str, how: str) -> None:
    opened = Terminal(home, "-n", "100000", "--temp", "0")
    until(lambda: engine_pid(paths_in(home)) is not None)
    if phase == "prefill":
        until(lambda: b"ready" in opened.seen)
        opened.type("\x1b[200~" + "A river and its locks. " * 1000 + "\x1b[201~")
        until(lambda: rows(paths_in(home), "SELECT length(draft) FROM conversations") == [(23_000,)])
        opened.type("\r")
        until(lambda: b"reading the prompt" in opened.seen)
    engine = engine_pid(paths_in(home))
    chat = opened.chat
    if how == "window":
        opened.close()
    else:
        chat.send_signal(signal.Signals[how])
    opened.wait()
    until(lambda: is_gone(chat.pid) and is_gone(engine))
    if phase == "prefill":
        ((length,),) = rows(paths_in(home), "SELECT length(content) FROM messages WHERE role = 'user'")
        assert length == 23_000
    opened.end()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_chat_leaves_the_terminal_in_order_and_its_text(
    terminal: Terminal, number: signal.Signals
) -> None:
    ask(terminal)
    terminal.type("\x1b[<35;10;10M" * 50)  # the mouse moves meanwhile
    terminal.chat.send_signal(number)
    assert terminal.wait() == exits.SIGNALLED + number
    assert terminal.current_modes() == terminal.modes
    until(lambda: f"{number.name} ended the chat".encode() in terminal.seen)
    for sequence in (b"[?1049", b"[?1003", b"[?2004", b"[?1004"):
        assert terminal.seen.rindex(sequence + b"l") > terminal.seen.rindex(sequence + b"h")
    assert terminal.seen.rindex(b"[?25h") > terminal.seen.rindex(b"[?25l")
    assert terminal.seen.rindex(b"[<u") > terminal.seen.rindex(b"[>")
    assert terminal.unread() == 0
    until(lambda: is_gone(engine_pid(paths_in(terminal.home))))
    ((question,),) = rows(paths_in(terminal.home), "SELECT content FROM messages WHERE role = 'user'")
    assert question == "Tell me a long story."
    assert answering(terminal.home)  # as its next reader will find it; it becomes "interrupted" then


def test_a_chat_whose_keeper_is_killed_saves_and_leaves(terminal: Terminal) -> None:
    ask(terminal)
    chat = terminal.chat
    terminal.process.kill()
    assert terminal.wait() == -signal.SIGKILL
    until(lambda: is_gone(chat.pid))
    until(lambda: b"\x1b[?1049l" in terminal.seen)
    ((status, content),) = rows(
        paths_in(terminal.home), "SELECT status, content FROM messages WHERE role = 'assistant'"
    )
    assert status == "interrupted"
    assert content
    until(lambda: is_gone(engine_pid(paths_in(terminal.home))))


def test_a_stopped_chat_stops_its_keeper_and_both_go_on(terminal: Terminal) -> None:
    until(lambda: b"ready" in terminal.seen)
    keeper, chat = psutil.Process(terminal.process.pid), terminal.chat
    os.killpg(terminal.process.pid, signal.SIGTSTP)
    until(lambda: keeper.status() == psutil.STATUS_STOPPED)
    assert chat.status() == psutil.STATUS_STOPPED
    assert terminal.current_modes() == terminal.modes
    os.killpg(terminal.process.pid, signal.SIGCONT)
    until(lambda: terminal.current_modes() != terminal.modes)
    terminal.type("still here\x11")
    assert terminal.wait() == exits.OK
    assert rows(paths_in(terminal.home), "SELECT draft FROM conversations") == [("still here",)]


def test_a_paste_with_escapes_in_it_is_text_and_text_before_a_key_is_kept(terminal: Terminal) -> None:
    """In one read: a paste in which Textual would find Ctrl+Q, then typing, then Ctrl+Q itself."""
    until(lambda: b"ready" in terminal.seen)
    terminal.type("\x1b[200~one\x1b\x11two\x1b[A\r\n" + "x" * 5000 + "\x1b[201~")
    until(lambda: rows(paths_in(terminal.home), "SELECT length(draft) FROM conversations") == [(5007,)])
    terminal.type("typed\x11")
    assert terminal.wait() == exits.OK
    ((draft,),) = rows(paths_in(terminal.home), "SELECT draft FROM conversations")
    assert draft == "onetwo\n" + "x" * 5000 + "typed"


def test_the_prompt_is_there_before_the_engine(home: Path) -> None:
    opened = Terminal(home)
    until(lambda: b"Enter sends" in opened.seen)
    assert b"ready" not in opened.seen
    opened.type("\x11")
    assert opened.wait() == exits.OK
    opened.end()


def test_a_machine_without_any_network_answers(home: Path) -> None:
    cut_off = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-n"]
    if shutil.which("unshare") is None or subprocess.run([*cut_off, "true"], check=False).returncode:
        pytest.skip("no network namespaces here")
    opened = Terminal(home, "-n", "8", "--temp", "0", inside=cut_off)
    until(lambda: b"ready" in opened.seen)
    opened.type("Name a colour.\r")
    until(lambda: rows(paths_in(home), "SELECT status FROM messages WHERE role = 'assistant'") == [("done",)])
    assert b"\xe2\x96\xb2" not in opened.seen  # the sign of notices and problems
    opened.type("\x11")
    assert opened.wait() == exits.OK
    opened.end()
