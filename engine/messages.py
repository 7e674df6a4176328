"""What the engine process answers, as its clients see it. Unknown fields of a newer engine are ignored."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from engine.events import Block, ExpertMap, FinishReason, Look, StoreFigures, Timings

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Major and minor number of the protocol. Programs refuse each other only on another major number.
API_VERSION = (1, 0)

#: Seconds between signs of life on an event stream, and how long a client waits for one.
PING_S = 3.0
READ_TIMEOUT_S = 15.0

#: Names the client in requests, so that its own telemetry stream does not make the engine "busy" for it.
CLIENT_HEADER = "s2-client"

State = Literal["empty", "loading", "ready", "error"]


@dataclass(frozen=True, slots=True)
class Handshake:
    """Who answers on the socket. `instance` is new for every engine process."""

    api: tuple[int, int]
    build: str
    instance: str
    pid: int
    capabilities: tuple[str, ...] = ()
    model: State = "empty"

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Handshake:
        major, minor = body["api"]
        return cls(
            api=(int(major), int(minor)),
            build=str(body["build"]),
            instance=str(body["instance"]),
            pid=int(body["pid"]),
            capabilities=tuple(body.get("capabilities", ())),
            model=body.get("model", "empty"),
        )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The loaded model. `size_bytes` counts all files of a split model, `n_ctx` is the context in use.

    `can_switch_thoughts`: requests may say whether the model thinks before it answers, `can_set_effort`:
    how much. `sampling`: what the model's header advises instead of our defaults.
    """

    path: str
    name: str
    arch: str
    size_bytes: int
    n_ctx: int
    n_ctx_train: int
    n_expert: int
    n_expert_used: int
    is_moe: bool
    can_switch_thoughts: bool = False
    can_set_effort: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanCard:
    """What the engine chose for this model on this machine, and why, by the name of the number.

    `budget_bytes` 0: no limit. `store`: experts are read from disk as they are needed.
    """

    n_ctx: int
    n_threads: int
    n_ubatch: int
    cache_type: str = "f16"
    budget_bytes: int = 0
    store: bool = False
    resident_bytes: int = 0
    expert_bytes: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """How requests that say nothing about it are decoded."""

    mode: str
    draft_experts: int
    draft_length: int
    cap: int = 0
    resident_only: bool = True
    prefetch: bool = True


@dataclass(frozen=True, slots=True)
class ModeCard:
    """A mode this engine knows. `exact`: its text is that of plain decode. `compared`: others are measured by
    it; it is there by name only."""

    name: str
    exact: bool
    drafts: bool
    summary: str
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the engine answers over TCP, and the file with the token it wants to be shown there."""

    host: str
    port: int
    token_file: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of the engine at one moment. `progress` of a load runs from 0 to 1.

    Memory of the process now, at most so far, and its budget, 0 for no limit; `slot_bytes` are set aside for
    experts that are read as they are needed, 0 where all are in memory; `kept_bytes` are conversations that
    made room for others in the cache.
    """

    instance: str
    state: State
    progress: float
    error: str | None
    model: ModelCard | None
    plan: PlanCard | None
    settings: Settings
    modes: tuple[ModeCard, ...]
    notices: tuple[str, ...]
    running: int
    queued: int
    clients: int
    timings: Timings | None
    rss_bytes: int
    peak_bytes: int = 0
    budget_bytes: int = 0
    slot_bytes: int = 0
    kept_bytes: int = 0

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Snapshot:
        return cls(
            instance=str(body["instance"]),
            state=cast("State", str(body["state"])),
            progress=float(body["progress"]),
            error=None if body.get("error") is None else str(body["error"]),
            model=_record(ModelCard, body.get("model")),
            plan=_record(PlanCard, body.get("plan")),
            settings=cast("Settings", _record(Settings, body["settings"])),
            modes=tuple(ModeCard(**_known(ModeCard, mode)) for mode in body.get("modes", ())),
            notices=tuple(map(str, body.get("notices", ()))),
            running=int(body["running"]),
            queued=int(body["queued"]),
            clients=int(body["clients"]),
            timings=timings_from_json(body.get("timings")),
            rss_bytes=int(body.get("rss_bytes", 0)),
            peak_bytes=int(body.get("peak_bytes", 0)),
            budget_bytes=int(body.get("budget_bytes", 0)),
            slot_bytes=int(body.get("slot_bytes", 0)),
            kept_bytes=int(body.get("kept_bytes", 0)),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """`processed` of `total` prompt tokens are done, `cache` of them came from an earlier request."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class ChatChunk:
    """One piece of an answer. The last one has `finish`; `text` is always whole characters.

    `reasoning`: thoughts, where the request did not ask to have them in the text. `ahead`: the request waits,
    and so many others come before it. `look`: what the loop did, where the request is watched.
    """

    text: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    progress: Progress | None = None
    timings: Timings | None = None
    finish: FinishReason | None = None
    mode: str | None = None
    exact: bool | None = None
    ahead: int | None = None
    look: Look | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ChatChunk:
        choice = body["choices"][0] if body.get("choices") else {}
        end = body.get("s2") or {}
        delta = choice.get("delta") or {}
        return cls(
            text=whole_text(delta.get("content") or choice.get("text")),
            reasoning=whole_text(delta.get("reasoning_content")),
            tokens=tuple(body.get("tokens") or ()),
            progress=progress_from_json(body.get("prompt_progress")),
            timings=timings_from_json(body.get("timings")),
            finish=end.get("finish"),
            mode=end.get("mode"),
            exact=end.get("exact"),
            ahead=end.get("ahead"),
            look=look_from_json(end.get("look")),
        )


def whole_text(value: object) -> str:
    """`value` if it is text, without halves of surrogate pairs: JSON can spell them, no file can."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def timings_from_json(body: Mapping[str, Any] | None) -> Timings | None:
    if body is None:
        return None
    return Timings(**{**_known(Timings, body), "store": _record(StoreFigures, body.get("store"))})


def progress_from_json(body: Mapping[str, Any] | None) -> Progress | None:
    progress: Progress | None = _record(Progress, body)
    return progress


def look_from_json(body: Mapping[str, Any] | None) -> Look | None:
    if body is None:
        return None
    blocks = tuple(
        Block(
            source=str(block["source"]),
            drafted=tuple(map(str, block["drafted"])),
            accepted=int(block["accepted"]),
            own=tuple(map(str, block["own"])),
            ms=float(block["ms"]),
        )
        for block in body["blocks"]
    )
    return Look(blocks, int(body.get("skipped", 0)), _experts(body.get("experts")))


def _experts(body: Mapping[str, Any] | None) -> ExpertMap | None:
    """None as well where the bits do not fit the numbers: a picture is not worth an answer."""
    if body is None:
        return None
    layers, each = int(body["layers"]), int(body["each"])
    try:
        bits = {
            name: base64.b64decode(body[name], validate=True)
            for name in ("used", "there", "coming")
            if name in body
        }
    except (binascii.Error, TypeError, ValueError):
        return None
    n_bytes = -(-layers * each // 8)
    whole = "used" in bits and layers > 0 and each > 0 and ("there" in bits) == ("coming" in bits)
    if not whole or any(len(value) != n_bytes for value in bits.values()):
        return None
    return ExpertMap(layers, each, **bits)


def settings_from_json(body: Mapping[str, Any]) -> Settings:
    return Settings(**_known(Settings, body))


#: What a field of a record may be, by its annotation. The engine may be somebody else's.
_TYPES: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "float | None": (int, float, type(None)),
}
_LARGEST = 1e15  # of any number: bytes of a machine, milliseconds of an answer


def _known(cls: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of record `cls` in `body`. Raises TypeError for one that cannot be."""
    types = {item.name: _TYPES.get(item.type, (object,)) for item in fields(cls)}
    known = {name: value for name, value in body.items() if name in types}
    for name, value in known.items():
        wild = isinstance(value, (int, float)) and not -_LARGEST < value < _LARGEST
        if wild or not isinstance(value, types[name]):
            raise TypeError(f"{name} is not what it should be")
    return known


def _record(cls: Any, body: Mapping[str, Any] | None) -> Any:
    return None if body is None else cls(**_known(cls, body))
