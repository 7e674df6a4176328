"""The model's vocabulary: text to token ids and back."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import BadRequest, ContextFull, NativeError
from engine.native import llama
from engine.thoughts import is_tag

_PIECE_BYTES = 256


class Vocab:
    """Tokenises and detokenises with the vocabulary of one loaded model."""

    def __init__(self, model: int) -> None:
        self._llama = llama()
        self._vocab = self._llama.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._broken: re.Pattern[str] | None = None
        self._adds_space = self._llama.llama_vocab_type(self._vocab) == self._llama.LLAMA_VOCAB_TYPE_SPM
        self._buffer = ctypes.create_string_buffer(_PIECE_BYTES)

    def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, continues: bool = False
    ) -> list[int]:
        """Token ids of `text`. `add_special`: BOS and the like, where the model wants them;
        `parse_special`: whether <|names|> in the text mean the special tokens; `continues`: other text stands
        before it, so it gets no space of its own in front."""
        parts = [text] if parse_special or self._broken is None else self._broken.split(text)
        tokens = self._joined(parts[0], add_special, parse_special, continues)
        return tokens + [token for part in parts[1:] for token in self._joined(part, False, False, True)]

    def break_names(self, names: Iterable[str]) -> None:
        """Text never means these special tokens, although the vocabulary has them as ordinary words."""
        self._broken = re.compile("|".join(f"(?<={re.escape(n[0])})(?={re.escape(n[1:])})" for n in names))

    def _joined(self, text: str, add_special: bool, parse_special: bool, continues: bool) -> list[int]:
        if continues and self._adds_space:
            lead = self._tokenize("\n", False, False)
            tokens = self._tokenize("\n" + text, add_special, parse_special)
            if tokens[: len(lead)] == lead:
                return tokens[len(lead) :]
        return self._tokenize(text, add_special, parse_special)

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = self._llama.llama_tokenize(
            self._vocab, data, len(data), tokens, len(tokens), add_special, parse_special
        )
        if count < 0:
            raise NativeError(f"a text of {len(data)} bytes cannot be tokenised")
        return list(tokens[:count])

    def check_fits(self, text: str, n_ctx: int) -> None:
        """Refuses what cannot fit into `n_ctx` tokens however it is tokenised.

        Tokenising a book to find out takes minutes that cannot be cancelled, and gigabytes.
        """
        if len(text) <= n_ctx:
            return
        least = len(text.encode("utf-8", "replace")) // self._longest_bytes
        if least > n_ctx:
            raise ContextFull.for_prompt(f"more than {least}", n_ctx)

    @cached_property
    def _longest_bytes(self) -> int:
        """No token stands for more bytes of text."""
        get = self._llama.llama_vocab_get_text
        return max(1, *(len(get(self._vocab, token)) for token in range(len(self))))

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens but the tags of thoughts."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def shown(self, token: int) -> str:
        """A single token for people: its text, half a character replaced, or its name where it has none."""
        return self.piece(token).decode("utf-8", "replace") or self.name(token)

    def text(self, tokens: list[int] | tuple[int, ...]) -> str:
        """The text of `tokens`, control tokens left out, broken characters replaced."""
        return b"".join(self.piece(token) for token in tokens).decode("utf-8", "replace")

    def text_of(self, tokens: list[int]) -> str:
        """Like `text`, of ids from a client. Raises BadRequest for one this vocabulary does not have."""
        unknown = [token for token in tokens if not 0 <= token < len(self)]
        if unknown:
            raise BadRequest(f"{unknown[0]} is no token of this model, which has {len(self)}")
        return self.text(tokens)

    def is_end(self, token: int) -> bool:
        """Whether the model ends its turn with `token`."""
        end = self._ends.get(token)
        if end is None:
            end = self._ends[token] = bool(self._llama.llama_vocab_is_eog(self._vocab, token))
        return end

    @cached_property
    def silent(self) -> npt.NDArray[np.bool_]:
        """BOOL [n_vocab], read-only: control tokens that end nothing; they have no text."""
        is_control = self._llama.llama_vocab_is_control
        marks = np.array(
            [bool(is_control(self._vocab, t)) and not self.is_end(t) for t in range(len(self))],
            dtype=np.bool_,
        )
        marks.flags.writeable = False
        return marks

    @property
    def handle(self) -> Any:
        """The llama vocabulary, for samplers."""
        return self._vocab

    def ends(self) -> list[int]:
        """Every token the model may end its turn with."""
        return [token for token in range(len(self)) if self.is_end(token)]

    def __len__(self) -> int:
        return int(self._llama.llama_vocab_n_tokens(self._vocab))

    def name(self, token: int) -> str:
        """How a special token is written, '' for none."""
        if token < 0:
            return ""
        return bytes(self._llama.llama_vocab_get_text(self._vocab, token)).decode("utf-8", "replace")

    def special(self, name: str) -> int | None:
        """The special token that is written `name`."""
        tokens = self.tokenize(name, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 and self.name(tokens[0]) == name else None

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants BOS in front of every prompt."""
        return self.bos >= 0 and bool(self._llama.llama_vocab_get_add_bos(self._vocab))

    @property
    def bos(self) -> int:
        return int(self._llama.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        return int(self._llama.llama_vocab_eos(self._vocab))

    def _read_piece(self, token: int) -> bytes:
        size = self._llama.llama_token_to_piece(self._vocab, token, self._buffer, _PIECE_BYTES, 0, False)
        if size == 0 and is_tag(name := self.name(token)):
            return name.encode()  # a control token in some vocabularies; without it thoughts have no end
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = self._llama.llama_token_to_piece(self._vocab, token, buffer, -size, 0, False)
            return buffer.raw[:size]
        return self._buffer.raw[:size]
