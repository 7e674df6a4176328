"""From a JSON schema to rules that an answer is written by.

llama-cpp-python converts; what it would leave out in silence is refused here by name, and where its rules
would let an answer be no JSON, ours stand in.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from engine.errors import BadRequest

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_MOST_RULES = 64 << 10  # characters of a grammar
_DEEPEST = 1000  # brackets in each other; native code reads them by recursion
_MOST_REPEATED = 500
_DEEPEST_SCHEMA = 32

_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id")
) | {"$comment", "$defs", "definitions"}
_TYPES: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(),
    "integer": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_DEFINITIONS = ("$defs", "definitions")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_FORMATS = ("date", "time", "date-time", "uuid")
_SAFE_CHARACTER = r'[^"\\\x7F\x00-\x1F]'
_ESCAPES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " "}
_PATTERN_PARTS = re.compile(r"\[(?:\\.|[^\]\\])+\]|\\.|\(\?:|.", re.DOTALL)


def grammar_of(schema: Mapping[str, Any]) -> str:
    """The GBNF rules, from `root`, of a JSON text that fits `schema`. Raises BadRequest."""
    return rules_of({"root": schema})["root"]


def behind_thoughts(rules: str, closing: str) -> str:
    """Rules for an answer that stands behind the end of thoughts, where the prompt has opened them."""
    thought = f"thought ::= {not_beginning(closing)}"
    return "\n".join((f'root ::= thought* "{closing}" [ \\n]* answer', thought, renamed(rules, "answer")))


def not_beginning(closing: str) -> str:
    """A rule for a piece of text that can be no beginning of `closing`."""
    first, second = (re.sub(r"([\[\]\\^])", r"\\\1", sign) for sign in closing[:2])
    return f'[^{first}] | "{closing[0]}" [^{second}{first}]'


def rules_of(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Of each schema its rules; the first of them has the schema's name, all others begin with it too."""
    return {name: _rules(schema, name) for name, schema in schemas.items()}


def _rules(schema: Mapping[str, Any], name: str) -> str:
    checked = _checked(schema, "schema", 0)
    if "$ref" in checked:  # beside one the converter does not look for others
        checked = {"anyOf": [checked]}
    checked["$defs"] = {
        _definition(key, part): _checked(value, f"schema.{key}.{part}", 1)
        for key in _DEFINITIONS
        if isinstance(found := schema.get(key), dict)
        for part, value in found.items()
    }
    converter = _converter_class()(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    try:
        converter.visit(converter.resolve_refs(checked, "schema"), "")
        rules = str(converter.format_grammar())
    except RecursionError:
        raise _refused("it is nested too deeply") from None
    except Exception as error:  # the converter asserts, looks up and indexes what it does not expect
        raise _refused(str(error) or type(error).__name__) from None
    if len(rules) > _MOST_RULES or _depth(rules) > _DEEPEST:
        raise _refused("it is too large")
    return rules if name == "root" else renamed(rules, name)


def renamed(rules: str, name: str) -> str:
    """The same rules under names of their own, so that several sets can stand in one grammar."""
    own = {line.partition(" ::= ")[0] for line in rules.splitlines()}
    words = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-zA-Z0-9-]+')
    new = {rule: name if rule == "root" else f"{name}-{rule}" for rule in own}
    return words.sub(lambda found: new.get(found.group(), found.group()), rules)


def _checked(schema: Any, where: str, depth: int) -> dict[str, Any]:
    """`schema` in the words the converter knows; refuses what it would not heed."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise BadRequest(f"{where} is not a JSON schema")
    if depth > _DEEPEST_SCHEMA:
        raise _refused("it is nested too deeply")
    node = {key: value for key, value in schema.items() if key not in _NOTES}
    if "$ref" in node:
        return {"$ref": _reference(_only(node, ("$ref",), where)["$ref"], f"{where}.$ref")}
    for key in ("anyOf", "oneOf"):
        if key in node:
            return {"anyOf": _alternatives(_only(node, (key, "type"), where)[key], f"{where}.{key}", depth)}
    if "allOf" in node:
        parts = _only(node, ("allOf", "type"), where)["allOf"]
        if not isinstance(parts, list) or len(parts) != 1:
            raise BadRequest(f"{where}.allOf with more than one schema is not supported")
        return _checked(parts[0], f"{where}.allOf[0]", depth + 1)
    if "const" in node:
        return {"enum": [_only(node, ("const", "type"), where)["const"]]}
    if "enum" in node:
        values = _only(node, ("enum", "type"), where)["enum"]
        if not isinstance(values, list) or not values:
            raise BadRequest(f"{where}.enum is not a list of values")
        return {"enum": values}
    return _typed(node, where, depth)


def _reference(reference: Any, where: str) -> str:
    found = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if found is None:
        raise BadRequest(f"{where} is not supported", hint="refer to #/$defs/NAME")
    return f"#/$defs/{_definition(found[1], found[2].replace('~1', '/').replace('~0', '~'))}"


def _definition(key: str, name: str) -> str:
    """A name that no rule of the converter's has, in letters that rules may have."""
    return f"{key.strip('$')}-{name.encode('utf-8', 'surrogatepass').hex()}"


def _typed(node: dict[str, Any], where: str, depth: int) -> dict[str, Any]:
    kind = node.get("type")
    if isinstance(kind, list):
        if not kind:
            raise BadRequest(f"{where}.type is empty")
        rest = {key: value for key, value in node.items() if key != "type"}
        known = frozenset[str]().union(
            *(_TYPES.get(one, frozenset()) for one in kind if isinstance(one, str))
        )
        _only(rest, known, where)
        parts = [
            {k: v for k, v in rest.items() if isinstance(one, str) and k in _TYPES.get(one, ())}
            for one in kind
        ]
        return {
            "anyOf": [
                _typed({"type": one, **part}, where, depth) for one, part in zip(kind, parts, strict=True)
            ]
        }
    if kind is None:
        kind = next((name for name, keys in _TYPES.items() if keys & set(node)), None)
        if kind is None:
            _only(node, (), where)
            return {"anyOf": [{"type": name} for name in _TYPES]}
    if not isinstance(kind, str) or kind not in _TYPES:
        raise BadRequest(f"{where}.type is {kind!r}", hint="one of " + ", ".join(_TYPES))
    _only(node, _TYPES[kind] | {"type"}, where)
    shape = {"object": _object, "array": _array, "string": _string}.get(kind)
    return {"type": kind} if shape is None else shape({**node, "type": kind}, where, depth)


def _object(node: dict[str, Any], where: str, depth: int) -> dict[str, Any]:
    properties = node.get("properties", {})
    required = node.get("required", [])
    if not isinstance(properties, dict):
        raise BadRequest(f"{where}.properties is not an object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise BadRequest(f"{where}.required is not a list of names")
    missing = [name for name in required if name not in properties]
    if missing or "*" in properties:
        raise BadRequest(f"{where}.required names {missing or ['*']}, which the properties do not describe")
    more = node.get("additionalProperties")
    if isinstance(more, dict):
        more = _checked(more, f"{where}.additionalProperties", depth + 1)
    elif more is not None and not isinstance(more, bool):
        raise BadRequest(f"{where}.additionalProperties is neither a schema nor true or false")
    if not properties and more is None:
        return dict(ANY_OBJECT)
    if more and set(properties) - set(required):  # the converter forgets the comma before the others
        if isinstance(more, dict):
            raise BadRequest(f"{where}.additionalProperties is not supported beside optional properties")
        more = False  # they may be there, they need not
    parts = {
        name: _checked(part, f"{where}.properties.{name}", depth + 1) for name, part in properties.items()
    }
    value = {"anyOf": [{"type": name} for name in _TYPES]} if more is True else more
    return {"type": "object", "properties": parts, "required": required, "additionalProperties": value}


def _array(node: dict[str, Any], where: str, depth: int) -> dict[str, Any]:
    limits = _limits(node, "minItems", "maxItems", where)
    if "items" not in node and not limits:
        return {"type": "array"}
    return {
        "type": "array",
        "items": _checked(node.get("items", True), f"{where}.items", depth + 1),
        **limits,
    }


def _string(node: dict[str, Any], where: str, _: int) -> dict[str, Any]:
    limits = _limits(node, "minLength", "maxLength", where)
    if ("pattern" in node) + ("format" in node) + bool(limits) > 1:
        raise BadRequest(f"{where}: of pattern, format and lengths only one is supported at a time")
    if "format" in node:
        if node["format"] not in _FORMATS:
            raise BadRequest(f"{where}.format is not supported", hint="one of " + ", ".join(_FORMATS))
        return {"type": "string", "format": node["format"]}
    if "pattern" in node:
        return {"type": "string", "pattern": _pattern(node["pattern"], f"{where}.pattern")}
    return {"type": "string", **limits}


def _limits(node: dict[str, Any], low: str, high: str, where: str) -> dict[str, int]:
    found = {name: node[name] for name in (low, high) if node.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_REPEATED:
            raise BadRequest(
                f"{where}.{name} is {value!r}", hint=f"a whole number from 0 to {_MOST_REPEATED}"
            )
    if found.get(low, 0) > found.get(high, _MOST_REPEATED):
        raise BadRequest(f"{where}.{low} is more than its {high}")
    return {} if found == {low: 0} else found


def _pattern(pattern: Any, where: str) -> str:
    """A regular expression in the few signs that the converter has, and that cannot end a JSON string."""
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise BadRequest(f"{where} is no regular expression: {error}") from None
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])+\]", "", pattern)
    alternatives = bare.split("|") if "(" not in bare else [bare]
    if not all(part.startswith("^") and part.endswith("$") for part in alternatives):
        raise BadRequest(f"{where} must begin with ^ and end with $: it says what the whole string is")
    text = "".join(_pattern_part(part, where) for part in _PATTERN_PARTS.findall(pattern))
    if any(int(n) > _MOST_REPEATED for n in re.findall(r"\d+", "".join(re.findall(r"\{[^}]*\}", text)))):
        raise BadRequest(f"{where} repeats more than {_MOST_REPEATED} times")
    return f"^({text})$"


def _pattern_part(part: str, where: str) -> str:
    if part in ("^", "$"):
        return ""
    if part == "(?:":
        return "("
    if part.startswith("[") and len(part) > 2:
        return _character_class(part, where)
    if part.startswith("\\"):
        sign = part[1]
        if sign in _ESCAPES:
            return f"[{_ESCAPES[sign]}]"
        if not sign.isalnum() and sign not in '"\\^[]':
            return f"[{sign}]"
    elif part not in '"\\' and part.isprintable():
        return part
    raise BadRequest(f"{where}: {part!r} is not supported")


def _character_class(part: str, where: str) -> str:
    inside = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], f"\\{found[1]}"), part[1:-1])
    inside = re.sub(r"\\([^\w\\\[\]^-])", r"\1", inside)
    if re.search(r"\\[^\[\]]", inside) or "[" in inside.replace("\\[", ""):
        raise BadRequest(f"{where}: {part!r} is not supported")
    if inside.startswith("^"):
        return f'[{inside}\\"\\\\\\x00-\\x1F\\x7F]'
    if any(re.match(f"[{inside}]", sign) for sign in '"\\\n\t\x00\x7f'):
        raise BadRequest(f"{where}: {part!r} holds signs that cannot stand in a JSON string as they are")
    return f"[{inside}]"


def _alternatives(parts: Any, where: str, depth: int) -> list[dict[str, Any]]:
    if not isinstance(parts, list) or not parts:
        raise BadRequest(f"{where} is not a list of schemas")
    return [_checked(part, f"{where}[{at}]", depth + 1) for at, part in enumerate(parts)]


def _only(node: dict[str, Any], keys: Any, where: str) -> dict[str, Any]:
    unknown = sorted(set(node) - set(keys))
    if unknown:
        beside = " here" if unknown[0] in _TYPES["object"] | _TYPES["array"] | _TYPES["string"] else ""
        raise BadRequest(f"{where}.{unknown[0]} is not supported{beside}", hint="leave it out")
    return node


def _refused(reason: str) -> BadRequest:
    return BadRequest(f"the schema cannot be turned into a grammar: {reason}", hint="a simpler schema")


def _depth(rules: str) -> int:
    deepest = depth = 0
    for sign in rules:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


@functools.cache
def _converter_class() -> Any:
    """llama-cpp-python's converter, mended: its strings may hold line breaks, constants lose backslashes."""
    module = _converter_module()
    module.PRIMITIVE_RULES["char"].content = module.PRIMITIVE_RULES["char"].content.replace(
        r'[^"\\]', _SAFE_CHARACTER
    )
    base: Any = module.SchemaConverter

    class Converter(base):  # type: ignore[misc]
        def _format_literal(self, literal: str) -> str:
            escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"}
            return '"' + "".join(escapes.get(sign, sign) for sign in literal) + '"'

        def _generate_constant_rule(self, value: object) -> str:
            return self._format_literal(json.dumps(value, ensure_ascii=False)) + " space"

        def _add_rule(self, name: str, rule: str) -> str:
            return str(super()._add_rule(name, _SAFE_CHARACTER if name == "dot" else rule))

    return Converter


def _converter_module() -> ModuleType:
    """The module without its package, which would load the native library in whatever thread this is."""
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None
    assert package.submodule_search_locations
    path = f"{package.submodule_search_locations[0]}/llama_grammar.py"
    spec = importlib.util.spec_from_file_location("s2chat_llama_grammar", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
