"""Functions a model may ask its caller to run: what a request says of them, and how answers name them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import BadRequest
from engine.fields import Fields
from engine.schema import ANY_OBJECT, rules_of

#: How Hermes, Qwen and many others write a call; templates that do so name the tag.
OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tools:
    """`functions`: each as OpenAI's request has it. `forced`: names of which one must be called, () for none.

    `parallel`: more than one may be called in an answer.
    """

    functions: tuple[Mapping[str, Any], ...]
    forced: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.functions]

    def grammar(self, form: Callable[[str], tuple[str, str]] | None = None) -> str:
        """Rules for an answer that is a call of one of the `forced`; "" where nothing is.

        `form`: the rules around the arguments of a call to the function of that name.
        """
        chosen = [tool["function"] for tool in self.functions if tool["function"]["name"] in self.forced]
        if not chosen:
            return ""
        schemas = {f"f{no}": function.get("parameters") or ANY_OBJECT for no, function in enumerate(chosen)}
        forms = [(form or _tagged)(function["name"]) for function in chosen]
        calls = [f"{head} f{no} {tail}" for no, (head, tail) in enumerate(forms)]
        return "\n".join(("root ::= " + " | ".join(calls), *rules_of(schemas).values()))


def parse_tools(fields: Fields) -> Tools | None:
    """None where the request has no tools, or wants none to be called."""
    value, choice = fields.get("tools"), fields.get("tool_choice")
    if not value:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice without tools")
        return None
    if not isinstance(value, list) or len(value) > _MOST_TOOLS:
        raise fields.wrong("tools", f"a list of up to {_MOST_TOOLS}")
    tools = tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(value))
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise BadRequest("tools: two functions have the same name")
    if choice == "none":
        return None
    parallel = fields.get("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    forced = _forced(choice, names, fields)
    if not forced and any(tool["function"].get("strict") for tool in value):
        raise BadRequest(
            "strict arguments need a tool_choice that makes the model call", hint="leave strict out"
        )
    return Tools(tools, forced, parallel)


def parse_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """The calls an earlier answer made, their arguments as templates want them: an object."""
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise BadRequest(f"{where} is not a list of calls")
    return [_earlier_call(call, f"{where}[{at}]") for at, call in enumerate(value)]


class CallReader:
    """Tells calls from the text of one answer, which comes piece by piece. `count`: calls so far."""

    def __init__(self, tools: Tools) -> None:
        self._names = tools.names
        self._most = None if tools.parallel else 1
        self._held = ""
        self.count = 0

    def feed(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """What `text` adds: text for people, and whole calls. Holds back what may become a call."""
        text, self._held = self._held + text, ""
        said, calls = "", list[dict[str, Any]]()
        while text:
            before, tag, rest = text.partition(OPEN)
            said += before.rstrip() if tag else before
            if not tag:
                break
            body, end, text = rest.partition(CLOSE)
            if not end:
                self._held = tag + rest
                return said, calls
            call = self._call(body)
            if call is None:
                said += tag + body + end
            elif self._most is None or self.count < self._most:
                calls.append({"index": self.count, **call})
                self.count += 1
            text = text.lstrip()
        keep = next((n for n in range(len(OPEN) - 1, 0, -1) if said.endswith(OPEN[:n])), 0)
        kept = len(said[: len(said) - keep].rstrip())  # white space before a call is no text
        self._held = said[kept:]
        return said[:kept], calls

    def close(self) -> tuple[str, list[dict[str, Any]]]:
        """The end: what was held back is text, or a call whose closing tag the model left out."""
        held, self._held = self._held, ""
        if self.count and not held.strip():
            return "", []
        call = self._call(held[len(OPEN) :]) if held.startswith(OPEN) else None
        if call is None or (self._most is not None and self.count >= self._most):
            return ("" if call else held), []
        self.count += 1
        return "", [{"index": self.count - 1, **call}]

    def _call(self, body: str) -> dict[str, Any] | None:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return None
        arguments = found.get("arguments", {}) if isinstance(found, dict) else None
        if not isinstance(arguments, dict) or found.get("name") not in self._names:
            return None
        function = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _tool(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") != "function":
        raise BadRequest(f"{where} is not a function, the only kind of tool supported")
    function = value.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"{where}.function is not an object")
    fields = Fields(function, f"{where}.function.")
    name = fields.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise fields.wrong("name", "1 to 64 letters, digits, - . or _")
    fields.text("description")
    fields.object("parameters")
    known = {
        key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None
    }
    fields.flag("strict")
    return {"type": "function", "function": known}


def _forced(choice: Any, names: list[str], fields: Fields) -> tuple[str, ...]:
    if choice in (None, "auto"):
        return ()
    if choice == "required":
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise fields.wrong("tool_choice", "none, auto, required or one of the tools")
    return (str(name),)


def _earlier_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise BadRequest(f"{where}.function.name is not a string")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{where}.function.arguments is not a JSON object")
    call_id = call.get("id")
    known = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **known} if isinstance(call_id, str) else known


def _tagged(name: str) -> tuple[str, str]:
    return literal(f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": '), literal(f"}}\n{CLOSE}")


def literal(text: str) -> str:
    """`text` as a grammar writes it."""
    return json.dumps(text, ensure_ascii=False)
