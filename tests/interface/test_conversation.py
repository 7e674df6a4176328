"""The open conversation: versions, branches, cuts, and what of them the model is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import rows

from app import export
from app.attachments import read_text
from app.blocks import Block, blocks
from app.chats import Chats
from app.conversation import Conversation, told
from app.entry import Entry, framed
from app.history import File
from app.prefill import Prefill
from app.sampling import parse, request_fields, setting
from engine.errors import BadRequest, S2Error
from engine.messages import ModelCard, Progress
from engine.paths import Paths


async def opened(paths: Paths) -> Chats:
    chats = Chats(paths, print)
    await chats.start()
    return chats


async def turn(chat: Conversation, question: str, answer: str, *files: File) -> Entry:
    entry = await chat.begin(question, "ar", files)
    entry.text = answer
    await chat.finish(entry, "done", "eos", None)
    return entry


def texts(chat: Conversation) -> list[str]:
    return [entry.text for entry in chat.entries]


async def again(paths: Paths, chats: Chats) -> Conversation:
    """The same chat in a new program."""
    chats.close(None)
    return (await opened(paths)).open


async def test_versions_and_branches_are_kept_and_switched(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    first = await turn(chat, "q1", "a1")
    await turn(chat, "q2", "a2")
    other = await chat.begin_again(first, "ar")
    other.text = "a1b"
    await chat.finish(other, "done", "eos", None)
    assert texts(chat) == ["q1", "a1b"]
    assert (other.place, first.place) == ("version 2 of 2", "version 1 of 2")
    await chat.show(first)
    assert texts(chat) == ["q1", "a1", "q2", "a2"]  # what followed it is there again
    edited = await chat.begin_edited(chat.entries[2], "q2b", "ar")
    edited.text = "a2b"
    await chat.finish(edited, "done", "eos", None)
    await chat.rewrite(edited, "mine")
    assert texts(chat) == ["q1", "a1", "q2b", "mine"]
    later = await again(paths, chats)
    assert texts(later) == ["q1", "a1", "q2b", "mine"]
    assert [entry.text for entry in later.all] == ["q1", "a1", "q2", "a2", "a1b", "q2b", "a2b", "mine"]
    assert [entry.place for entry in later.entries] == [
        "",
        "version 1 of 2",
        "version 2 of 2",
        "version 2 of 2",
    ]
    assert rows(paths, "SELECT count(*) FROM messages") == [(8,)]


async def test_what_the_model_is_told(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    await turn(chat, "q1", "<think>\nwhy\n</think>\n\na1")
    entry = await turn(chat, "q2", "a2", File("n.txt", "one\n```\ntwo\n"))
    assert told(chat.entries, "sys") == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2\n\nFile n.txt:\n````\none\n```\ntwo\n````"},
        {"role": "assistant", "content": "a2"},
    ]
    await chat.cut(2, "a summary")
    await turn(chat, "q3", "a3")
    assert [part["content"] for part in told(chat.entries)] == [
        "Summary of the conversation so far:\na summary",
        "q2\n\n" + framed(entry.parent.files[0]) if entry.parent else "",
        "a2",
        "q3",
        "a3",
    ]
    later = await again(paths, chats)
    assert told(later.entries) == told(chat.entries)
    # An answer that goes on is told as it was written, also from behind a cut.
    first = later.entries[1]
    await later.show(first)
    later.entries = later.entries[:2]
    assert told(later.entries, "", first)[-1]["content"].startswith("<think>")


async def test_a_turn_that_could_not_be_asked_is_taken_back(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    await turn(chat, "q1", "a1")
    refused = await chat.begin("too long", "ar")
    await chat.refuse(refused)
    question = chat.entries[-2]
    await chat.take_back(question)
    await chat.cut(0, "")
    assert texts(chat) == ["q1", "a1", ""]
    assert [entry.text for entry in (await again(paths, chats)).all] == ["q1", "a1", "too long", "", ""]


async def test_json_brings_everything_back(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    first = await turn(chat, "q1 [b]", "<think>why</think>a1", File("n.txt", "text", 3))
    other = await chat.begin_again(first, "s2-exact")
    other.text = "a1b"
    await chat.finish(other, "stopped", "stopped", None)
    await chat.cut(1, "sum")
    await chat.set_system("Be brief.")
    await chat.set_sampling({"top_k": 5})
    chat.title = "A 猫 title"
    path = export.default_path(paths.data / "exports", chat.title, "json")
    export.write(chat, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(S2Error, match="there already"):
        export.write(chat, path)
    found = export.read(path)
    number = await chats.recorder.call(lambda history: export.store(history, found), None)
    assert number is not None
    assert await chats.switch(number)
    back = chats.open
    assert export.as_json(back) == export.as_json(chat)
    chats.close(None)


async def test_markdown_reads_well_and_comes_back(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    await turn(chat, "q1\n## You\nmore", "<think>why</think>a1\n\n```py\nx[0] = 1\n```")
    await turn(chat, "q2", "a2")
    text = export.markdown(chat)
    assert "<details><summary>Thoughts</summary>\n\nwhy\n" in text
    path = paths.data / "chat.md"
    export.write(chat, path)
    found = export.read(path)
    assert [(m["role"], m["content"]) for m in found["messages"]][2:] == [("user", "q2"), ("assistant", "a2")]
    assert found["messages"][0]["content"] == "q1\n### You\nmore"
    chats.close(None)


async def test_answers_of_a_lossy_mode_stay_marked_on_paper(paths: Paths) -> None:
    chats = await opened(paths)
    chat = chats.open
    await turn(chat, "q1", "a1")
    await turn(chat, "q2", "a2")
    chat.entries[1].mode, chat.entries[3].mode = "s2", "ar"
    path = paths.data / "chat.md"
    export.write(chat, path)
    assert path.read_text().count("*mode s2 ≈lossy*\n\na1") == path.read_text().count("lossy") == 1
    assert [(m["mode"], m["content"]) for m in export.read(path)["messages"]][1::2] == [
        ("s2", "a1"),
        (None, "a2"),
    ]
    whole = json.loads(export.as_json(chat))
    assert [message["exact"] for message in whole["messages"]] == [None, False, None, True]
    chats.close(None)


@pytest.mark.parametrize(
    "text",
    ["", "no headings", "{", '{"format": "other"}',
     '{"format": "s2chat-chat", "version": 99, "messages": []}',
     '{"format": "s2chat-chat", "version": 1, "messages": [{"role": "user", "content": "x", "parent": 5}]}',
     '{"format": "s2chat-chat", "version": 1, "messages": [{"role": "root", "content": "x"}]}',
     '{"format": "s2chat-chat", "version": 1, "messages": 7}'],
)  # fmt: skip
def test_a_file_that_is_no_chat_is_refused(paths: Paths, text: str) -> None:
    paths.data.mkdir()
    path = paths.data / "bad.json"
    path.write_text(text)
    with pytest.raises(S2Error, match="bad"):
        export.read(path)


def test_only_text_is_attached(paths: Paths) -> None:
    paths.data.mkdir()
    good = paths.data / "good [b].txt"
    good.write_bytes(b"\xef\xbb\xbfone\r\ntwo \xe7\x8c\xab\n")
    assert read_text(good) == File("good [b].txt", "one\ntwo 猫\n")
    for name, data in (("a.bin", b"a\0b"), ("b.bin", b"\xff\xfe\xfa"), ("empty", b" \n")):
        (paths.data / name).write_bytes(data)
        with pytest.raises(BadRequest, match=name):
            read_text(paths.data / name)
    for path in (paths.data, paths.data / "missing"):
        with pytest.raises(BadRequest):
            read_text(path)


def test_code_blocks() -> None:
    text = "a\n```py x\none\n\ntwo\n```\n- list\n  ~~~\n  ```\n  ~~~\n`inline`\n```\nopen"
    assert blocks(text) == [Block("py", "one\n\ntwo\n"), Block("", "```\n"), Block("", "open")]


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [("temp", "0.7", 0.7), ("top_k", "3", 3), ("top-p", "1", 1.0), ("seed", "5", 5), ("max", "9", 9)],
)
def test_settings_the_engine_honours(name: str, word: str, value: float) -> None:
    row = setting(name)
    assert parse(row, word) == value
    assert request_fields({row.name: value, "mirostat": 2.0}) == {row.name: value}


@pytest.mark.parametrize(
    ("name", "word"),
    [("temperature", "x"), ("temperature", "-1"), ("top_p", "2"), ("top_k", "1.5"), ("seed", "-4"),
     ("max", "0"), ("mirostat", "2"), ("t", "1"), ("", "1"), ("temperature", "nan"),
     ("effort", "much"), ("effort", "0")],
)  # fmt: skip
def test_settings_it_does_not(name: str, word: str) -> None:
    with pytest.raises(BadRequest):
        parse(setting(name), word)


def test_thinking_is_a_field_of_the_template() -> None:
    assert request_fields({"thinking": 0}) == {"chat_template_kwargs": {"enable_thinking": False}}
    assert request_fields({"reasoning_effort": 3}) == {"reasoning_effort": "high"}


def test_a_model_is_not_asked_for_what_another_could() -> None:
    changed = {"thinking": 0, "reasoning_effort": parse(setting("effort"), "low"), "top_k": 3}
    card = ModelCard("/x.gguf", "x", "gpt-oss", 1, 512, 512, 4, 2, True)
    assert request_fields(changed, card) == {"top_k": 3}
    assert request_fields(changed, replace(card, can_set_effort=True)) == {
        "top_k": 3,
        "reasoning_effort": "low",
    }


def test_prefill_says_what_is_left_and_what_was_reused() -> None:
    prefill = Prefill()
    assert prefill.words == ""
    prefill.take(Progress(total=4000, cache=1000, processed=1000, time_ms=500))
    assert prefill.words == "reading the prompt 25%, 1000 of 4000 tokens reused"
    prefill.take(Progress(total=4000, cache=1000, processed=1500, time_ms=1500))
    assert prefill.seconds_left == pytest.approx(5.0)
    assert prefill.words == "reading the prompt 37%, 5 s left, 1000 of 4000 tokens reused"
    prefill.take(Progress(total=4000, cache=1000, processed=4000, time_ms=6500))
    assert prefill.words == "reading the prompt 100%, 1000 of 4000 tokens reused"
