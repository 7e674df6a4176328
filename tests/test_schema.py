"""JSON schemas as grammars: what fits may come to its end, nothing else may, what is unknown is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from toys import load, write_llama

from engine.errors import BadRequest
from engine.grammar import Grammar
from engine.schema import behind_thoughts, grammar_of
from engine.tools import Tools
from engine.vocab import Vocab

NODE = {
    "$ref": "#/$defs/string",  # a name the converter uses itself
    "$defs": {
        "string": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/string"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
        }
    },
}
ITEMS = {"type": "array", "items": {"type": ["number", "null"]}, "minItems": 1, "maxItems": 2}
CASES: list[tuple[Any, list[str], list[str]]] = [
    (
        {"type": "object"},
        ["{}", '{"a": [1, -2.5e3, null, true, "x\\n"]}'],
        ["[]", '{"a": "x\ny"}', '{"a": "\\x"}'],
    ),
    ({}, ["1", '"a"', "{}", "[[]]", "null"], ["", "x"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"äöü"'], ['"a"', '"abcd"']),
    (
        {"enum": ['a"b\\c', "x\n", 3, None, "é"]},
        ['"a\\"b\\\\c"', '"x\\n"', "3", "null", '"é"'],
        ['"x\n"', "4"],
    ),
    ({"const": {"a": [1]}}, ['{"a": [1]}'], ['{"a": [2]}']),
    (ITEMS, ["[1]", "[null, 2]"], ["[]", "[1,2,3]", '["a"]']),
    (NODE, ['{"v": 1, "next": {"v": 2, "next": null}}'], ['{"v": 1}', '{"v": 1, "next": 2}']),
    (
        {"type": "string", "pattern": r"^\d{2}[a-c]$|^no$"},
        ['"12a"', '"no"'],
        ['"1a"', '"12"', '"12ano"'],
    ),
    (
        {"type": "string", "pattern": r"^[^,]+\.(?:x|y)?$"},
        ['"a b."', '"ab.x"'],
        ['"a,."', '"a".', '"a\n."', '"a\\."'],
    ),
    ({"type": "string", "pattern": "^.*$"}, ['"any thing"'], ['"a" b', '"a\n"']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-2-29"', '"today"']),
    (
        {
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": {"type": "null"},
        },
        ['{"a": true}', '{"a": false, "b": null}', '{"a": false, "b": null, "c": null}'],
        ["{}", '{"a": 1}', '{"a": true, "b": 1}', '{"a": true "b": null}'],
    ),
    (
        {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": True},
        ["{}", '{"a": null}', '{"b": null}', '{"a": null, "b": null}'],
        ['{"a": null "b": null}', '{"a": 1}'],
    ),
    ({"allOf": [{"type": "integer"}], "title": "n", "default": 3}, ["-12"], ["1.5", "01"]),
]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocab]:
    with load(write_llama(tmp_path_factory.mktemp("toy") / "toy.gguf")) as session:
        yield session.vocab


def accepts(vocab: Vocab, rules: str, text: str) -> bool:
    """Whether `text` and then an end may come, token by token."""
    grammar = Grammar(rules, vocab)
    try:
        for token in (
            *vocab.tokenize(text, add_special=False, parse_special=False, continues=True),
            vocab.eos,
        ):
            if not grammar.allows(token):
                return False
            grammar.accept(token)
    finally:
        grammar.close()
    return True


@pytest.mark.parametrize(("schema", "fitting", "unfitting"), CASES, ids=lambda value: json.dumps(value)[:40])
def test_what_fits_is_allowed_and_nothing_else(
    vocab: Vocab, schema: Any, fitting: list[str], unfitting: list[str]
) -> None:
    rules = grammar_of(schema)
    assert [text for text in fitting if not accepts(vocab, rules, text)] == []
    assert [text for text in unfitting if accepts(vocab, rules, text)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (5, "JSON schema"),
        ({"type": "fish"}, "type"),
        ({"type": "integer", "minimum": 3}, "schema.minimum"),
        ({"properties": {"a": {"multipleOf": 2}}}, "schema.properties.a.multipleOf"),
        ({"type": "object", "required": ["a"]}, "required"),
        ({"patternProperties": {}}, "patternProperties"),
        ({"if": {}}, "schema.if"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, "additionalProperties"),
        ({"allOf": [{}, {}]}, "allOf"),
        ({"anyOf": []}, "anyOf"),
        ({"enum": []}, "enum"),
        ({"enum": [1], "minLength": 2}, "minLength"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "maxItems": 100_000}, "maxItems"),
        ({"type": "string", "pattern": "^(a$"}, "pattern"),
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"type": "string", "pattern": r"^\p{L}$"}, "pattern"),
        ({"type": "string", "pattern": "^[ -~]$"}, "pattern"),
        ({"type": "string", "pattern": r"^(?=a)b$"}, "grammar"),
        ({"type": "string", "pattern": "^a{9999}$"}, "pattern"),
        ({"type": "string", "format": "email"}, "format"),
        ({"$ref": "https://example.com/s"}, "$ref"),
        ({"$ref": "#/$defs/none"}, "grammar"),
    ],
)
def test_what_would_not_be_heeded_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        grammar_of(schema)
    assert named in caught.value.message


def test_a_schema_without_an_end_is_refused_by_native_code(vocab: Vocab) -> None:
    with pytest.raises(BadRequest, match="no end"):
        Grammar(grammar_of({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), vocab)


def test_nesting_cannot_break_the_reader() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(BadRequest):
        grammar_of(schema)


@pytest.mark.parametrize("closing", ["</think>", "[/THINK]"])
def test_thoughts_come_first_where_the_prompt_opened_them(vocab: Vocab, closing: str) -> None:
    rules = behind_thoughts(grammar_of({"enum": ["yes", "no"]}), closing)
    assert accepts(vocab, rules, f'why [not], 1 < 2 and "so"{closing}\n\n"yes"')
    assert not accepts(vocab, rules, '"yes"')
    assert not accepts(vocab, rules, f"why{closing}maybe")


def test_one_of_several_tools_is_called_with_its_own_arguments(vocab: Vocab) -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"x": {"type": kind}}, "required": ["x"]}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    rules = Tools((tool("a", "integer"), tool("b", "string"), tool("c", "null")), forced=("a", "b")).grammar()

    def call(name: str, value: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": {value}}}}}\n</tool_call>'

    assert accepts(vocab, rules, call("a", "1"))
    assert accepts(vocab, rules, call("b", '"1"'))
    for wrong in (call("a", '"1"'), call("b", "1"), call("c", "null"), "no"):
        assert not accepts(vocab, rules, wrong)
