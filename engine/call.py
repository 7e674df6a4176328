"""A request for an answer, as the engine's HTTP interface reads it: OpenAI's names, with llama.cpp's and our
extras."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import BadRequest
from engine.fields import Fields
from engine.message import THOUGHT, Message
from engine.request import EFFORTS, SPECULATION_FIELDS, Sampling, Speculation
from engine.schema import ANY_OBJECT, grammar_of
from engine.tools import Tools, parse_calls, parse_tools

_NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})

#: Fields that would change the answer and that this engine cannot honour, with their harmless values.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("functions", "function_call", "logit_bias", "grammar", "json_schema", "guided_json"),
            *("guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "web_search_options"),
            *("audio", "prediction", "suffix", "echo", "n_probs", "mirostat", "mirostat_v2"),
            *("dry_multiplier", "xtc_probability", "dynatemp_range", "prefill_assistant", "lora", "samplers"),
            *("min_tokens", "n_keep", "t_max_predict_ms", "n_indent", "use_beam_search"),
            *("bad_words", "stop_token_ids", "logits_processors", "adaptive_target", "documents"),
        ),
        _NOTHING,
    ),
    "n": (None, 1),
    "best_of": (None, 1),
    "typical_p": (None, 1),
    "modalities": (None, ["text"]),
    "top_n_sigma": (None, -1, 0),
    "length_penalty": (None, 1),
    "min_keep": (None, 0, 1),
    "verbosity": (None, "medium"),
}

_SAMPLING_NUMBERS = (
    *("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"),
)
_MOST_TOP_LOGPROBS = 20  # OpenAI's limit


@dataclass(frozen=True, slots=True)
class Call:
    """One generation request: either `messages` or a raw `prompt`.

    `continues`: the last message is an answer that goes on. `sampling`: what it says of a Sampling.
    `thinking`: whether the model thinks first, None for its template's default; `effort`: how much, one of
    EFFORTS. `splits_thoughts`: thoughts are answered apart, as `reasoning_content`.
    `grammar` and `top_logprobs` as in a Request of the decode loop.
    """

    messages: tuple[Message, ...]
    prompt: str | None
    sampling: Mapping[str, Any]
    speculation: Mapping[str, Any]
    max_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    timings_per_token: bool
    return_progress: bool
    return_tokens: bool
    return_blocks: bool
    request_id: str | None
    continues: bool = False
    thinking: bool | None = None
    effort: str | None = None
    splits_thoughts: bool = True
    grammar: str = ""
    tools: Tools | None = None
    top_logprobs: int | None = None

    def speculation_over(self, defaults: Speculation) -> Speculation:
        """The speculation asked for, `defaults` where the request says nothing."""
        return dataclasses.replace(defaults, **self.speculation)


def parse_chat(body: Mapping[str, Any]) -> Call:
    return _parse_call(Fields(body), messages=_messages(body.get("messages")), prompt=None)


def parse_completion(body: Mapping[str, Any]) -> Call:
    fields = Fields(body)
    prompt = fields.text("prompt")
    if prompt is None:
        raise fields.wrong("prompt", "a string")
    for name in ("tools", "reasoning_effort"):
        if fields.get(name):
            raise BadRequest(f"{name} without a conversation", hint="use /v1/chat/completions")
    return _parse_call(fields, messages=(), prompt=prompt)


def parse_count(body: Mapping[str, Any]) -> Call:
    """What is to be counted: `messages` or a `prompt`, as in a request for an answer."""
    return parse_completion(body) if body.get("messages") is None else parse_chat(body)


def parse_speculation(body: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the speculation fields that are set, each checked."""
    fields = Fields(body)
    asked = {
        "mode": fields.text("mode"),
        "draft_experts": fields.integer("draft_experts"),
        "draft_length": fields.integer("draft_length"),
        "cap": fields.integer("cap"),
        "resident_only": fields.switch("resident_only"),
        "prefetch": fields.switch("prefetch"),
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    Speculation(**asked)  # type: ignore[arg-type]
    return asked


def _parse_call(fields: Fields, *, messages: tuple[Message, ...], prompt: str | None) -> Call:
    _refuse_unsupported(fields)
    tools = parse_tools(fields)
    return _checked_call(
        fields,
        Call(
            messages=messages,
            prompt=prompt,
            sampling=_sampling(fields),
            speculation=parse_speculation({name: fields.get(name) for name in SPECULATION_FIELDS}),
            max_tokens=_max_tokens(fields),
            stop=_stop(fields),
            ignore_eos=fields.flag("ignore_eos"),
            stream=fields.flag("stream"),
            include_usage=fields.object("stream_options").flag("include_usage"),
            timings_per_token=fields.flag("timings_per_token"),
            return_progress=fields.flag("return_progress"),
            return_tokens=fields.flag("return_tokens"),
            return_blocks=fields.flag("return_blocks"),
            request_id=_request_id(fields),
            continues=_continues(fields, messages),
            thinking=_thinking(fields),
            effort=_effort(fields),
            splits_thoughts=_splits_thoughts(fields),
            grammar=_format(fields) or (tools.grammar() if tools else ""),
            tools=tools,
            top_logprobs=_chat_logprobs(fields) if prompt is None else _completion_logprobs(fields),
        ),
    )


def _checked_call(fields: Fields, call: Call) -> Call:
    """Refuses what makes sense alone but not together."""
    if call.grammar and call.ignore_eos:
        raise BadRequest("ignore_eos: an answer in a wanted format must be able to end")
    if call.tools and call.tools.forced and fields.get("response_format") not in (None, {"type": "text"}):
        raise BadRequest("response_format: the answer is to be a call of a tool already")
    if call.continues and (call.grammar or call.tools):
        raise BadRequest("continue_final_message: not together with tools or a wanted format")
    return call


def _format(fields: Fields) -> str:
    """The grammar of `response_format`, "" where any text will do."""
    value = fields.object("response_format")
    kind = value.text("type") or ("text" if fields.get("response_format") is None else "")
    if kind == "text":
        return ""
    if kind == "json_object" and value.get("schema") is None:
        return grammar_of(ANY_OBJECT)
    if kind != "json_schema":
        raise value.wrong("type", "text, json_object or json_schema")
    schema = value.object("json_schema").get("schema")
    if not isinstance(schema, dict):
        raise value.wrong("json_schema.schema", "an object")
    return grammar_of(schema)


def _chat_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if not fields.flag("logprobs"):
        if top:
            raise BadRequest("top_logprobs needs logprobs")
        return None
    if top is not None and not 0 <= top <= _MOST_TOP_LOGPROBS:
        raise fields.wrong("top_logprobs", f"from 0 to {_MOST_TOP_LOGPROBS}")
    return top or 0


def _completion_logprobs(fields: Fields) -> int | None:
    """The older call has a number where the newer one has a switch."""
    if fields.get("top_logprobs"):
        raise BadRequest("top_logprobs is a field of chat completions", hint="logprobs is the number here")
    top = None if fields.get("logprobs") is False else fields.integer("logprobs")
    if top is not None and not 0 <= top <= _MOST_TOP_LOGPROBS:
        raise fields.wrong("logprobs", f"from 0 to {_MOST_TOP_LOGPROBS}")
    return top


def _continues(fields: Fields, messages: tuple[Message, ...]) -> bool:
    """The name is that of vLLM and of Hugging Face's templates."""
    asked = fields.flag("continue_final_message")
    if asked and (len(messages) < 2 or messages[-1].role != "assistant"):
        raise BadRequest("continue_final_message: the last message is not an answer")
    return asked


def _thinking(fields: Fields) -> bool | None:
    options = fields.get("chat_template_kwargs")
    if options is None:
        return None
    if not isinstance(options, dict) or not set(options) <= {"enable_thinking", "reasoning_effort"}:
        raise fields.wrong(
            "chat_template_kwargs",
            "an object with enable_thinking or reasoning_effort, no others are supported",
        )
    value = options.get("enable_thinking")
    if value is not None and not isinstance(value, bool):
        raise fields.wrong("chat_template_kwargs.enable_thinking", "true or false")
    return value


def _effort(fields: Fields) -> str | None:
    """OpenAI's field, or the variable of the template."""
    options = fields.get("chat_template_kwargs") or {}
    for name, value in (
        ("reasoning_effort", fields.get("reasoning_effort")),
        ("chat_template_kwargs.reasoning_effort", options.get("reasoning_effort")),
    ):
        if value is not None:
            if value not in EFFORTS:
                raise fields.wrong(name, ", ".join(EFFORTS[:-1]) + f" or {EFFORTS[-1]}")
            return str(value)
    return None


def _splits_thoughts(fields: Fields) -> bool:
    """llama.cpp's switch: "none" leaves the tags of thoughts in the text."""
    value = fields.text("reasoning_format") or "auto"
    if value not in ("auto", "deepseek", "none"):
        raise fields.wrong("reasoning_format", "auto, deepseek or none")
    return value != "none" and fields.get("prompt") is None


def _refuse_unsupported(fields: Fields) -> None:
    for name, harmless in _UNSUPPORTED.items():
        if fields.get(name) not in harmless:
            raise BadRequest(f"{name} is not supported by this engine", hint="leave it out")


def _sampling(fields: Fields) -> Mapping[str, Any]:
    """What is asked for of a Sampling; the model may advise the rest."""
    asked: dict[str, Any] = {name: fields.number(name) for name in _SAMPLING_NUMBERS}
    asked |= {name: fields.integer(name) for name in ("top_k", "repeat_last_n", "seed")}
    if asked["seed"] == -1:  # llama.cpp's way to ask for a random one
        asked["seed"] = None
    given = {name: value for name, value in asked.items() if value is not None}
    Sampling(**given)
    return given


def _max_tokens(fields: Fields) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = fields.integer(name)
        if value is None:
            continue
        if value == -1:
            return None
        if value < 1:
            raise fields.wrong(name, "a positive number")
        return value
    return None


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None or value == "":
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or len(strings) > 64:
        raise fields.wrong("stop", "a string or a list of up to 64")
    if not all(isinstance(string, str) and string for string in strings):
        raise fields.wrong("stop", "a list of strings with text in them")
    return tuple(fields.clean("stop", string) for string in strings)


def _request_id(fields: Fields) -> str | None:
    value = fields.text("request_id")
    if value is not None and not 0 < len(value) <= 128:
        raise fields.wrong("request_id", "1 to 128 characters long")
    return value


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise BadRequest("messages is not a list with at least one message")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} is not an object")
    fields = Fields(value, f"{where}.")
    role = fields.text("role")
    if not role:
        raise fields.wrong("role", "a string")
    if value.get("function_call") or value.get("audio"):
        raise BadRequest(f"{where}: function_call and audio are not supported by this engine")
    more: dict[str, Any] = {}
    if value.get("tool_calls"):
        more["tool_calls"] = parse_calls(value["tool_calls"], f"{where}.tool_calls")
    if role == "assistant" and value.get(THOUGHT):
        more[THOUGHT] = fields.clean(THOUGHT, fields.text(THOUGHT) or "")
    if role == "tool":
        more |= {name: fields.text(name) for name in ("tool_call_id", "name") if value.get(name) is not None}
    content = "" if more.get("tool_calls") and value.get("content") is None else _content(fields)
    return Message("system" if role == "developer" else role, content, more)


def _content(fields: Fields) -> str:
    value = fields.get("content")
    if isinstance(value, str):
        return fields.clean("content", value)
    if not isinstance(value, list):
        raise fields.wrong("content", "a string or a list of text parts")
    parts = [part.get("text") if _is_text(part) else None for part in value]
    if not all(isinstance(part, str) for part in parts):
        raise fields.wrong("content", "a string or a list of text parts")
    return fields.clean("content", "".join(str(part) for part in parts))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"
