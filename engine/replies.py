"""Writes the answers of the engine's HTTP interface: OpenAI's shapes, with `timings` and `s2` added."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from engine.call import Call
from engine.errors import S2Error
from engine.events import OPENAI_FINISH, Done, Look, Prefill, Timings, TokenLogprob, Tokens
from engine.job import Item, Queued, Started
from engine.likelihoods import Likelihoods
from engine.thoughts import Thoughts
from engine.tools import CallReader
from engine.watch import MOST_BLOCKS

dumps = json.JSONEncoder(separators=(",", ":")).encode


def error_object(error: S2Error) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    detail = {"code": error.code, "message": error.message, "hint": error.hint, "type": kind}
    return {"error": detail}


def event(data: dict[str, Any]) -> bytes:
    """`data` as one server-sent event."""
    return f"data: {dumps(data)}\n\n".encode()


class Reply:
    """Gathers what the decode loop says about one request, and words it. `ended` after its last item."""

    def __init__(self, call: Call, request_id: str, model: str) -> None:
        self._call = call
        chat = call.prompt is None
        self._content = self._delta if chat else self._text
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": f"{kind}.chunk" if chat and call.stream else kind,
            "created": int(time.time()),
            "model": model,
        }
        self._started = Started(prompt_tokens=0, mode="")
        self._received_at = time.monotonic()
        self._texts: list[str] = []
        self._thoughts = Thoughts() if call.splits_thoughts else None
        if self._thoughts is not None and call.continues:
            self._thoughts.feed(call.messages[-1].content)  # it may go on thinking
        self._calls = CallReader(call.tools) if call.tools else None
        self._logprobs: list[TokenLogprob] = []
        self._likelihoods = Likelihoods(chat=chat)
        self._queued: Queued | None = None
        self._ids: list[int] = []
        self._progress: Prefill | None = None
        self._look: Look | None = None
        self.timings: Timings | None = None
        self.done: Done | None = None
        self.error: S2Error | None = None

    @property
    def ended(self) -> bool:
        return self.done is not None or self.error is not None

    def take(self, items: Iterable[Item]) -> None:
        """Adds what the decode loop said. Text is kept until it is worded; of progress only the latest."""
        for item in items:
            if isinstance(item, Tokens):
                self._texts.append(item.text)
                self._ids += item.ids
                self._logprobs += item.logprobs
                self.timings = item.timings
                self._add_look(item.look)
            elif isinstance(item, Prefill):
                self._progress = item
            elif isinstance(item, Queued):
                self._queued = item
            elif isinstance(item, Started):
                self._started = item
                if self._call.prompt is None and item.opens:
                    self._texts.append(item.opens)
            elif isinstance(item, Done):
                self._texts.append(item.text)
                self.timings = item.timings
                self._add_look(item.look)
                self.done = item
            else:
                self.error = item

    def _add_look(self, look: Look | None) -> None:
        if look is not None:
            self._look = look.after(self._look, MOST_BLOCKS)

    def first_events(self) -> bytes:
        if self._call.prompt is not None:
            return b""
        return event(self._chunk({"role": "assistant", "content": ""}))

    def events(self) -> bytes:
        """The events for everything taken since the last call; nothing when there is nothing to say."""
        found = []
        if self._queued is not None:
            found.append(self._queue_event(self._queued))
            self._queued = None
        if self._progress is not None:
            if self._call.return_progress:
                found.append(
                    event(self._chunk({}) | {"prompt_progress": self._progress_object(self._progress)})
                )
            self._progress = None
        delta = self._delta_of("".join(self._texts))
        wanted = self._call.return_tokens or self._call.timings_per_token
        if any(delta.values()) or self._logprobs or (self._ids and wanted) or self._look is not None:
            found.append(event(self._chunk(delta) | self._extras()))
        self._texts.clear()
        self._ids.clear()
        self._logprobs.clear()
        self._look = None
        if self.error is not None:
            found.append(event(error_object(self.error)))
        elif self.done is not None:
            found += self._last_events(self.done)
        return b"".join(found)

    def whole(self) -> dict[str, Any]:
        """The answer as one object, once `done` is there."""
        done = self.done
        assert done is not None
        delta = self._delta_of("".join(self._texts))
        answer: dict[str, Any] = {**self._head, "choices": [self._whole_choice(delta, done)]}
        answer |= {"usage": self._usage(done.timings), **self._end(done)}
        return answer | ({"tokens": self._ids} if self._call.return_tokens else {})

    def _last_events(self, done: Done) -> list[bytes]:
        found = [event(self._chunk({}, finish=self._finish(done)) | self._end(done))]
        if self._call.include_usage:
            found.append(event({**self._head, "choices": [], "usage": self._usage(done.timings)}))
        found.append(b"data: [DONE]\n\n")
        return found

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._content(delta, finish) | self._likely()]}
        # OpenAI: asking for usage puts a null into every chunk but the last.
        return chunk | ({"usage": None} if self._call.include_usage else {})

    @staticmethod
    def _delta(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "finish_reason": finish}

    @staticmethod
    def _text(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": delta.get("content", ""), "logprobs": None, "finish_reason": finish}

    def _finish(self, done: Done) -> str:
        if self._calls is not None and self._calls.count and OPENAI_FINISH[done.reason] == "stop":
            return "tool_calls"
        return OPENAI_FINISH[done.reason]

    def _likely(self) -> dict[str, Any]:
        """The choice's log-probabilities, where they are wanted and tokens have come."""
        return {"logprobs": self._likelihoods.of(self._logprobs)} if self._logprobs else {}

    def _queue_event(self, queued: Queued) -> bytes:
        """Our own clients are told in a chunk, stock ones in a comment."""
        if self._call.return_progress:
            return event(self._chunk({}) | {"s2": {"ahead": queued.ahead}})
        return f": {queued.ahead} ahead in the queue\n\n".encode()

    def _delta_of(self, text: str) -> dict[str, Any]:
        """`text` as a chunk has it, thoughts apart from the answer."""
        if self._thoughts is None:
            return self._said(text)
        pieces = [self._thoughts.feed(text)]
        if self.ended:
            pieces.append(self._thoughts.close())
        thought, content = ("".join(part) for part in zip(*pieces, strict=True))
        return self._said(content) | ({"reasoning_content": thought} if thought else {})

    def _said(self, text: str) -> dict[str, Any]:
        """`text` without calls of tools, and the calls."""
        if self._calls is None:
            return {"content": text}
        content, calls = self._calls.feed(text)
        if self.ended:
            rest, last = self._calls.close()
            content, calls = content + rest, calls + last
        return {"content": content} | ({"tool_calls": calls} if calls else {})

    def _whole_choice(self, delta: dict[str, Any], done: Done) -> dict[str, Any]:
        choice = self._content(delta, self._finish(done)) | self._likely()
        if "delta" in choice:
            message = choice["message"] = {"role": "assistant", **choice.pop("delta")}
            if calls := message.get("tool_calls"):
                message["content"] = message["content"] or None
                message["tool_calls"] = [{k: v for k, v in one.items() if k != "index"} for one in calls]
        return choice

    def _extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = {"tokens": self._ids} if self._call.return_tokens else {}
        if self._call.timings_per_token and self.timings is not None:
            extras["timings"] = self.timings.as_json()
        if self._look is not None:
            extras["s2"] = {"look": self._look.as_json()}
        return extras

    def _progress_object(self, progress: Prefill) -> dict[str, Any]:
        elapsed_ms = round(1e3 * (time.monotonic() - self._received_at), 1)
        return {
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.done,
            "time_ms": elapsed_ms,
        }

    def _end(self, done: Done) -> dict[str, Any]:
        return {
            "timings": done.timings.as_json(),
            "s2": {"mode": self._started.mode, "exact": self._started.exact, "finish": done.reason},
        }

    def _usage(self, timings: Timings) -> dict[str, Any]:
        prompt, completion = self._started.prompt_tokens, timings.predicted_n
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": timings.cache_n},
        }
