"""Prompts of tasks, questions that can be checked, and code of a model: what it may and may not do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.bench.tasks import TASKS, prompts_for, tasks_of
from engine.bench.tasks_code import code_in, holds
from engine.bench.tasks_items import OWN, read_items
from engine.errors import BadRequest


def test_each_task_has_a_dozen_prompts_that_end_with_a_question() -> None:
    prompts = prompts_for(list(TASKS))
    assert [prompt.task for prompt in prompts[:14]] == list(TASKS) * 2
    for task in TASKS:
        mine = [prompt for prompt in prompts if prompt.task == task]
        assert len({tuple(message.content for message in prompt.messages) for prompt in mine}) == 12
        for prompt in mine:
            roles = [message.role for message in prompt.messages]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
            assert (len(roles) > 1) == (task == "MT")
    assert len(prompts_for(["HE", "TR"], 2)) == 4


def test_tasks_are_named_in_any_case() -> None:
    assert tasks_of("he,MT,he") == ["HE", "MT"]
    with pytest.raises(BadRequest, match="no task 'XX'"):
        tasks_of("MT,xx")


def test_our_questions_are_many_and_not_too_easy_to_please() -> None:
    items = read_items(OWN)
    assert len(items) >= 100
    assert len({item.question for item in items}) == len(items)
    for item in items:
        if item.accept is not None:
            assert not item.is_right("I do not know."), item
            assert not item.is_right(item.question), item  # said back


def test_our_checks_fail_where_a_function_returns_nothing() -> None:
    for item in read_items(OWN):
        if item.check:
            called = re.search(r"function (\w+\(.*?\)) that", item.question)
            assert called is not None
            assert not item.is_right(f"def {called.group(1)}: return None"), item


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        ("What is 7 + 5?", "7 + 5 = 12.", "7 + 5 = 120"),
        ("What is the capital of France?", "It's Paris!", "Parisians live there."),
        ("Is ice warm? Answer yes or no.", "No, ice is cold.", "I know: yes."),
        ("Which number comes next: 2, 4, 6, 8? Answer with the number only.", "2, 4, 6, 8, 10", "12"),
        (
            "Write a Python function add(a, b) that returns the sum of a and b.",
            "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.",
            "```python\ndef add(a, b):\n    return a - b\n```",
        ),
    ],
)
def test_answers_are_told_apart(question: str, right: str, wrong: str) -> None:
    (item,) = (item for item in read_items(OWN) if item.question == question)
    assert item.is_right(right)
    assert item.is_right(f"<think>{wrong}</think>{right}")
    assert not item.is_right(wrong)


def test_what_stands_before_the_answer_runs_before_it(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    line = {
        "question": "?",
        "kind": "code",
        "before": "import math",
        "check": "assert area(1) == math.pi",
        "tokens": 9,
    }
    file.write_text("\n" + json.dumps(line) + "\n")
    (item,) = read_items(file)
    assert item.tokens == 9
    assert item.is_right("def area(r): return math.pi * r * r")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ("[]", "a line is an object"),
        ('{"question": "?", "kind": "k"}', "either accept or check"),
        ('{"question": "?", "kind": "k", "accept": "a", "check": "b"}', "either accept or check"),
        ('{"question": "?", "accept": "a"}', "kind is no text"),
        ('{"question": "?", "kind": "k", "accept": "("}', "line 1"),
        ('{"question": "?", "kind": "k", "accept": "a", "token": 3}', "'token' is no field"),
        ('{"question": "?", "kind": "k", "accept": "a", "tokens": 0}', "tokens is no number"),
        ("", "has no questions"),
    ],
)
def test_a_wrong_file_is_told_where(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(line)
    with pytest.raises(BadRequest, match=re.escape(said)):
        read_items(file)


def test_code_is_the_first_block_or_all() -> None:
    assert code_in("So:\n```python\na = 1\n```\n```\nb\n```") == "a = 1\n"
    assert code_in("```py\na = 1") == "a = 1"  # cut off
    assert code_in("a = 1") == "a = 1"


@pytest.mark.parametrize(
    "code",
    [
        "import math, re, random, string, collections, itertools, functools, typing, dataclasses, json",
        "print('x' * 100)",
        "class A:\n    x: int = 3\nassert A().x == 3",
        "if __name__ == '__main__':\n    done = True\nassert done",
    ],
)
def test_code_may_compute_and_import(code: str) -> None:
    assert holds(code)


@pytest.mark.parametrize(
    "code",
    [
        "assert 1 == 2",
        "def f(:",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "print('done'); import os; os._exit(0)",
        "x = [0] * 10**9",
        "input()",
        "open('/tmp/s2chat-code', 'w')",
        "import os; os.remove('/tmp/s2chat-none')",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import os; os.kill(1, 0)",
        "import subprocess",
        "import socket",
        "import ctypes",
    ],
)
def test_code_may_do_nothing_else(code: str) -> None:
    assert not holds(code)


def test_code_that_never_ends_is_ended() -> None:
    assert not holds("while True: pass")
