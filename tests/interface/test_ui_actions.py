"""What is done with messages and chats: versions, edits, answers that go on, a full context, lists, files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harmony import write_harmony
from support import chat, hint, rows, showing, shown, soon, status
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_keeping import stored
from test_ui_screen import screen_lines
from textual.pilot import Pilot

from app.chat import ChatApp
from app.chatlist import ChatListScreen
from app.choice import ChoiceScreen, LineScreen
from app.history import History
from engine.channels import HARMONY
from engine.paths import Paths


async def command(app: ChatApp, text: str) -> None:
    """Types a command and sends it."""
    app.prompt.text = text
    app.prompt._send()
    await soon(lambda: app.prompt.text != text)


def texts(app: ChatApp) -> list[str]:
    return [entry.text for entry in app.chats.open.entries]


async def test_versions_edits_and_what_goes_on(ready: Paths) -> None:
    app = chat(ready, max_tokens=10, ignore_eos=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        first = await answered(app)
        await pilot.press("ctrl+r")
        await soon(lambda: len(app.chats.open.all) == 3)
        assert await answered(app) == first  # the same question at temperature 0
        assert "version 2 of 2" in shown(app)
        # It goes on as if it had never stopped.
        await pilot.press("ctrl+g")
        await soon(lambda: len(app.chats.open.entries[-1].text) > len(first))
        longer = await answered(app)
        assert longer.startswith(first)
        await command(app, "/set max_tokens 20")
        await soon(lambda: app.chats.open.sampling == {"max_tokens": 20})
        await command(app, "/again")
        await soon(lambda: len(app.chats.open.all) == 4)
        assert await answered(app) == longer
        # An edited question stands beside the old one.
        await pilot.press("tab", "up")
        assert app.turns.chosen is app.chats.open.entries[0]
        await pilot.press("e")
        assert app.prompt.text == "Name a colour."
        app.prompt.text = "Name a tree."
        app.prompt._send()
        await soon(lambda: texts(app)[0] == "Name a tree.")
        await answered(app)
        assert shown(app).count("Name a") == 1
        await pilot.press("up", "up", "left")
        await soon(lambda: texts(app) == ["Name a colour.", longer])
        await pilot.press("escape")
        assert app.focused is app.prompt
    app.close()
    again = chat(ready)
    async with again.run_test(size=(100, 30)):
        await soon(lambda: "Name a colour." in shown(again))
        assert texts(again) == ["Name a colour.", longer]
        assert "version 3 of 3" in shown(again)
    again.close()
    found = rows(ready, "SELECT role, parent, content FROM messages ORDER BY id")
    assert [(role, parent) for role, parent, _ in found] == [
        ("user", None), ("assistant", 1), ("assistant", 1), ("assistant", 1), ("user", None), ("assistant", 5)
    ]  # fmt: skip
    assert [text for _, _, text in found[:4]] == ["Name a colour.", first, longer, longer]


async def test_leaving_an_edit_brings_the_draft_back(paths: Paths) -> None:
    stored(paths, ("question", "answer"))
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "answer" in shown(app))
        app.prompt.text = "half typed"
        await pilot.press("f4")
        assert app.prompt.text == "question"
        assert "editing" in str(app.prompt.border_title)
        await pilot.press("escape")
        assert app.prompt.text == "half typed"
        await command(app, "/edit")
        app.turns.leave_edit()
        # The user's own version of an answer is shown without asking the model.
        app.prompt.text = ""
        await pilot.press("up", "e")
        app.prompt.text = "my answer"
        app.prompt._send()
        await soon(lambda: texts(app) == ["question", "my answer"])
        assert not app.is_answering
    app.close()
    assert rows(paths, "SELECT content FROM messages ORDER BY id") == [
        ("question",),
        ("answer",),
        ("my answer",),
    ]


@pytest.mark.parametrize(
    ("keys", "kind"), [((), "trim"), (("down",), "summarise"), (("down", "down"), "new")]
)
async def test_a_full_context_is_a_choice(paths: Paths, keys: tuple[str, ...], kind: str) -> None:
    turns = [(f"Question {number}? " + "sea " * 25, "The sea. " * 25) for number in range(6)]
    stored(paths, *turns)
    app = chat(paths, n_ctx=512, max_tokens=8)
    async with app.run_test(size=(100, 40)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await soon(lambda: showing(app, ChoiceScreen))
        assert "the context holds 512" in shown(app)
        await soon(lambda: "The context is full" in "\n".join(screen_lines(app)))
        await pilot.press(*keys, "enter")
        if kind == "new":
            await soon(lambda: not app.chats.open.entries)
            assert app.prompt.text == "Name a colour."
        else:
            await soon(lambda: any(entry.role == "cut" for entry in app.chats.open.entries))
            await soon(lambda: not app.is_answering)
            cut, question, answer = app.chats.open.entries[-3:]
            assert (question.text, answer.status) == ("Name a colour.", "done")
            assert answer.text
            assert bool(cut.text) == (kind == "summarise")
            assert 0 < cut.keeps < 12
            assert cut.keeps % 2 == 0  # whole turns
            assert "Question 0?" in "\n".join(texts(app))  # nothing is gone for the reader
            assert app.prompt.text == ""
            timings = answer.timings
            assert timings is not None
            assert timings.prompt_n + timings.cache_n <= 512 * 3 // 4
    app.close()


async def test_room_can_be_made_before_the_context_is_full(ready: Paths) -> None:
    app = chat(ready, max_tokens=8)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await command(app, "/trim")
        await soon(lambda: "There is nothing to leave out yet." in shown(app))
        await ask(app, "Name a colour.")
        await answered(app)
        await soon(lambda: app.meter.tokens)
        await pilot.press("f8")
        await soon(lambda: showing(app, ChoiceScreen))
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "Make room in the context" in text
        assert f"{app.meter.tokens} of {app.board.context_size} tokens are taken." in text
        assert "is full" not in text
        await pilot.press("escape")
    app.close()


async def test_the_meter_is_exact_and_files_are_counted(ready: Paths, tmp_path: Path) -> None:
    (tmp_path / "notes [b].txt").write_text("The colour is octarine.\n" * 5)
    app = chat(ready, max_tokens=4)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await command(app, f"/attach {tmp_path / 'notes [b].txt'}")
        await soon(lambda: len(app.attachments.files) == 1)
        assert app.attachments.files[0].tokens
        assert app.attachments.words == f"+ notes [b].txt, {app.attachments.files[0].tokens} tokens"
        app.prompt.text = "Which colour?"
        client = await app.link.client()
        without = await client.count([{"role": "user", "content": "Which colour?"}])
        await soon(lambda: (app.meter.tokens or 0) > without + 10)
        counted = app.meter.tokens
        await soon(lambda: f"ctx {counted}/" in status(app))
        app.prompt._send()
        await soon(lambda: len(app.chats.open.entries) == 2)
        await answered(app)
        timings = app.chats.open.entries[-1].timings
        assert timings is not None
        assert timings.prompt_n + timings.cache_n == counted
        assert "+ notes [b].txt" in shown(app)
        await command(app, "/attach /nowhere/at [all]")
        await soon(lambda: "there is no file /nowhere/at [all]" in shown(app))
        await pilot.press("f5")
        await soon(lambda: showing(app, LineScreen))
        await pilot.press("escape")
    app.close()


async def test_sampling_and_system_prompt_reach_the_engine(ready: Paths) -> None:
    app = chat(ready, max_tokens=6)
    async with app.run_test(size=(100, 40)) as pilot:
        await soon(is_ready(app))
        await command(app, "/set max 3")
        await soon(lambda: "max_tokens 3" in hint(app))
        await command(app, "/set temperature 9999")
        await soon(lambda: "temperature is 9999" in hint(app))
        await command(app, "/set thinking 0")
        await soon(lambda: "no switch" in hint(app))
        await command(app, "/system Answer with [one] word.")
        await soon(lambda: app.system == "Answer with [one] word.")
        await command(app, "/preset one")
        await soon(lambda: hint(app) == "Kept as one")
        await ask(app, "Name a colour.")
        await answered(app)
        timings = app.chats.open.entries[-1].timings
        assert timings is not None
        assert timings.predicted_n == 3
        client = await app.link.client()
        messages = [
            {"role": "system", "content": "Answer with [one] word."},
            {"role": "user", "content": "Name a colour."},
        ]
        assert timings.prompt_n + timings.cache_n == await client.count(messages)
        await command(app, "/set max default")
        await soon(lambda: app.chats.open.sampling == {})
        await pilot.press("f6")
        await soon(lambda: showing(app, ChoiceScreen))
        await pilot.press("escape", "f7")
        await soon(lambda: showing(app, ChoiceScreen))
        await pilot.press("down", "enter")
        await soon(lambda: showing(app, LineScreen))
        await pilot.press("5", "enter")
        await soon(lambda: app.chats.open.sampling == {"top_k": 5})
    app.close()
    again = chat(ready)
    async with again.run_test():
        await soon(again.restored.is_set)
        assert (again.system, again.chats.open.sampling) == ("Answer with [one] word.", {"top_k": 5})
        await command(again, "/system concise")
        await soon(lambda: "few words" in again.system)
        await command(again, "/system one")
        await soon(lambda: again.system == "Answer with [one] word.")
    again.close()


async def test_an_answer_that_goes_on_is_whole_when_the_window_closes_meanwhile(ready: Paths) -> None:
    app = chat(ready, max_tokens=10, ignore_eos=True)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        first = await answered(app)
        await command(app, "/set max 2000")
        await pilot.press("ctrl+g")
        await soon(lambda: len(app.asker.text) > len(first) + 20)
        app.chats.close(app._last_words("interrupted"))  # all that is left to do then
        ((kept,),) = rows(ready, "SELECT content FROM messages WHERE role = 'assistant'")
        assert kept.startswith(first)
        assert len(kept) > len(first)
    app.close()


async def test_a_model_of_channels_answers_without_its_marks(paths: Paths, tmp_path: Path) -> None:
    """A random gpt-oss writes anything; whatever it is, no mark is shown, and the next question is asked."""
    app = chat(paths, model=write_harmony(tmp_path / "toy.gguf"), temperature=1.0, seed=5, max_tokens=60)
    async with app.run_test(size=(100, 40)) as pilot:
        await soon(is_ready(app))
        await command(app, "/thoughts high")
        await soon(lambda: "reasoning_effort high" in hint(app))
        await command(app, "/thoughts off")
        await soon(lambda: "its levels are low, medium, high" in hint(app))
        for question in ("one", "two"):
            await ask(app, question)
            await answered(app)
            await pilot.pause()
        assert not [mark for mark in HARMONY.marks if mark in shown(app)]
        assert [entry.status for entry in app.chats.open.entries] == ["done"] * 4
        client = await app.link.client()
        assert await client.count([{"role": "user", "content": "one"}]) > 0
    app.close()


async def test_thoughts_that_come_again_are_folded_with_the_others(ready: Paths) -> None:
    text = "<|~t|>one two<|~/t|>Let me look.<|~t|>three<|~/t|>\n\nThe answer."
    stored(ready, ("question", text))
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "The answer." in shown(app))
        assert "▸ thoughts, 3 words" in shown(app)
        assert "Let me look." in shown(app)
        assert "three" not in shown(app)
        await pilot.press("f3")
        await soon(lambda: "three" in shown(app))
        assert "~" not in shown(app)
    app.close()


async def test_thoughts_are_folded_with_a_counter(paths: Paths) -> None:
    stored(paths, ("question", "<think>\none two [three]\n</think>\n\nThe answer."))
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "The answer." in shown(app))
        assert "▸ thoughts, 3 words" in shown(app)
        assert "one two" not in shown(app)
        await pilot.press("f3")
        assert "one two [three]" in shown(app)
        await pilot.press("f3")
        assert "one two" not in shown(app)
        await pilot.press("ctrl+y")
        assert app.clipboard == "The answer."
    app.close()


async def test_code_blocks_are_copied_by_number(paths: Paths) -> None:
    stored(paths, ("question", "Two:\n\n```py\none()\n```\n\n```\n[two]\n```\n"))
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "one()" in shown(app))
        await pilot.press("alt+2")
        assert app.clipboard == "[two]\n"
        assert (paths.state / "last-code.txt").read_text() == "[two]\n"
        await pilot.press("alt+3")
        assert hint(app) == "There are 2 code blocks."
        await pilot.press("ctrl+y", "ctrl+y")
        assert app.clipboard == "one()\n"
        assert "py block 1 of 2, 1 line" in hint(app)
        await pilot.press("up", "2")
        assert app.clipboard == "[two]\n"
        await pilot.press("escape")
        await command(app, "/copy 1")
        await soon(lambda: app.clipboard == "one()\n")
    app.close()


async def list_of(app: ChatApp, pilot: Pilot[None]) -> ChatListScreen:
    await pilot.press("ctrl+o")
    await soon(lambda: showing(app, ChatListScreen))
    screen = app.screen
    assert isinstance(screen, ChatListScreen)
    await soon(lambda: bool(screen.rows))
    return screen


def titles(screen: ChatListScreen) -> list[str]:
    return [conversation.title for conversation, _ in screen.rows]


async def test_the_list_searches_renames_pins_deletes_and_undoes(paths: Paths) -> None:
    for question, answer in (("tides [b]", "the Moon"), ("bread", "flour and water"), ("last", "one")):
        stored(paths, (question, answer))
    app = chat(paths)
    async with app.run_test(size=(60, 20)) as pilot:
        await soon(lambda: "one" in shown(app))
        screen = await list_of(app, pilot)
        assert titles(screen) == ["last", "bread", "tides [b]"]
        await pilot.press(*"moon")
        await soon(lambda: titles(screen) == ["tides [b]"])
        await pilot.press("f3", "f2")
        await pilot.press("home", *"My ", "enter")
        await soon(lambda: titles(screen) == ["My tides [b]"])
        await pilot.press(*["backspace"] * 4)
        await soon(lambda: titles(screen) == ["My tides [b]", "last", "bread"])
        await pilot.press("down", "down", "delete")
        await soon(lambda: titles(screen) == ["My tides [b]", "last"])
        await pilot.press("f4")
        await soon(lambda: titles(screen) == ["My tides [b]", "last", "bread"])
        await pilot.press("enter")
        await soon(lambda: "flour" in shown(app))
        await command(app, "/delete")
        await soon(lambda: "flour" not in shown(app))
        await command(app, "/undo")
        await soon(lambda: "flour" in shown(app))
        app.prompt.text = "/nonsense"
        app.prompt._send()
        await soon(lambda: "no command /nonsense" in hint(app))
        assert app.prompt.text == "/nonsense"
    app.close()
    assert rows(paths, "SELECT title, pinned FROM conversations WHERE title != '' ORDER BY id") == [
        ("My tides [b]", 1),
        ("bread", 0),
        ("last", 0),
    ]


async def test_a_chat_goes_out_and_comes_in(paths: Paths, tmp_path: Path) -> None:
    stored(paths, ("question [b]", "answer 猫"))
    app = chat(paths)
    async with app.run_test(size=(100, 30)):
        await soon(lambda: "answer" in shown(app))
        await command(app, "/export")
        await soon(lambda: "Exported to" in shown(app))
        (file,) = (paths.data / "exports").glob("*.md")
        assert "## You\n\nquestion [b]\n\n## Answer\n\nanswer 猫\n" in file.read_text()
        await command(app, f"/export {tmp_path / 'chat.json'}")
        await soon((tmp_path / "chat.json").exists)
        await command(app, "/new")
        await soon(lambda: not app.chats.open.entries)
        await command(app, f"/import {tmp_path / 'chat.json'}")
        await soon(lambda: texts(app) == ["question [b]", "answer 猫"])
        await command(app, f"/import {tmp_path}")
        await soon(lambda: "is not a file" in shown(app))
    app.close()
    assert rows(paths, "SELECT count(*) FROM conversations WHERE title = 'question [b]'") == [(2,)]


async def test_two_thousand_messages_open_at_once(paths: Paths) -> None:
    history = History(paths.history)
    number = history.create()
    with history._transaction():
        parent = None
        for at in range(2000):
            parent = history._insert(
                number, ("user", "assistant")[at % 2], f"message {at} " * 40, "done", "ar", parent
            )
    history.close()
    app = chat(paths)
    async with app.run_test(size=(80, 24)):
        started = time.process_time()
        await app.chats.switch(number)
        app.show_chat("")
        assert "message 1999" in shown(app)
        assert time.process_time() - started < 2
    app.close()


async def test_stopping_and_going_on_in_the_middle(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        await pilot.press("escape")
        begun = await answered(app)
        await command(app, "/continue")
        await soon(lambda: len(app.asker.text) > len(begun) + 20)
        await pilot.press("escape")
        whole = await answered(app)
        assert whole.startswith(begun)
        assert len(app.chats.open.all) == 2
        assert "■ stopped" in shown(app)
    app.close()
    assert rows(ready, "SELECT content, status FROM messages WHERE role = 'assistant'") == [
        (whole, "stopped")
    ]
