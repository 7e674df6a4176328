"""Draft, verify, accept: the loop that answers a request.

S2-MoE, sections 4.1 and 4.3: the draft is the target itself with k' < k experts, in the target's own context
and KV cache. Its cells are rolled back before the verify pass, so nothing of a draft outlives its block. The
target's own seeded sampler draws at every position and the draft survives while it agrees, so the text is
that of plain decode at any temperature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from engine.channels import Reader
from engine.draft import Draft, Drafter
from engine.drafters import drafter_for
from engine.errors import BadRequest, Cancelled, ContextFull
from engine.events import Done, Event, FinishReason, Look, Prefill, Timings, TokenLogprob, Tokens
from engine.figures import figures_since
from engine.gain import Gain
from engine.logprobs import logits_of, logprob_of
from engine.native import CancelFlag
from engine.request import MODES, Request
from engine.sampler import Sampler
from engine.session import Session
from engine.store import StoreStats
from engine.text import TextStream
from engine.watch import Watch


def generate(
    session: Session,
    request: Request,
    cancel: CancelFlag,
    drafter: Drafter | None = None,
    watch: Watch | None = None,
) -> Iterator[Event]:
    """Answers `request`: Prefill events, Tokens per block, and one Done, also when cancelled.

    `drafter` stands in for the one of the request's mode; `watch` is shown the blocks. Closing the generator
    early is safe: at every yield the KV cache holds what was delivered and no draft.
    Raises ContextFull when the prompt does not fit, NativeError when a pass fails.
    """
    _check(session, request)
    answer = _Answer(session, request, drafter or drafter_for(session, request), watch or Watch())
    session.stop_on(cancel)
    try:
        try:
            yield from answer.prefill()
            yield answer.first()
            while answer.reason is None:
                yield answer.block()
        except Cancelled:
            answer.reason = "cancel"
        yield answer.done()
    finally:
        answer.close()


class _Answer:
    """The state of one answer. `root` is drawn but not in the KV cache yet."""

    def __init__(self, session: Session, request: Request, drafter: Drafter | None, watch: Watch) -> None:
        self._session, self._request, self._drafter, self._watch = session, request, drafter, watch
        self._text = TextStream(request.stop)
        self._reader = (
            Reader(session.dialogue.channels) if request.in_dialect and session.dialogue.channels else None
        )
        self._head = request.prompt[len(request.prompt) - request.continued :]
        if self._reader is not None:
            for token in self._head:
                self._reader.read(token)
        self._target = Sampler.of(request, session)
        self._target.accept(request.prompt)
        self._root = -1
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []  # of what the next event delivers
        self._started = time.perf_counter()
        self._prompt_ms = 0.0
        self._cached = 0
        self._store_before: StoreStats | None = None
        self._draft_n = self._accepted_n = self._verify_n = 0
        self._gain = Gain()
        self.reason: FinishReason | None = None

    def prefill(self) -> Iterator[Prefill]:
        """Brings the prompt into the KV cache, as far as it is not there, a micro-batch at a time."""
        session, prompt = self._session, self._request.prompt
        if session.store is not None:
            session.store.set_prefetch(self._request.speculation.prefetch)
        self._cached = session.resume(prompt, exact=MODES[self._request.speculation.mode].exact)
        yield Prefill(self._cached, len(prompt), self._cached)
        for at in range(self._cached, len(prompt), session.plan.n_ubatch):
            session.extend(prompt[at : at + session.plan.n_ubatch], all_logits=False)
            self._prompt_ms = self._elapsed_ms()
            yield Prefill(len(session.timeline), len(prompt), self._cached)
        if self._drafter is not None:
            self._drafter.begin()
            self._prompt_ms = self._elapsed_ms()
        self._started = time.perf_counter()
        self._store_before = session.store.stats() if session.store is not None else None

    def first(self) -> Tokens:
        """The first token follows from the prompt's own logits."""
        return self._deliver([self._draw(-1)])

    def block(self) -> Tokens:
        """Draft, verify, accept: one pass of the target and what it lets through."""
        started = time.perf_counter()
        draft = self._draft()
        draft_ms = 1e3 * (time.perf_counter() - started)
        self._watch.before_pass(self._session)
        drawn = self._verify(draft)
        accepted = len(draft.path(drawn))
        # A block that was cut short left its tail unjudged.
        cut = self.reason is not None and accepted == len(drawn)
        looked_at = accepted if cut else len(draft.tokens)
        ms = 1e3 * (time.perf_counter() - started)
        self._draft_n += looked_at
        self._accepted_n += accepted
        self._gain.add(len(drawn), ms, draft_ms, drafted=bool(draft.tokens))
        if self._drafter is not None:
            self._drafter.judged(draft, accepted, looked_at, ms)
        look = self._watch.after_pass(self._session, draft, looked_at, accepted, drawn, ms)
        return self._deliver(drawn, look)

    def _draft(self) -> Draft:
        """Proposes tokens to follow the root, no more than could still be delivered."""
        length = min(self._request.speculation.draft_length, self._room() - 1)
        if self._drafter is None or length < 1:
            return Draft()
        return self._drafter.propose(self._root, length, self._target)

    def _verify(self, draft: Draft) -> list[int]:
        """Decodes root and drafts in one pass; returns what the target draws while the drafts agree."""
        session, drafts = self._session, draft.tokens
        start = len(session.timeline)
        rows = (self._root, *drafts)
        reuse = self._request.speculation.reuse
        with session.leaning(reuse, draft.claims) if reuse and drafts else nullcontext():
            session.decode_full(rows, start, draft.parents)
        self._verify_n += 1
        drawn, path = list[int](), [0]
        while True:
            drawn.append(self._draw(path[-1]))
            row = draft.after(path[-1], drawn[-1])
            if self.reason is not None or row is None:
                break
            path.append(row)
        draft.drawn[:] = drawn
        # Rewind before yielding: a cancelled consumer must leave the cache as plain decode would have.
        kept = [rows[row] for row in path]
        if draft.parents:
            session.keep_branch(kept, path)
        else:
            session.keep(kept)
        if reuse:
            session.timeline.mark_lossy(start + 1)  # the root's row is what it is
        if len(kept) < len(rows) and not draft.parents:
            session.rewind(len(session.timeline))
        return drawn

    def done(self) -> Done:
        """The end: what the text still held back, and the final figures."""
        assert self.reason is not None
        text = self._last_text()
        self._pieces.append(text)
        in_dialect = self._reader is not None
        head = self._session.dialogue.text_of(self._head, in_dialect=in_dialect)
        self._session.dialogue.remember_reply(
            head + "".join(self._pieces), (*self._head, *self._ids), in_dialect=in_dialect
        )
        return Done(self.reason, text, self._timings(), self._watch.end(self._session))

    def close(self) -> None:
        """Whatever happened, the cache holds the timeline and nothing else, and nobody watches."""
        self._watch.end(self._session)
        self._session.rewind(len(self._session.timeline))
        self._session.target.end_branches()
        self._target.close()
        if self._drafter is not None:
            self._drafter.close()

    def _draw(self, row: int) -> int:
        """Draws from output row `row`; sets `reason` when the answer ends with this token."""
        token = self._target.draw(self._session.context, row)
        self._root = token
        if self._session.vocab.is_end(token):
            self.reason = "eos"
            return token
        self._ids.append(token)
        self._pieces.append(self._read(token))
        if self._reader is None or self._reader.said:
            self._note_logprob(row, token)
        if self._text.stopped:
            self.reason = "stop_string"
        elif self._request.max_tokens is not None and len(self._ids) >= self._request.max_tokens:
            self.reason = "max_tokens"
        elif len(self._request.prompt) + len(self._ids) > self._session.n_ctx:
            self.reason = "context"
        return token

    def _read(self, token: int) -> str:
        """What `token` adds to the text."""
        if self._reader is None:
            return self._text.push(self._session.vocab.piece(token))
        tag, piece = self._reader.read(token)
        return (self._text.mark(tag) if tag else "") + self._text.push(piece)

    def _last_text(self) -> str:
        """What the text still held back, and what ends it."""
        tag = self._reader.end() if self._reader is not None and self.reason == "eos" else ""
        return self._text.mark(tag) if tag else self._text.finish()

    def _deliver(self, drawn: Sequence[int], look: Look | None = None) -> Tokens:
        count = len(drawn) - (self.reason == "eos")
        text = "".join(self._pieces[len(self._pieces) - count :]) if count else ""
        ids = tuple(self._ids[len(self._ids) - count :]) if count else ()
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Tokens(text, ids, self._timings(), logprobs, look)

    def _note_logprob(self, row: int, token: int) -> None:
        n_top = self._request.top_logprobs
        if n_top is not None:
            vocab = self._session.vocab
            logits = logits_of(self._session.context, row, len(vocab))
            self._logprobs.append(logprob_of(logits, token, n_top, vocab))

    def _room(self) -> int:
        """Tokens that may still be drawn: by the request's limit and by the context."""
        room = self._session.n_ctx - len(self._session.timeline)
        if self._request.max_tokens is not None:
            room = min(room, self._request.max_tokens - len(self._ids))
        return room

    def _elapsed_ms(self) -> float:
        return 1e3 * (time.perf_counter() - self._started)

    def _timings(self) -> Timings:
        return Timings(
            prompt_n=len(self._request.prompt) - self._cached,
            cache_n=self._cached,
            prompt_ms=self._prompt_ms,
            predicted_n=len(self._ids),
            predicted_ms=self._elapsed_ms(),
            draft_n=self._draft_n,
            draft_n_accepted=self._accepted_n,
            verify_n=self._verify_n,
            context_n=len(self._session.timeline),
            gain=self._gain.over(self._session.experience.prices.plain_ms),
            store=figures_since(self._store_before, self._session.store),
        )


def _check(session: Session, request: Request) -> None:
    if not request.prompt:
        raise BadRequest("the prompt is empty", hint="write something")
    if len(request.prompt) >= session.n_ctx:
        raise ContextFull.for_prompt(str(len(request.prompt)), session.n_ctx)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise BadRequest(f"max_tokens is {request.max_tokens}", hint="1 or more")
    drafts = "self" in MODES[request.speculation.mode].drafters and session.can_draft
    if drafts and request.speculation.draft_experts > session.info.n_expert_used:
        raise BadRequest(
            f"{request.speculation.draft_experts} draft experts, the model uses {session.info.n_expert_used}",
            hint=f"1 to {session.info.n_expert_used}",
        )
