"""Thoughts and answers are told apart wherever the text is cut, and tags elsewhere are text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys import load, write_llama

from engine.call import parse_chat
from engine.chat import Message
from engine.events import Done, Timings, Tokens
from engine.job import Started
from engine.replies import Reply
from engine.thoughts import Thoughts, opens_thoughts, split

CASES = [
    ("<think>why</think>because", "why", "because"),
    ("\n<think>\nwhy\n</think>\n\nbecause", "\nwhy\n", "\n\nbecause"),
    ("[THINK]why[/THINK]because", "why", "because"),
    ("<think>never closed", "never closed", ""),
    ("<think>almost </thin", "almost </thin", ""),
    ("<think></think>at once", "", "at once"),
    ("no thoughts", "", "no thoughts"),
    ("say `<think>` and\n```\n</think>\n```", "", "say `<think>` and\n```\n</think>\n```"),
    ("<thin ice", "", "<thin ice"),
    ("<", "", "<"),
    ("<think>a</think>b</think>c", "a", "b</think>c"),
    ("<|~t|>a<|~/t|>b<|~t|>c<|~/t|>d", "a\n\nc", "bd"),
    ("a<|~t|>b</think>", "b</think>", "a"),
    ("a<|~", "", "a<|~"),
]


@pytest.mark.parametrize(("text", "thought", "answer"), CASES)
def test_the_cut_does_not_matter(text: str, thought: str, answer: str) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            thoughts = Thoughts()
            pieces = [thoughts.feed(part) for part in (text[:first], text[first:second], text[second:])]
            pieces.append(thoughts.close())
            assert tuple("".join(part) for part in zip(*pieces, strict=True)) == (thought, answer)


def test_a_whole_text_loses_white_space_only_where_there_are_thoughts() -> None:
    assert split("<think>\nwhy\n</think>\n\nbecause\n") == ("why", "because")
    assert split("\n because\n") == ("", "\n because\n")


def test_a_continued_answer_is_split_where_it_goes_on() -> None:
    begun = {"role": "assistant", "content": "<think>why"}
    body = {"messages": [{"role": "user", "content": "hi"}, begun], "continue_final_message": True}
    reply = Reply(parse_chat(body), "id", "model")
    reply.take([Started(7, "ar"), Tokens(" not</think>so", (1,), Timings()), Done("eos", "", Timings())])
    message = reply.whole()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" not", "so")


def test_a_prompt_that_opens_thoughts_is_recognised() -> None:
    assert opens_thoughts("<|im_start|>assistant\n<think>\n") == "<think>\n"
    assert opens_thoughts("<|im_start|>assistant\n<think>\n\n</think>\n\n") == ""
    assert opens_thoughts("what does <think> mean?<|im_start|>assistant\n") == ""


def answer(stream: bool, pieces: tuple[str, ...], **fields: Any) -> tuple[str, str]:
    """What a client gets as reasoning and as content, when the template has opened the thoughts."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
    reply = Reply(parse_chat(body), "id", "model")
    reply.take([Started(7, "ar", "<think>\n")])
    found: list[dict[str, Any]] = []

    def read() -> None:
        lines = reply.events().decode().split("\n\n")
        found.extend(json.loads(line[6:])["choices"][0]["delta"] for line in lines if line[6:7] == "{")

    for piece in pieces:
        reply.take([Tokens(piece, (1,), Timings())])
        if stream:
            read()
    reply.take([Done("max_tokens", "", Timings())])
    if stream:
        read()
    else:
        found.append(reply.whole()["choices"][0]["message"])
    return tuple("".join(part.get(name, "") for part in found) for name in ("reasoning_content", "content"))  # type: ignore[return-value]


@pytest.mark.parametrize("stream", [True, False])
def test_a_closing_tag_alone_ends_thoughts_the_template_opened(stream: bool) -> None:
    assert answer(stream, ("why", "</th", "in", "k>be", "cause")) == ("\nwhy", "because")
    assert answer(stream, ("why not", "</thin")) == ("\nwhy not</thin", "")
    assert answer(stream, ("why</think>so",), reasoning_format="none") == ("", "<think>\nwhy</think>so")


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
)


def test_a_real_prompt_shows_what_its_template_opened(tmp_path: Path) -> None:
    with load(write_llama(tmp_path / "toy.gguf", template=TEMPLATE)) as session:
        hello = [Message("user", "hi")]
        assert session.dialogue.can_switch_thoughts
        assert session.dialogue.opens_thoughts(session.dialogue.tokenize_chat(hello)) == "<think>"
        assert session.dialogue.opens_thoughts(session.dialogue.tokenize_chat(hello, thinking=False)) == ""
        prompt, count = session.dialogue.tokenize_continued([*hello, Message("assistant", "<think>so")])
        assert session.vocab.text(prompt).endswith("<think>so")
        assert "<think><think>" not in session.vocab.text(prompt)
        assert count == 2
