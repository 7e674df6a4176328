"""One request to the decode loop: the prompt's tokens and how to continue them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import BadRequest
from engine.reuse import BUDGET, Reuse


@dataclass(frozen=True, slots=True)
class Mode:
    """A row of the mode table: where its drafts come from, and what it promises. `reuses`: verify passes lean
    towards the experts their positions share, or, where it `restricts`, have no others. `expansion`: how
    far it drafts where nobody says, one of EXPANSIONS. `apart`: the model drafts in a context of its own.
    `compared`: others are measured by it; nobody would chat in it.
    """

    name: str
    drafters: tuple[str, ...]
    exact: bool
    summary: str
    reuses: bool = False
    restricts: bool = False
    expansion: str = "priced"
    apart: bool = False
    compared: bool = False

    def keeps_text(self, *, exact_kernels: bool) -> bool:
        """Whether its text is plain decode's. `exact_kernels`: a row's result does not depend on the rows
        beside it; without them a mode that drafts may round unlike plain decode."""
        return self.exact and (exact_kernels or not self.drafters)


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode(
            "auto",
            drafters=("ngram", "self"),
            exact=True,
            summary="whichever exact mode is fastest here, block by block; same text as ar",
        ),
        Mode("ar", drafters=(), exact=True, summary="plain decode, one token per pass"),
        Mode(
            "s2-exact",
            drafters=("self",),
            exact=True,
            summary="draft with fewer experts, verify in one pass; same text as ar",
        ),
        Mode(
            "ngram",
            drafters=("ngram",),
            exact=True,
            summary="draft what followed the same words before; same text as ar",
        ),
        Mode(
            "s2",
            drafters=("self",),
            exact=False,
            summary="another text than ar; as s2-exact, but verifying prefers shared experts: less to read",
            reuses=True,
            expansion="cascade",  # what leaning saves belongs to a block as a whole, not to one position
        ),
        Mode(
            "es",
            drafters=("self",),
            exact=True,
            summary="for comparison: draft a fixed length in a context apart; same text as ar",
            expansion="fixed",
            apart=True,
            compared=True,
        ),
        Mode(
            "cascade",
            drafters=("self",),
            exact=True,
            summary="for comparison: test some draft lengths and keep the fastest; same text as ar",
            expansion="cascade",
            compared=True,
        ),
        Mode(
            "moe-spec",
            drafters=("self",),
            exact=False,
            summary="for comparison: another text than ar; verifying has only so many experts to choose from",
            reuses=True,
            restricts=True,
            expansion="cascade",
            compared=True,
        ),
    )
}


#: Speculation that others offer and this does not, and why.
NOT_OFFERED = {
    "ls": "it needs a model trained to have layers skipped, without that its drafts are seldom accepted",
    "eagle3": "it needs a draft head that was trained for the model, in a file of its own",
    "mtp": "it needs layers that predict further tokens, and those of a file are not loaded here",
    "dflash": "it needs a diffusion model that was trained to draft for the model, in a file of its own",
}


def check_mode(name: str) -> str:
    """`name`, if there is such a mode. Raises BadRequest, with the reason if it is one that others offer."""
    if name in MODES:
        return name
    why = NOT_OFFERED.get(name)
    what = f"mode {name!r} is not offered: {why}" if why else f"unknown mode {name!r}"
    raise BadRequest(what, hint="one of " + ", ".join(MODES))


def is_lossy(mode: str) -> bool:
    """Whether `mode` changes the text on every backend; one that is not known here is not said to."""
    return mode in MODES and not MODES[mode].exact


#: The fields of a Speculation that a request may carry, and that settings are.
SPECULATION_FIELDS = ("mode", "draft_experts", "draft_length", "cap", "resident_only", "prefetch")

#: What decides how far a block is drafted: engine/expansion.py.
EXPANSIONS = ("priced", "utility", "unseen", "confidence", "fixed", "cascade", "tree")

#: Types of the KV cache, named as in llama.cpp, and their bytes per number.
CACHE_TYPES = {"f16": 2.0, "q8_0": 34 / 32}

#: How much a model thinks, where its chat template asks.
EFFORTS = ("low", "medium", "high")

MAX_DRAFT_LENGTH = (
    31  # root + drafts are verified in one pass of at most 32 rows, the width the exact kernels cover
)


#: How far a verify pass of `s2` leans, in margins of each position.
BETA = 0.75

_COLD = 1e-6  # of temperature: logits divided by less may leave F32's range


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's own sampler chain draws; names and defaults follow llama.cpp."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether only the likeliest token is left."""
        return self.temperature < _COLD

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repeat_penalty", self.repeat_penalty, 0.01, 100.0)
        _check("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _check_whole("top_k", self.top_k, 0, 1 << 30)
        _check_whole("repeat_last_n", self.repeat_last_n, -1, 1 << 30)
        if self.seed is not None:
            _check_whole("seed", self.seed, 0, (1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Which mode, and how it drafts: `draft_experts` = k' per token, `draft_length` tokens per block at most.

    `expansion`: what decides how many, one of EXPANSIONS, or "" for the mode's own. `resident_only`:
    drafts choose among the experts in memory and read nothing. `prefetch`: experts are read before they are
    asked for, by the next layer's router and by what drafts announce; it counts in every mode. `cap`, `beta`,
    `by_prefix`: of a Reuse, in modes that have one.
    """

    mode: str = "ar"
    draft_experts: int = 2
    draft_length: int = 8
    expansion: str = ""
    resident_only: bool = True
    prefetch: bool = True
    cap: int = 16
    beta: float = BETA
    by_prefix: bool = False

    @property
    def expands_by(self) -> str:
        """What decides how far it drafts."""
        return self.expansion or MODES[self.mode].expansion

    @property
    def reuse(self) -> Reuse | None:
        """How verify passes are biased; None where the mode does not."""
        mode = MODES[self.mode]
        beta = BUDGET if mode.restricts else self.beta
        return Reuse(self.cap, beta, self.by_prefix) if mode.reuses else None

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if self.expansion not in ("", *EXPANSIONS):
            raise BadRequest(f"unknown expansion {self.expansion!r}", hint="one of " + ", ".join(EXPANSIONS))
        _check_whole("draft_experts", self.draft_experts, 1, 1 << 16)
        _check_whole("draft_length", self.draft_length, 0, MAX_DRAFT_LENGTH)
        _check_whole("cap", self.cap, 1, 1 << 16)
        _check("beta", self.beta, 0.0, 100.0)


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` token ids; `max_tokens` None means until the model ends or the context is full.

    `continued`: how many tokens at the end of the prompt are the answer's own beginning. `grammar`: what the
    answer may be, in llama.cpp's GBNF with `root`; "" is anything. `top_logprobs`: each token comes with its
    logarithmic probability and those of so many of the likeliest, None without. `in_dialect`: the prompt asks
    for an answer in a conversation, which the model writes in its dialect.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    speculation: Speculation = field(default_factory=Speculation)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    continued: int = 0
    grammar: str = ""
    top_logprobs: int | None = None
    in_dialect: bool = False


def _check(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadRequest(f"{name} is {value!r}", hint=f"a number from {low:g} to {high:g}")


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} is {value!r}", hint=f"a whole number from {low} to {high}")
