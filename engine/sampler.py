"""The target's sampler chain with its grammar, and the copy of both that drafts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.grammar import Candidates, Grammar
from engine.logprobs import logits_of
from engine.native import llama, race_sampler
from engine.request import Request, Sampling
from engine.vocab import Vocab

if TYPE_CHECKING:
    from engine.channels import Channels
    from engine.session import Session

_WINDOW = 1 << 16  # tokens the penalties look back at most


class Sampler:
    """A llama.cpp sampler chain. Each draw advances random state, penalties and grammar by one token.

    Two chains in the same state draw the same token from the same logits, which makes acceptance exact, and
    mostly the same from logits that differ a little, which lets a draft agree with the target at any
    temperature.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab: Vocab,
        *,
        ignore_eos: bool = False,
        grammar: str = "",
        channels: Channels | None = None,
    ) -> None:
        self._llama = llama()
        self._grammar = Grammar(grammar, vocab, channels) if grammar else None
        self._n_vocab = len(vocab)
        self._candidates = Candidates(self._n_vocab if grammar else 1)
        self._chain: Any = self._llama.llama_sampler_chain_init(
            self._llama.llama_sampler_chain_default_params()
        )
        if ignore_eos:
            self._forbid(vocab, vocab.ends())
        self._window = self._add_penalties(sampling, len(vocab))
        self._add_draw(sampling)

    @classmethod
    def of(cls, request: Request, session: Session) -> Sampler:
        """As `request` wants it."""
        return cls(
            request.sampling,
            session.vocab,
            ignore_eos=request.ignore_eos,
            grammar=request.grammar,
            channels=session.dialogue.channels if request.in_dialect else None,
        )

    def accept(self, tokens: Sequence[int]) -> None:
        """Tells the penalties what stood before the answer."""
        for token in tokens[-self._window :] if self._window else ():
            self._llama.llama_sampler_accept(self._chain, token)

    def draw(self, context: Any, row: int) -> int:
        """Draws the token that follows output row `row` of the last decode call, and accepts it."""
        if self._grammar is None:
            return int(self._llama.llama_sampler_sample(self._chain, context, row))
        return self._draw_by(self._grammar, context, row)

    def copy_from(self, other: Sampler) -> None:
        """Takes over the state of a chain built from the same settings."""
        self._llama.llama_sampler_copy(other._chain, self._chain)
        if self._grammar is not None and other._grammar is not None:
            self._grammar.copy_from(other._grammar)

    def close(self) -> None:
        if self._grammar is not None:
            self._grammar.close()
        if self._chain is not None:
            self._llama.llama_sampler_free(self._chain)
            self._chain = None

    def _draw_by(self, grammar: Grammar, context: Any, row: int) -> int:
        """Draws as if there were no grammar, which is mostly right, and among what it allows where not.

        To look at every token first would cost more than the pass. What is drawn has the same distribution,
        and depends on nothing but the state and the logits, so drafts and target still agree.
        """
        logits = logits_of(context, row, self._n_vocab)
        self._candidates.fill(logits)
        self._candidates.apply(self._chain)
        token = self._candidates.selected
        if not grammar.allows(token):
            self._candidates.fill(logits)
            grammar.restrict(self._candidates)
            self._candidates.apply(self._chain)
            token = self._candidates.selected
        grammar.accept(token)
        self._llama.llama_sampler_accept(self._chain, token)
        return token

    def _add(self, sampler: Any) -> None:
        self._llama.llama_sampler_chain_add(self._chain, sampler)

    def _forbid(self, vocab: Vocab, tokens: Sequence[int]) -> None:
        bias = (self._llama.llama_logit_bias * len(tokens))(*((token, float("-inf")) for token in tokens))
        self._add(self._llama.llama_sampler_init_logit_bias(len(vocab), len(tokens), bias))

    def _add_penalties(self, sampling: Sampling, n_vocab: int) -> int:
        active = (
            sampling.repeat_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )
        if not active or sampling.repeat_last_n == 0:
            return 0
        # -1 is "the whole context" in llama.cpp's flags; its sampler wants a number, and room for as many.
        window = min(sampling.repeat_last_n, _WINDOW) if sampling.repeat_last_n > 0 else _WINDOW
        self._add(
            self._llama.llama_sampler_init_penalties(
                n_vocab,
                window,
                sampling.repeat_penalty,
                sampling.frequency_penalty,
                sampling.presence_penalty,
            )
        )
        return window

    def _add_draw(self, sampling: Sampling) -> None:
        if sampling.is_greedy:
            self._add(self._llama.llama_sampler_init_greedy())
            return
        if sampling.top_k > 0:
            self._add(self._llama.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1.0:
            self._add(self._llama.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0.0:
            self._add(self._llama.llama_sampler_init_min_p(sampling.min_p, 1))
        self._add(self._llama.llama_sampler_init_temp(sampling.temperature))
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
        self._add(race_sampler(seed))
