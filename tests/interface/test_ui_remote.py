"""The chat and `s2chat run` with engines elsewhere: ours over TCP, and plain servers that lack much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openaiserver import STANDARD, OpenAI, event, serving, words
from support import end_engine, engine_pid, hint, paths_in, rows, showing, shown, soon, status, until
from test_run import result, run
from test_serve import line
from test_terminal import Terminal
from test_ui_chat import answered, ask, is_ready
from textual.widgets import Input, OptionList

from app import exits
from app.chat import ChatApp
from app.choice import ChoiceScreen, LineScreen
from app.help import HelpScreen
from app.options import ChatOptions, Load
from app.server import address_of
from app.servermodels import ServerModelScreen
from app.settinglist import SettingScreen
from app.settings import change, read_settings
from engine.errors import BadRequest
from engine.paths import EMBEDDED_MODEL, Paths
from engine.remote.address import Address, parse_address
from engine.remote.network import NetworkTransport
from engine.remote.offer import Offer
from engine.remote.plain import PlainClient

ENDLESS: dict[str, Any] = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def distant() -> Iterator[Address]:
    """An engine of ours as `s2chat serve --port` opens it, with a budget."""
    with tempfile.TemporaryDirectory(prefix="s2-") as folder:
        command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "-t", "1", "-c", "2048"]
        process = subprocess.Popen(
            [*command, "--budget", "900M"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "S2CHAT_HOME": folder},
        )
        try:
            url, file = line(process, "port"), line(process, "token")
            line(process, "socket")
            yield parse_address(url, Path(file).read_text())
        finally:
            process.terminate()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
            end_engine(paths_in(Path(folder)))


def chat(paths: Paths, server: Address | str, model: str = "", **request: Any) -> ChatApp:
    address = parse_address(server) if isinstance(server, str) else server
    return ChatApp(
        paths,
        ChatOptions(Load(EMBEDDED_MODEL), mode="s2-exact", request=request, server=address, model=model),
    )


@contextmanager
def environment(**values: str) -> Iterator[dict[str, str]]:
    """What a program gets that is started with `values`, and nothing that names a server by chance."""
    clean = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY",)}
    yield {**clean, **values}


# --- an engine of ours


async def test_an_engine_of_ours_is_used_as_if_it_were_here(paths: Paths, distant: Address) -> None:
    app = chat(paths, distant, temperature=0, max_tokens=12, ignore_eos=True)
    async with app.run_test(size=(160, 30)) as pilot:
        await soon(is_ready(app))
        assert "s2-exact" in status(app)
        assert f"at {distant.place}" in status(app)
        assert "/900 MiB" in status(app)
        await ask(app, "Name a colour.")
        assert await answered(app)
        assert "12 tokens" in shown(app)
        assert "s2-exact" in shown(app)
        await pilot.press("ctrl+g")
        await answered(app)
        assert "s2-exact" in shown(app)
        await soon(lambda: app.meter.tokens)
        app.prompt.text = "/budget 2G"
        app.prompt._send()
        await soon(lambda: "set on its machine" in hint(app))
        await pilot.press("ctrl+l")
        await soon(lambda: showing(app, ServerModelScreen))
        await pilot.press("enter")
        await soon(lambda: "answers already" in hint(app))
        assert engine_pid(paths) is None
    app.close()
    assert engine_pid(paths) is None
    again = chat(paths, distant)
    async with again.run_test():
        await soon(is_ready(again))  # nobody ended it
    again.close()


async def test_stopping_ends_the_work_there(paths: Paths, distant: Address) -> None:
    app = chat(paths, distant, **ENDLESS)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        await pilot.press("escape")
        assert await answered(app)
        assert "■ stopped" in shown(app)
        await soon(lambda: app.board.snapshot is not None and app.board.snapshot.running == 0)
    app.close()


def test_run_uses_it_and_starts_nothing(tmp_path: Path, distant: Address) -> None:
    key = tmp_path / "key"
    key.write_text(f"{distant.key}\n")
    where = ("--server", f"{distant.root}/v1", "--key-file", str(key))
    value = result(tmp_path, *where, "-n", "5", "--mode", "ar", "-p", "Tell me a long story.")
    assert (value["mode"], len(value["token_ids"])) == ("ar", 5)
    assert value["memory"]["budget_bytes"] == 900 << 20
    code, out, err = run(tmp_path, *where, "-n", "5", "-c", "512", stdin=b"Name a colour.")
    assert (code, bool(out.strip())) == (exits.OK, True)
    assert "n_ctx is for an engine of this machine" in err
    with environment(OPENAI_API_KEY="wrong", S2CHAT_SERVER=distant.root, S2CHAT_HOME=str(tmp_path)) as env:
        code, out, err = run(tmp_path, "-p", "Hi", env=env)
    assert (code, out) == (exits.ERROR, "")
    assert "does not take this key" in err
    assert "wrong" not in err
    assert engine_pid(paths_in(tmp_path)) is None


class Tunnel:
    """Another port that leads to `server`, as ssh -L makes one; `cut` ends all that goes through it."""

    def __init__(self, server: Address) -> None:
        self._to = int(server.place.rpartition(":")[2])
        self._pipes: list[asyncio.StreamWriter] = []
        self.address = server

    async def __aenter__(self) -> Tunnel:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = replace(self.address, root=f"http://localhost:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection("127.0.0.1", self._to)
        self._pipes += [writer, away]
        await asyncio.gather(_pour(reader, away), _pour(there, writer))

    def cut(self) -> None:
        for pipe in self._pipes:
            pipe.transport.abort()
        self._pipes.clear()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def test_an_answer_that_is_cut_off_is_kept_and_goes_on(paths: Paths, distant: Address) -> None:
    async with Tunnel(distant) as tunnel:
        app = chat(paths, tunnel.address, **ENDLESS)
        async with app.run_test(size=(100, 30)) as pilot:
            await soon(is_ready(app))
            await ask(app, "Tell me a long story.")
            await soon(lambda: len(app.asker.text) > 20)
            tunnel.cut()
            kept = await answered(app)
            assert len(kept) > 20
            assert "the connection broke" in shown(app)
            assert "closed the connection" in shown(app)
            query = "SELECT status FROM messages WHERE role = 'assistant'"
            await soon(lambda: rows(paths, query) == [("interrupted",)])
            await soon(is_ready(app))
            await pilot.press("ctrl+g")
            await soon(lambda: len(app.asker.text) > len(kept))
            await pilot.press("escape")
            assert (await answered(app)).startswith(kept)
        app.close()
    assert engine_pid(paths) is None


# --- plain servers


async def test_what_a_plain_server_lacks_is_greyed_with_the_reason(paths: Paths) -> None:
    with serving(OpenAI("small", "large")) as server:
        app = chat(paths, server.url, temperature=0)
        async with app.run_test(size=(100, 40)) as pilot:
            await soon(is_ready(app))
            place = server.url.removeprefix("http://")
            assert f"at {place}" in status(app)
            assert "exact" not in status(app)
            await ask(app, "Hi")
            assert await answered(app) == "Hello there."
            assert "2 tokens" in shown(app)
            assert set(server.chats[0]) <= STANDARD
            for key, reason in (
                ("f2", "no modes"),
                ("ctrl+g", "cannot go on"),
                ("f8", "count"),
            ):
                await pilot.press(key)
                assert reason in hint(app)
                assert place in hint(app)
            assert len(server.chats) == 1
            await pilot.press("f1")
            assert isinstance(app.screen, HelpScreen)
            said = "\n".join(str(part.render()) for part in app.screen.query("Static"))
            assert "F2 Ctrl+T         – has no modes to switch" in said
            assert "Ctrl+R            ask again" in said
            await pilot.press("escape", "f7")
            await soon(lambda: showing(app, ChoiceScreen))
            options = {str(o.prompt).split()[0]: o for o in app.screen.query_one(OptionList)._options}
            assert options["top_k"].disabled
            assert f"{place} does not take it" in str(options["top_k"].prompt)
            assert not options["temperature"].disabled
            await pilot.press("escape")
            app.prompt.text = "/set top_k 5"
            app.prompt._send()
            await soon(lambda: "does not take it" in hint(app))
            await pilot.press("f10")
            await soon(lambda: showing(app, SettingScreen))
            await soon(lambda: "no modes" in said_of(app, 1))
            await pilot.press("escape")
        app.close()
        assert engine_pid(paths) is None


def said_of(app: ChatApp, row: int) -> str:
    app.screen.query_one(OptionList).highlighted = row
    return str(app.screen.query_one(".said").render())  # type: ignore[attr-defined]


async def test_a_models_list_of_the_server(paths: Paths, tmp_path: Path) -> None:
    with serving(OpenAI("small", "large", "odd\u202e[b]")) as server:
        app = chat(paths, server.url)
        async with app.run_test() as pilot:
            await soon(is_ready(app))
            await pilot.press("ctrl+l")
            await soon(lambda: showing(app, ServerModelScreen))
            assert app.screen.query_one(OptionList).option_count == 2
            await pilot.press(*"lar", "enter")
            await soon(lambda: "From now on large answers" in shown(app))
            await ask(app, "Hi")
            await answered(app)
            assert server.chats[-1]["model"] == "large"
            app.adjusting.settings = change(
                read_settings(tmp_path / "settings.toml"), "server.url", server.url
            )
            await pilot.press("ctrl+l")
            await soon(lambda: showing(app, ServerModelScreen))
            await pilot.press("ctrl+s")
            assert "large from now on at every start" in str(app.screen.query_one(".said").render())
            assert read_settings(tmp_path / "settings.toml").get("server.model") == "large"
        app.close()


async def test_a_broken_answer_is_kept_and_asked_again(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        server.answer, server.cut = [event({"content": "half \x1b[31man\x07 answer"})], True
        app = chat(paths, server.url)
        async with app.run_test(size=(100, 30)) as pilot:
            await soon(is_ready(app))
            await ask(app, "Hi")
            assert (await answered(app)).startswith("half")
            assert "half an answer" in shown(app)
            assert "the connection broke, Ctrl+R" in shown(app)
            assert "closed the connection" in shown(app)
            server.answer, server.cut = words("Whole."), False
            await pilot.press("ctrl+r")
            await soon(lambda: "Whole." in shown(app))
            await answered(app)
            assert "version 2 of 2" in shown(app)
        app.close()


async def test_a_refusal_is_read_and_the_question_stays(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        server.status = 429
        app = chat(paths, server.url)
        async with app.run_test(size=(100, 30)):
            await soon(is_ready(app))
            await ask(app, "Hi")
            await answered(app)
            assert "takes no more requests for now: it said so" in " ".join(shown(app).split())
            assert "\x1b" not in shown(app)
            server.status = 200
            await app.run_deed("again")
            assert await answered(app) == "Hello there."
        app.close()


async def test_what_keeps_us_away_is_said_once_and_costs_no_question(paths: Paths) -> None:
    with serving(OpenAI("one")) as server, serving(OpenAI("one")) as other:
        server.redirects_to = other.url
        app = chat(paths, server.url, top_k=3)
        async with app.run_test(size=(100, 30)):
            await soon(lambda: "redirects to" in shown(app))
            await ask(app, "Hi")
            await answered(app)
            assert shown(app).count("redirects to") == 2  # once, and once to who asked
            assert not other.asked
            server.redirects_to = ""
            await app.run_deed("again")
            assert await answered(app) == "Hello there."
            assert "does not take top_k" in shown(app)
        app.close()


async def test_escape_closes_the_connection(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        server.answer, server.stalls = [event({"content": "endless"})], True
        app = chat(paths, server.url)
        async with app.run_test() as pilot:
            await soon(is_ready(app))
            await ask(app, "Hi")
            await soon(lambda: app.asker.has_text)
            began = time.monotonic()
            await pilot.press("escape")
            assert await answered(app) == "endless"
            await soon(server.gone.is_set)
            assert server.gone_at - began < 10
            assert "■ stopped" in shown(app)
        app.close()


async def test_thoughts_are_folded_as_usual(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [event({"reasoning_content": "let me"}), event({"reasoning": " see"}), *words("Yes.")]
        app = chat(paths, server.url)
        async with app.run_test(size=(100, 30)):
            await soon(is_ready(app))
            await ask(app, "Well?")
            await answered(app)
            assert "thoughts, 3 words" in shown(app)
            assert "let me" not in shown(app)
            assert "Yes." in shown(app)
            await ask(app, "Sure?")
            await answered(app)
            assert server.chats[-1]["messages"][1] == {"role": "assistant", "content": "Yes."}
        app.close()


async def test_a_key_is_asked_for_and_never_shown(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        server.key = "sk-typed"
        app = chat(paths, server.url)
        async with app.run_test(size=(100, 30)) as pilot:
            await soon(lambda: showing(app, LineScreen))
            assert "wants a key" in str(app.screen.query_one(".said").render())  # type: ignore[attr-defined]
            assert app.screen.query_one(Input).password
            await pilot.press(*"sk-typed", "enter")
            await soon(is_ready(app))
            await ask(app, "Hi")
            assert await answered(app) == "Hello there."
            assert "sk-typed" not in shown(app)
        app.close()
    assert b"sk-typed" not in paths.history.read_bytes()


async def test_a_server_that_is_away_is_said_and_found_again(paths: Paths) -> None:
    with serving(OpenAI("one")) as server:
        port = server.url
    app = chat(paths, port)
    async with app.run_test(size=(100, 30)):
        await soon(lambda: "nothing answers at" in shown(app))
        await ask(app, "Hi")
        await answered(app)
        assert shown(app).count("nothing answers at") == 2  # once, and once to who asked
        with serving(OpenAI("one"), port=int(port.rpartition(":")[2])):
            await soon(is_ready(app))
    app.close()


# --- which server, which key


def test_run_with_a_plain_server(tmp_path: Path) -> None:
    with serving(OpenAI("small", "large")) as server, environment(S2CHAT_HOME=str(tmp_path)) as env:
        code, out, err = run(
            tmp_path, "--server", server.url, "-m", "large", "--top-k", "3", "-p", "Hi", env=env
        )
        assert (code, out) == (exits.OK, "Hello there.\n")
        assert "does not take top_k" in err
        assert server.chats[0]["model"] == "large"
        server.answer, server.cut = [event({"content": "half"})], True
        code, out, err = run(tmp_path, "--server", server.url, "-p", "Hi", env=env)
        assert (code, out) == (exits.ENGINE, "half\n")
        assert "closed the connection" in err
        code, _, err = run(tmp_path, "--server", "nowhere", "-p", "Hi", env=env)
        assert (code, "is no URL" in err) == (exits.USAGE, True)
    assert engine_pid(paths_in(tmp_path)) is None


def test_where_the_server_and_its_key_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.cli import _parser
    from app.server import take_server

    for name in ("S2CHAT_SERVER", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    key, file = tmp_path / "key", tmp_path / "settings.toml"
    key.write_text("of-the-file\n")
    file.write_text(f'[server]\nurl = "https://kept.example/v1"\nkey_file = "{key}"\nmodel = "kept"\n')
    settings = read_settings(file)

    def taken(*words: str) -> tuple[str, str, str]:
        arguments = _parser().parse_args(["chat", *words])
        take_server(arguments, settings)
        address = arguments.address
        return (address.root, address.key, arguments.remote_model) if address else ("", "", "")

    assert taken() == ("https://kept.example", "of-the-file", "kept")
    assert taken("--server", "local") == ("", "", "")
    # What belongs to the server of the settings goes to no other.
    assert taken("--server", "http://127.0.0.1:1/v1", "-m", "x") == ("http://127.0.0.1:1", "", "x")
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-environment")
    assert taken("--server", "https://other.example")[1] == "of-the-environment"
    assert taken("--server", "http://other.example")[1] == ""
    monkeypatch.setenv("S2CHAT_SERVER", "http://127.0.0.1:2")
    assert taken() == ("http://127.0.0.1:2", "of-the-environment", "")
    assert address_of(_parser().parse_args(["chat"])) is None
    monkeypatch.delenv("S2CHAT_SERVER")
    with pytest.raises(BadRequest, match="without --server"):
        taken("--server", "local", "--key-file", str(key))
    key.unlink()
    with pytest.raises(BadRequest, match="cannot be read"):
        taken()
    file.write_text('[server]\nkey_file = "/nowhere"\n')
    settings = read_settings(file)
    assert taken() == ("", "", "")  # a key alone names no server


def test_doctor_tells_a_stranger_neither_server_nor_key(tmp_path: Path) -> None:
    bundle, key = tmp_path / "bundle.zip", "sk-hush-hush"
    with (
        serving(OpenAI("one")) as server,
        environment(S2CHAT_HOME=str(tmp_path), S2CHAT_SERVER=server.url, OPENAI_API_KEY=key) as env,
    ):
        command = [sys.executable, "-m", "app.cli", "doctor", "--json", "--bundle", str(bundle)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert server.asked[0][1]["authorization"] == f"Bearer {key}"
    found = json.loads(done.stdout)["server"]
    assert found["value"] == {"": "http", "key": "from OPENAI_API_KEY", "kind": "openai"}
    with zipfile.ZipFile(bundle) as files:
        texts = [files.read(name).decode() for name in files.namelist()]
    for text in (done.stdout, done.stderr, *texts):
        assert key not in text
        assert server.url.removeprefix("http://") not in text


def test_run_asks_for_a_key_where_somebody_can_type_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(OpenAI("one")) as server:
        server.key = "sk-typed"
        terminal = Terminal(home, "run", "--server", server.url, "-p", "Hi")
        try:
            until(lambda: b"key: " in terminal.seen)
            terminal.type("sk-typed\n")
            assert terminal.wait() == exits.OK
            until(lambda: b"Hello there." in terminal.seen)
            assert b"sk-typed" not in terminal.seen
        finally:
            terminal.end()
    assert engine_pid(paths_in(home)) is None


def test_the_chat_in_a_terminal_starts_and_ends_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(OpenAI("one")) as server:
        monkeypatch.setenv("S2CHAT_SERVER", server.url)
        terminal = Terminal(home)
        try:
            until(lambda: b"ready" in terminal.seen)
            terminal.type("Hi\r")
            until(lambda: b"Hello there." in terminal.seen)
            terminal.type("\x11")
            assert terminal.wait() == exits.OK
        finally:
            terminal.end()
        assert server.chats
    assert engine_pid(paths_in(home)) is None
    assert not paths_in(home).log.exists()


async def test_our_port_is_a_plain_server_as_well(distant: Address) -> None:
    """What others see of it, through the client for others."""
    client = PlainClient(NetworkTransport(distant), Offer("llama-server", distant.place), "any")
    async with client:
        options = {"max_tokens": 6, "temperature": 0, "top_k": 5, "draft_length": 3}
        hello = [{"role": "user", "content": "Name a colour."}]
        chunks = [chunk async for chunk in client.chat(hello, options=options)]
        raw = [chunk async for chunk in client.complete("Once upon", options={"max_tokens": 4})]
    assert "".join(chunk.text for chunk in chunks)
    assert any(chunk.progress for chunk in chunks)
    assert chunks[-1].finish == "max_tokens"
    assert chunks[-1].timings is not None
    assert chunks[-1].timings.predicted_n == 6
    assert "".join(chunk.text for chunk in raw)
