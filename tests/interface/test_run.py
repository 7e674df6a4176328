"""One-shot runs against the real engine."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import paths_in, until
from toys import link_embedded

from app import exits
from engine.client import EngineClient
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL

#: Whatever the model is, the likeliest text behind this goes on and on.
LONG = ("--raw", "-p", " ".join(["one, two, three,"] * 20), "-n", "100000", "--temp", "0")


def start(home: Path, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    """Unbuffered: `communicate` would miss what a `read` before it took from the pipe beyond its count."""
    options: dict[str, Any] = {
        "bufsize": 0,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": {**os.environ, "S2CHAT_HOME": str(home)},
    }
    return subprocess.Popen([sys.executable, "-m", "app.cli", "run", *words], **{**options, **more})


def run(home: Path, *words: str, stdin: bytes = b"", **more: Any) -> tuple[int, str, str]:
    process = start(home, *words, stdin=subprocess.PIPE, **more)
    out, err = process.communicate(stdin, timeout=120)
    return process.returncode, out.decode(), err.decode()


def result(home: Path, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    code, out, err = run(home, "--json", "--temp", "0", *words, stdin=stdin)
    assert (code, err) == (exits.OK, "")
    value: dict[str, Any] = json.loads(out)
    return value


def is_idle(home: Path) -> bool:
    """Nobody's request is running: the engine's own word on it."""

    async def look() -> int:
        async with EngineClient(paths_in(home).socket) as client:
            stream = client.telemetry()
            snapshot = await anext(aiter(stream))
            await stream.aclose()
            return snapshot.running + snapshot.queued

    return asyncio.run(look()) == 0


def test_text_and_json_say_the_same(served: Path) -> None:
    code, out, err = run(served, "-p", "Name a colour.", "-n", "16", "--temp", "0")
    assert (code, err) == (exits.OK, "")
    value = result(served, "-p", "Name a colour.", "-n", "16")
    assert out == value["text"] + "\n"
    assert len(value["token_ids"]) == value["timings"]["predicted_n"]
    assert value["timings"]["predicted_per_second"] > 0
    assert set(value["timings"]) >= {
        "prompt_n",
        "cache_n",
        "prompt_per_second",
        "draft_n",
        "draft_n_accepted",
    }
    assert (value["mode"], value["exact"]) == ("auto", True)


def test_modes_agree_and_say_who_they_are(served: Path) -> None:
    words = ("-p", "Tell me a story about the sea.", "-n", "64")
    plain = result(served, *words, "--mode", "ar")
    drafted = result(served, *words, "--mode", "s2-exact", "--draft-experts", "2", "--draft-length", "4")
    assert drafted["token_ids"] == plain["token_ids"]
    assert (plain["mode"], drafted["mode"]) == ("ar", "s2-exact")
    assert plain["timings"]["draft_n"] == 0
    assert 0 < drafted["timings"]["draft_n_accepted"] <= drafted["timings"]["draft_n"]


def test_why_it_ended(served: Path) -> None:
    cut = result(served, "-p", "Tell me a story about the sea.", "-n", "5")
    assert (cut["finish"], cut["finish_reason"], len(cut["token_ids"])) == ("max_tokens", "length", 5)
    whole = result(served, "-p", "Tell me a story.", "-n", "64")["text"]
    word = whole.split()[5]
    stopped = result(served, "-p", "Tell me a story.", "-n", "64", "--stop", word)
    assert (stopped["finish"], stopped["finish_reason"]) == ("stop_string", "stop")
    assert stopped["text"] == whole[: whole.index(word)]


def test_the_prompt_may_be_piped(served: Path) -> None:
    piped = result(served, "-n", "8", stdin=b"Name a colour.")
    assert piped["text"] == result(served, "-n", "8", "-p", "Name a colour.")["text"]
    both = result(served, "-n", "8", "-p", "Repeat:", stdin="één 猫".encode())
    assert both["text"] == result(served, "-n", "8", "-p", "Repeat:\néén 猫")["text"]


def test_a_seed_makes_it_repeatable(served: Path) -> None:
    words = ("-p", "Tell me a story.", "-n", "24", "-s", "7", "--temp", "1.2")
    assert run(served, *words) == run(served, *words)


def test_raw_continues_the_prompt_as_it_is(served: Path) -> None:
    raw = result(served, "--raw", "-p", "The capital of France is", "-n", "8")
    chat = result(served, "-p", "The capital of France is", "-n", "8")
    assert (
        raw["timings"]["prompt_n"] + raw["timings"]["cache_n"]
        < chat["timings"]["prompt_n"] + chat["timings"]["cache_n"]
    )


def test_a_system_prompt_is_told(served: Path) -> None:
    with_system = result(served, "-p", "Hi", "-n", "4", "-sys", "You are a pirate who speaks of ships.")
    without = result(served, "-p", "Hi", "-n", "4")
    told = [item["timings"]["prompt_n"] + item["timings"]["cache_n"] for item in (with_system, without)]
    assert told[0] != told[1]


@pytest.mark.parametrize("stdin", [b"", b" \n\t"])
def test_no_prompt_is_a_usage_error(served: Path, stdin: bytes) -> None:
    code, out, err = run(served, stdin=stdin)
    assert (code, out) == (exits.USAGE, "")
    assert "hint: " in err


@pytest.mark.parametrize(
    "words", [("--temp", "-1"), ("--top-p", "2"), ("--draft-length", "99"), ("--draft-experts", "99")]
)
def test_a_value_that_makes_no_sense(served: Path, words: tuple[str, str]) -> None:
    code, out, err = run(served, "-p", "x", *words, "--mode", "s2-exact")
    assert (code, out) == (exits.USAGE, "")
    assert words[1] in err


def test_a_prompt_longer_than_the_context(home: Path) -> None:
    code, out, err = run(home, "-c", "256", "-n", "4", stdin=b"word " * 2000)
    assert (code, out) == (exits.ERROR, "")
    assert "256" in err


@pytest.mark.parametrize("content", [None, b"GGUF", b"no model"])
def test_a_model_that_cannot_be_loaded(home: Path, tmp_path: Path, content: bytes | None) -> None:
    model = tmp_path / "model [b].gguf"
    if content is not None:
        model.write_bytes(content)
    code, out, err = run(home, "-m", str(model), "-p", "x")
    assert (code, out) == (exits.MODEL, "")
    assert "model [b].gguf" in err
    assert "Traceback" not in err


def test_another_model_than_others_use_is_refused(served: Path, tmp_path: Path) -> None:
    other = link_embedded(tmp_path)
    busy = start(served, *LONG)
    assert busy.stdout is not None
    assert busy.stdout.read(1)
    code, out, err = run(served, "-m", str(other), "-p", "x")
    assert (code, out) == (exits.ENGINE, "")
    assert "hint: " in err
    busy.send_signal(signal.SIGINT)
    busy.communicate(timeout=60)


def test_ctrl_c_keeps_what_was_printed_and_frees_the_engine(served: Path) -> None:
    process = start(served, *LONG)
    assert process.stdout is not None
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == exits.CANCELLED
    assert (first + rest).decode().endswith("\n")
    assert err == b""
    until(lambda: is_idle(served))


def test_ctrl_c_with_json_still_prints_one_object(served: Path) -> None:
    process = start(served, "--json", *LONG)
    until(lambda: not is_idle(served))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == exits.CANCELLED
    assert json.loads(out)["finish"] == "cancel"
    until(lambda: is_idle(served))


def test_a_reader_that_leaves_ends_it_in_silence(served: Path) -> None:
    process = start(served, *LONG)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == exits.PIPE
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    until(lambda: is_idle(served))


@pytest.mark.parametrize("words", [("-n", "8"), ("-n", "8", "--json")])
def test_output_that_no_disk_takes_is_one_line(served: Path, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = start(served, "-p", "Hi", *words, stdout=full)
        _, err = process.communicate(timeout=120)
    assert process.returncode == exits.ERROR
    assert len(err.splitlines()) == 1
    assert b"No space left" in err


def test_bytes_that_are_no_text_are_replaced(served: Path) -> None:
    words = ("-p", "Name a colour. \udcff", "-sys", "Be brief. \udcff", "--stop", "\udcff", "-n", "8")
    assert result(served, *words)["text"]


def test_a_killed_client_frees_the_engine(served: Path) -> None:
    process = start(served, *LONG)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.kill()
    process.communicate()
    until(lambda: is_idle(served))


def test_status_and_stop(home: Path) -> None:
    result(home, "-p", "Hi", "-n", "4")
    environment = {**os.environ, "S2CHAT_HOME": str(home)}
    command = [sys.executable, "-m", "app.cli"]
    status = subprocess.run([*command, "status"], capture_output=True, text=True, timeout=60, env=environment)
    assert status.returncode == exits.OK
    for word in ("ready", read_model_info(EMBEDDED_MODEL).name, "auto =exact", "tok/s", "0 attached"):
        assert word in status.stdout
    assert subprocess.run([*command, "stop"], timeout=60, env=environment).returncode == exits.OK
    assert not paths_in(home).socket.exists()


def test_on_a_terminal_escapes_are_taken_out(served: Path) -> None:
    """Ours are gone once the text is there; the model's own never get through (see test_text)."""
    leader, follower = pty.openpty()
    process = start(served, "-p", "Hi", "-n", "8", "--temp", "0", stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert process.wait(60) == exits.OK
    text = result(served, "-p", "Hi", "-n", "8")["text"]
    # What is left of the progress line is its own removal.
    shown = seen.decode().replace("\r\x1b[K", "").replace("\r\n", "\n")
    assert shown == text + "\n"


def test_two_modes_are_compared(home: Path) -> None:
    words = ("-n", "24", "--temp", "0.8", "--compare", "ar,s2-exact", "-p", "Tell me a story.")
    code, out, err = run(home, "--json", *words)
    assert (code, err) == (exits.OK, "")
    both = json.loads(out)
    assert (both["equal"], both["first_difference"]) == (True, None)
    assert [side["mode"] for side in both["answers"]] == ["ar", "s2-exact"]
    assert both["answers"][0]["text"] == both["answers"][1]["text"] != ""
    assert all(side["first_token_ms"] > 0 for side in both["answers"])
    code, out, err = run(home, "-s", str(both["seed"]), *words)
    assert (code, err) == (exits.OK, "")
    assert out.count(both["answers"][0]["text"].rstrip("\n")) == 2
    assert "= equal: the same" in out
    assert f"seed {both['seed']}" in out


def test_what_is_lossy_is_marked_in_every_output(served: Path) -> None:
    words = ("-n", "8", "--temp", "0", "-p", "Tell me a story.")
    code, out, err = run(served, *words, "--mode", "s2")
    assert (code, err) == (exits.OK, "s2chat: mode s2 ≈lossy: the text is not that of plain decode\n")
    assert "lossy" not in out
    assert run(served, *words, "--mode", "s2-exact")[2] == ""
    code, out, _ = run(served, *words, "--compare", "ar,s2")
    assert code == exits.OK
    assert "── s2 ≈lossy · " in out
    assert "── ar · " in out
    both = json.loads(run(served, "--json", *words, "--compare", "ar,s2")[1])
    assert [side["exact"] for side in both["answers"]] == [True, False]


def test_a_file_that_is_no_model_says_so_beside_an_open_chat(served: Path, tmp_path: Path) -> None:
    broken = tmp_path / "notes.gguf"
    broken.write_text("not a model")
    for path, words in ((broken, "not a GGUF file"), (tmp_path / "none.gguf", "no such file")):
        code, _, err = run(served, "-m", str(path), "-p", "hi")
        assert code == exits.MODEL, err
        assert words in err


@pytest.mark.parametrize("modes", ["ar,ar", "quick", "ar,auto,ngram", "ar,quick"])
def test_modes_that_cannot_be_compared_are_refused(home: Path, modes: str) -> None:
    code, out, err = run(home, "--compare", modes, "-p", "hi")
    assert (code, out) == (exits.USAGE, "")
    assert "mode" in err
    assert not paths_in(home).socket.exists()
