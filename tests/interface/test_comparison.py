"""One question in two modes: equal where both are exact, and where not, the first difference is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support import chat, hint, rows, showing, shown, soon
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_screen import coloured, screen_lines

from app.chat import ChatApp
from app.comparescreen import CompareScreen
from app.comparison import LONGEST, Comparison, excerpt, modes_of, parting
from engine.errors import BadRequest, EngineUnavailable
from engine.events import Timings
from engine.messages import ChatChunk
from engine.paths import Paths

KNOWN = ("auto", "ar", "s2-exact", "ngram")


class Engine:
    """Answers as it was told to, and remembers what it was asked."""

    def __init__(self, **texts: list[str]) -> None:
        self.texts, self.asked = texts, list[Mapping[str, Any]]()

    async def ask(self, options: Mapping[str, Any]) -> AsyncIterator[ChatChunk]:
        self.asked.append(options)
        for number, text in enumerate(self.texts[options["mode"].replace("-", "_")]):
            yield ChatChunk(text, tokens=(number,), timings=Timings(prompt_n=7, predicted_n=number + 1,
                            predicted_ms=100.0 * (number + 1)))  # fmt: skip
        yield ChatChunk(finish="eos", mode="ar")


async def compared(**texts: list[str]) -> tuple[Comparison, Engine]:
    engine = Engine(**texts)
    one, other = (name.replace("_", "-") for name in texts)
    comparison = Comparison(engine.ask, (one, other))
    await comparison.run(lambda: None)
    return comparison, engine


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [("", "", None), ("ab", "ab", None), ("ab", "ac", 1), ("ab", "abc", 2), ("", "x", 0)],
)
def test_where_texts_part(one: str, other: str, at: int | None) -> None:
    assert parting(one, other) == at


@pytest.mark.parametrize(
    ("words", "now", "modes", "rest"),
    [
        ("", "auto", ("ar", "auto"), ""),
        ("", "ar", ("ar", "s2-exact"), ""),
        ("ngram", "auto", ("ar", "ngram"), ""),
        ("ar", "ngram", ("ar", "ngram"), ""),
        ("s2-exact,ngram", "ar", ("s2-exact", "ngram"), ""),
        ("s2-exact ngram Name a river.", "ar", ("s2-exact", "ngram"), "Name a river."),
        ("ar,auto  Yes, or no?", "ar", ("ar", "auto"), "Yes, or no?"),
        ("Well, what is it?", "auto", ("ar", "auto"), "Well, what is it?"),
    ],
)
def test_which_modes_are_meant(words: str, now: str, modes: tuple[str, str], rest: str) -> None:
    assert modes_of(words, KNOWN, now) == (modes, rest)


@pytest.mark.parametrize("words", ["ar,ar", "ar ar", "ar,quick", "ar,auto,ngram"])
def test_what_cannot_be_compared_is_refused(words: str) -> None:
    with pytest.raises(BadRequest):
        modes_of(words, KNOWN, "ar")


async def test_both_are_asked_the_same_after_the_prompt_was_read_once() -> None:
    comparison, engine = await compared(ar=["a", "b"], s2_exact=["a", "b"])
    warm, first, second = engine.asked
    assert warm["max_tokens"] == 1
    assert (first["mode"], second["mode"]) == ("ar", "s2-exact")
    assert {**first, "mode": ""} == {**second, "mode": ""}
    assert first["seed"] == comparison.seed
    assert first["max_tokens"] == LONGEST
    assert comparison.verdict() == [
        "= equal: the same 2 characters in both modes",
        "s2-exact is 1.00× as fast as ar, measured once",
    ]
    assert all(side.first_s is not None for side in comparison.sides)
    assert comparison.as_json()["equal"] is True


async def test_a_mode_that_the_model_cannot_do_is_named() -> None:
    comparison, _ = await compared(ar=["a"], s2_exact=["a"])
    assert [side.figures for side in comparison.sides][1].endswith("ran as ar")
    assert "ran as" not in comparison.sides[0].figures


async def test_the_first_difference_is_shown() -> None:
    comparison, _ = await compared(ar=["the river\n", "ends \x1b[2Jhere"], ngram=["the river\n", "ebbs"])
    assert comparison.parted_at == 11
    assert comparison.verdict()[:3] == [
        "≠ different from character 12 on:",
        "  ar: the river⏎e▸nds here",
        "  ngram: the river⏎e▸bbs",
    ]
    assert excerpt("abc", 3) == "abc▸(ends here)"
    assert comparison.as_json()["first_difference"] == 11


def test_what_was_asked_for_stays() -> None:
    comparison = Comparison(Engine().ask, ("ar", "auto"), {"seed": 3, "max_tokens": 9})
    assert (comparison.seed, comparison.options["max_tokens"]) == (3, 9)
    assert comparison.as_json()["equal"] is False


# In the chat


def screen_of(app: ChatApp) -> CompareScreen:
    assert isinstance(app.screen, CompareScreen)
    return app.screen


async def open_comparison(app: ChatApp, words: str = "") -> CompareScreen:
    app.prompt.text = f"/compare {words}".strip()
    app.prompt._send()
    await soon(lambda: showing(app, CompareScreen))
    return screen_of(app)


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_exact_modes_are_equal_with_one_seed(ready: Paths, size: tuple[int, int]) -> None:
    app = chat(ready, temperature=0.8, max_tokens=48)
    async with app.run_test(size=size) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a story.")
        before = await answered(app)
        screen = await open_comparison(app, "ar,s2-exact")
        await soon(lambda: screen._comparison.done)
        first, second = screen._comparison.sides
        assert first.text
        assert first.text == second.text
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "= equal: the same" in text
        assert "s2-exact is" in text
        assert f"seed {screen._comparison.seed}" in text
        assert text.count("tok/s ·") == 2
        heads = [
            n for n, line in enumerate(text.splitlines()) if "1  ar =exact" in line or "2  s2-exact" in line
        ]
        assert len(heads) == (1 if size[0] > 100 else 2)
        await pilot.press("escape")
        await soon(lambda: len(app.screen_stack) == 1 and not app.is_answering)
        assert len(app.chats.open.all) == 2
        assert app.chats.open.last_answer is not None
        assert app.chats.open.last_answer.text == before
    app.close()
    assert len(rows(ready, "SELECT id FROM messages")) == 2


async def test_an_answer_that_is_taken_stands_beside_the_other(ready: Paths) -> None:
    app = chat(ready, temperature=0.8)
    async with app.run_test(size=(120, 40)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a story.")
        await answered(app)
        screen = await open_comparison(app, "ngram ar")
        await soon(lambda: screen._comparison.done)
        taken = screen._comparison.sides[0]
        await pilot.press("1")
        await soon(lambda: len(app.screen_stack) == 1 and not app.is_answering)
        entry = app.chats.open.last_answer
        assert entry is not None
        assert (entry.text, entry.mode, entry.status) == (taken.text, "ngram", "done")
        assert entry.place == "version 2 of 2"
        assert "version 2 of 2" in shown(app)
    app.close()
    assert rows(ready, "SELECT count(*), content FROM messages WHERE mode = 'ngram'") == [(1, taken.text)]


async def test_a_new_question_is_asked_only_if_an_answer_is_taken(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(120, 40)) as pilot:
        await soon(is_ready(app))
        app.prompt.text = "/compare"
        app.prompt._send()
        await soon(lambda: "no question yet" in hint(app))
        screen = await open_comparison(app, "Name a colour.")
        await pilot.press("2")  # not there yet
        await soon(lambda: screen._comparison.done)
        assert not app.chats.open.all
        await pilot.press("2")
        await soon(lambda: len(app.screen_stack) == 1 and not app.is_answering)
        question, answer = app.chats.open.entries
        assert (question.text, question.role, answer.mode) == ("Name a colour.", "user", "s2-exact")
        assert "┃ Name a colour." in shown(app)
        await ask(app, "And another?")
        assert await answered(app)
    app.close()
    assert len(rows(ready, "SELECT id FROM messages")) == 4


async def test_leaving_it_stops_the_engine(ready: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = chat(ready, **LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        screen = await open_comparison(app, "ar,auto Tell me a long story.")
        await soon(lambda: len(screen._comparison.sides[0].text) > 50)
        await pilot.pause()
        assert coloured(app) == []
        text = "\n".join(screen_lines(app))
        assert "comparing …" in text
        assert "waits" in text
        await pilot.press("escape")
        await soon(lambda: not app.is_answering)
        assert not app.chats.open.all
        await ask(app, "Name a colour.")
        await soon(lambda: app.asker.has_text)  # nobody else is before it
        await pilot.press("escape")
        await answered(app)
    app.close()


async def test_what_goes_wrong_is_said_there(ready: Paths) -> None:
    async def ask(_: Mapping[str, Any]) -> AsyncIterator[ChatChunk]:
        raise EngineUnavailable("the engine [b]closed[/b] the connection")
        yield ChatChunk()

    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await app.push_screen(CompareScreen("[b]why[/b]", Comparison(ask, ("ar", "auto")), ("ar", "auto")))
        await soon(lambda: "▲ the engine [b]closed[/b] the connection" in "\n".join(screen_lines(app)))
        assert "Compare: [b]why[/b]" in "\n".join(screen_lines(app))
        await pilot.press("1")
        assert isinstance(app.screen, CompareScreen)
    app.close()
