"""What one run of a row under a budget came to, and what several runs say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Take:
    """The decoding part of one run: `tokens` passes of one token in `decode_s`.

    `store`: what the expert store counted meanwhile, named as in StoreStats; empty without one.
    `disk_bytes`: read from disk by the kernel's count, None where it does not tell. `peak_bytes`: of the
    memory cgroup, the file's pages among them; None without one. `reader_mb_s`: what a plain reader got from
    the same file in the same alternation, in 10^6 bytes per second.
    """

    ids: list[list[int]]
    tokens: int
    decode_s: float
    prefill_tok_s: float
    major_faults: int
    disk_bytes: int | None
    rss_peak_bytes: int
    peak_bytes: int | None
    reader_mb_s: float | None
    store: dict[str, int]

    @property
    def tok_s(self) -> float:
        return self.tokens / self.decode_s

    @property
    def bytes_per_token(self) -> float | None:
        """By the store's own count where there is one."""
        count = self.store.get("bytes_read", self.disk_bytes)
        return None if count is None else count / self.tokens

    @property
    def disk_bytes_per_token(self) -> float | None:
        return None if self.disk_bytes is None else self.disk_bytes / self.tokens

    def share(self, what: str, of: str = "asked") -> float | None:
        """Of two of the store's figures, such as "hits" of those asked for."""
        return self.store[what] / self.store[of] if self.store.get(of) else None

    @property
    def stall_ms(self) -> float | None:
        """Of a token: a pass stood waiting for reads."""
        return self.store["stall_ns"] / 1e6 / self.tokens if self.store else None

    @property
    def stall_mb_s(self) -> float | None:
        """Bytes read per second of waiting: beyond the reader's speed by as much as reads were hidden."""
        return self.store["bytes_read"] / self.store["stall_ns"] * 1e3 if self.store.get("stall_ns") else None

    @property
    def stall_to_reader(self) -> float | None:
        return _divided(self.stall_mb_s, self.reader_mb_s)

    @property
    def io_ms(self) -> float | None:
        """Of a token: its reads at the plain reader's speed."""
        read = self.store.get("bytes_read")
        return None if read is None or not self.reader_mb_s else read / self.tokens / self.reader_mb_s / 1e3

    @property
    def disk_share(self) -> float | None:
        """Of the time of a token, what its reads take at the plain reader's speed."""
        return None if self.io_ms is None else min(1.0, self.io_ms * self.tok_s / 1e3)

    @property
    def tokens_per_pass(self) -> float | None:
        return self.tokens / self.store["verify_n"] if self.store.get("verify_n") else None

    @property
    def compute_ms(self) -> float | None:
        """Of a token: what is not waiting. Only where nothing overlaps is that all of the arithmetic."""
        return 1e3 / self.tok_s - self.stall_ms if self.stall_ms is not None else None


def overlap_bound(sync: Take) -> float | None:
    """How much faster than `sync`, which overlaps nothing, one can be that hides the shorter of reads and
    arithmetic behind the longer."""
    if sync.io_ms is None or sync.compute_ms is None:
        return None
    return (sync.io_ms + sync.compute_ms) / max(sync.io_ms, sync.compute_ms)


def draft_bound(plain: Take, drafted: Take) -> float | None:
    """How much faster than `plain` decode a mode can be that reads what `drafted` did: it may hide all else
    behind the disk, which `plain` keeps busy for a share of its time."""
    fewer = _divided(plain.bytes_per_token, drafted.bytes_per_token)
    return None if fewer is None or not plain.disk_share else fewer / plain.disk_share


def figures(
    mine: Sequence[Take], first: Sequence[Take], sync: Sequence[Take] = (), plain: Sequence[Take] = ()
) -> Line:
    """The measured fields of a row: medians over its runs, ratios over those beside them.

    `first`: the runs of the yardstick; `sync`: of the same row without overlap; `plain`: of plain decode.
    Empty where they failed.
    """
    ratios = [take.tok_s / other.tok_s for take, other in zip(mine, first, strict=False)]
    gains = [take.tok_s / other.tok_s for take, other in zip(mine, sync, strict=False)]
    bounds = [overlap_bound(take) for take in sync]
    to_plain = [take.tok_s / other.tok_s for take, other in zip(mine, plain, strict=False)]
    allowed = [draft_bound(other, take) for take, other in zip(mine, plain, strict=False)]
    shares = [_divided(gain, bound) for gain, bound in zip(gains, bounds, strict=False)]

    def middle(value: Callable[[Take], Any]) -> float | None:
        return _median([value(take) for take in mine])

    speeds = [take.tok_s for take in mine]
    return {
        "tokens": mine[0].tokens if mine else None,
        "tok_s": _median(speeds),
        "tok_s_min": min(speeds, default=None),
        "tok_s_max": max(speeds, default=None),
        "ratio": _median(ratios),
        "ratio_min": min(ratios, default=None),
        "ratio_max": max(ratios, default=None),
        "same_text": all(_agree(take.ids, first[0].ids) for take in mine) if mine and first else None,
        "prefill_tok_s": middle(lambda take: take.prefill_tok_s),
        "bytes_per_token": middle(lambda take: take.bytes_per_token),
        "disk_bytes_per_token": middle(lambda take: take.disk_bytes_per_token),
        "hits": middle(lambda take: take.share("hits")),
        "late": middle(lambda take: take.share("late")),
        "prefetched": middle(lambda take: take.share("bytes_prefetched", "bytes_read")),
        "prefetch_used": middle(lambda take: take.share("prefetch_used", "prefetched")),
        "stall_ms_per_token": middle(lambda take: take.stall_ms),
        "major_faults": middle(lambda take: take.major_faults),
        "peak_bytes": middle(lambda take: take.peak_bytes),
        "rss_peak_bytes": middle(lambda take: take.rss_peak_bytes),
        "reader_mb_s": middle(lambda take: take.reader_mb_s),
        "io_ms_per_token": middle(lambda take: take.io_ms),
        "compute_ms_per_token": _median([take.compute_ms for take in (sync or ())]),
        "stall_mb_s": middle(lambda take: take.stall_mb_s),
        "stall_to_reader": middle(lambda take: take.stall_to_reader),
        "overlap_bound": _median(bounds),
        "overlap_gain": _median(gains),
        "overlap_share": _median(shares),
        "acceptance": middle(lambda take: take.share("draft_n_accepted", "draft_n")),
        "tokens_per_pass": middle(lambda take: take.tokens_per_pass),
        "ratio_to_ar": _median(to_plain),
        "ratio_to_ar_min": min(to_plain, default=None),
        "draft_bound": _median(allowed),
    }


def _agree(mine: list[list[int]], theirs: list[list[int]]) -> bool:
    """Whether answers are the same as far as both go: a slow row's are cut off."""
    pairs = [token for answers in zip(mine, theirs, strict=True) for token in zip(*answers, strict=False)]
    return all(one == other for one, other in pairs)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _divided(number: float | None, by: float | None) -> float | None:
    return number / by if number is not None and by else None
