"""Conversations the teacher writes: many at once, with its distribution at every token kept as it goes.

Each slot of the batch feeds one token a step: the next of the prompt, or the one just drawn. So prompts
need no pass of their own, a slot is refilled the moment its conversation ends, and the figures that
training wants are those the draw was made from: no second pass over what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name

from training.geometry import HEAD, N_EMBD, N_HEAD, N_HEAD_KV, N_LAYER
from training.head import summary
from training.progress import Progress
from training.shelf import ASSISTANT, FRAME, TOP, USER, Shelf
from training.trunk import Trunk, Turns, norm

END = 2  # <|im_end|>
MAX_TOKENS = 448  # of a conversation
_LOOP, _LOOPS = 6, 4  # so many repetitions of so many tokens among the last 64 are a loop
_TOP_P, _MIN_P = 0.95, 0.05  # as the chat draws


@dataclass(frozen=True)
class Talk:
    """A conversation to be written: the prompt up to each answer, as token ids, the role of each, and how
    to draw."""

    turns: Sequence[tuple[Sequence[int], Sequence[int]]]
    temperature: float


@dataclass
class _Slot:
    talk: Talk
    turn: int = 0
    fed: int = 0  # tokens of the present prompt
    answer: int = 0  # tokens of the present answer
    tokens: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # where the figures of each token lie
    next: int = -1


class Writer:
    """`slots` conversations at a time, answers of up to `answer` tokens."""

    def __init__(self, trunk: Trunk, slots: int, answer: int) -> None:
        self._trunk, self._n, self._answer = trunk, slots, answer
        shape = (N_LAYER, slots, N_HEAD_KV, MAX_TOKENS, HEAD)
        self._keys, self._values = (torch.zeros(shape, dtype=trunk.dtype, device=trunk.device) for _ in "kv")

    @torch.inference_mode()
    def write(self, talks: Sequence[Talk], seed: int, progress: Progress) -> Shelf:
        """All of `talks`, in the order in which they end."""
        generator = torch.Generator(self._trunk.device).manual_seed(seed)
        waiting = list(reversed(talks))
        slots = [_Slot(waiting.pop()) for _ in range(min(self._n, len(waiting)))]
        done: list[_Slot] = []
        figures = _Figures()
        while slots:
            fed = [self._feed(slot) for slot in slots]
            logits = self._trunk.logits(self._pass(fed, [len(slot.tokens) - 1 for slot in slots]))
            ids, logp, tail = summary(logits)
            drawn = self._draw(slots, ids, logp, generator)
            first = figures.add(ids, logp, tail)
            for index, slot in enumerate(slots):
                slot.rows.append(first + index)
                self._take(slot, drawn[index])
            progress.add(len(slots))
            self._refill(slots, waiting, done)
        return _shelf(done, figures)

    def _feed(self, slot: _Slot) -> int:
        prompt, roles = slot.talk.turns[slot.turn]
        if slot.fed < len(prompt):
            token, role = prompt[slot.fed], roles[slot.fed]
            slot.fed += 1
        else:
            token, role = slot.next, ASSISTANT
            slot.answer += 1
        slot.tokens.append(token)
        slot.roles.append(role)
        return token

    def _take(self, slot: _Slot, drawn: int) -> None:
        """Notes what was drawn, if the prompt is over; an answer's end opens the next turn."""
        prompt, _ = slot.talk.turns[slot.turn]
        if slot.fed < len(prompt):
            return
        if slot.answer and slot.tokens[-1] == END:
            slot.turn, slot.fed, slot.answer = slot.turn + 1, 0, 0
        slot.next = drawn

    def _over(self, slot: _Slot) -> bool:
        if slot.turn >= len(slot.talk.turns) or len(slot.tokens) >= MAX_TOKENS:
            return True
        return slot.answer >= self._answer or (
            slot.answer > 64 and slot.answer % 8 == 0 and _loops(slot.tokens)
        )

    def _refill(self, slots: list[_Slot], waiting: list[Talk], done: list[_Slot]) -> None:
        for index in reversed(range(len(slots))):
            if not self._over(slots[index]):
                continue
            done.append(slots[index])
            if waiting:
                slots[index] = _Slot(waiting.pop())
                continue
            last = len(slots) - 1
            if index != last:
                for cache in (self._keys, self._values):
                    cache[:, index] = cache[:, last]
                slots[index] = slots[last]
            slots.pop()

    def _pass(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """The final state F32 [n, 576] of one more token in each of the first n slots."""
        trunk, n = self._trunk, len(tokens)
        at = torch.tensor(positions, device=trunk.device)
        longest = -(-(max(positions) + 1) // 32) * 32
        seen = (torch.arange(longest, device=trunk.device) <= at[:, None])[:, None, None, :]
        rows, turns = torch.arange(n, device=trunk.device), Turns(at)
        hidden = trunk.embed(torch.tensor(tokens, device=trunk.device))
        for layer, keys, values in zip(trunk.layers, self._keys, self._values, strict=True):
            mixed = F.linear(norm(hidden, layer.attn_norm).to(trunk.dtype), layer.qkv)
            query, key, value = mixed.split((N_EMBD, N_HEAD_KV * HEAD, N_HEAD_KV * HEAD), dim=1)
            keys[rows, :, at] = turns.apply(key.view(n, N_HEAD_KV, HEAD))
            values[rows, :, at] = value.view(n, N_HEAD_KV, HEAD)
            # The three query heads of a key head stand as three positions.
            query = turns.apply(query.view(n, N_HEAD, HEAD)).view(n, N_HEAD_KV, -1, HEAD)
            found = F.scaled_dot_product_attention(
                query, keys[:n, :, :longest], values[:n, :, :longest], attn_mask=seen
            )
            hidden = hidden + F.linear(found.reshape(n, N_EMBD), layer.out).float()
            hidden = trunk.feed(layer, hidden)
        return trunk.final(hidden)

    def _draw(
        self, slots: Sequence[_Slot], ids: torch.Tensor, logp: torch.Tensor, generator: torch.Generator
    ) -> list[int]:
        """One token for each slot: temperature, top-p and min-p over the likeliest 128; the best at
        temperature 0."""
        heat = torch.tensor([slot.talk.temperature for slot in slots], device=logp.device)[:, None]
        p = logp.exp()
        before = p.cumsum(1) - p
        kept = (before < _TOP_P) & (p >= _MIN_P * p[:, :1])
        share = (logp / heat.clamp(min=1e-3)).masked_fill_(~kept, -torch.inf).softmax(1)
        ends = share.cumsum(1)
        luck = torch.rand(len(slots), 1, generator=generator, device=logp.device) * ends[:, -1:]
        place = (ends <= luck).sum(1, keepdim=True).clamp_(max=TOP - 1)
        place = torch.where(heat > 0, place, torch.zeros_like(place))
        return ids.gather(1, place)[:, 0].tolist()


def _loops(tokens: Sequence[int]) -> bool:
    last = list(tokens[-64:])
    end = last[-_LOOP:]
    return sum(last[at : at + _LOOP] == end for at in range(len(last) - _LOOP + 1)) >= _LOOPS


class _Figures:
    """The teacher's figures of all rows so far, in few large arrays: many small ones that stay, between
    large ones that go, leave the heap in pieces, and it grew to gigabytes."""

    def __init__(self) -> None:
        self._n = 0
        self._ids = np.empty((1 << 15, TOP), np.uint16)
        self._logp = np.empty((1 << 15, TOP), np.float16)
        self._tail = np.empty(1 << 15, np.float16)

    def add(self, ids: torch.Tensor, logp: torch.Tensor, tail: torch.Tensor) -> int:
        """Takes in rows; returns the number of the first."""
        first, end = self._n, self._n + len(ids)
        while end > len(self._tail):
            for name in ("_ids", "_logp", "_tail"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate((array, np.empty_like(array))))
        self._ids[first:end] = ids.cpu().numpy()
        self._logp[first:end] = logp.cpu().numpy()
        self._tail[first:end] = tail.cpu().numpy()
        self._n = end
        return first

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._ids, self._logp, self._tail


def _shelf(done: Sequence[_Slot], figures: _Figures) -> Shelf:
    ids, logp, tail = figures.arrays
    rows = np.array([row for slot in done for row in slot.rows])
    return Shelf(
        np.array([token for slot in done for token in slot.tokens], dtype=np.uint16),
        np.array([role for slot in done for role in slot.roles], dtype=np.uint8),
        np.array([len(slot.tokens) for slot in done], dtype=np.int32),
        ids[rows], logp[rows], tail[rows],
    )  # fmt: skip


def talk_of(turns: Sequence[tuple[Sequence[int], int]], temperature: float) -> Talk:
    """`turns`: prompts with the number of tokens at their head that are the frame's, not the user's."""
    marked = [(ids, [FRAME] * frame + [USER] * (len(ids) - frame)) for ids, frame in turns]
    return Talk(marked, temperature)
