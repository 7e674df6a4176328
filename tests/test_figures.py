"""The expert store's figures of one answer, from its counters to the words on the screen."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from app.labels import foot, hits, late, prefetch_used, read_per_token, stall_per_token, stored_timings
from engine.events import StoreFigures, Timings
from engine.figures import figures_since
from engine.messages import timings_from_json
from engine.store import StoreStats

MIB = 1 << 20
ZERO = StoreStats(**{item.name: 0 for item in fields(StoreStats)} | {"n_experts": 960, "n_resident": 40})


@dataclass
class Store:
    now: StoreStats

    def stats(self) -> StoreStats:
        return self.now


def figures(before: StoreStats, now: StoreStats) -> StoreFigures:
    found = figures_since(before, Store(now))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_with_all_experts_in_memory_there_is_nothing_to_tell() -> None:
    whole = replace(ZERO, n_resident=960, reads=960)
    later = replace(whole, asked=480, hits=480)
    assert figures_since(whole, Store(later)) is None  # type: ignore[arg-type]
    assert figures_since(whole, Store(replace(later, reads=961))) is not None  # type: ignore[arg-type]


def test_an_answer_counts_what_happened_since_it_began() -> None:
    before = replace(ZERO, bytes=5, asked=100, hits=60, late=10, bytes_read=7 * MIB, stall_ns=4_000_000)
    now = replace(
        before,
        bytes=9,
        asked=300,
        hits=210,
        late=30,
        bytes_read=27 * MIB,
        bytes_prefetched=12 * MIB,
        prefetched=40,
        prefetch_used=30,
        evicted=8,
        stall_ns=10_500_000,
    )
    found = figures(before, now)
    assert found == StoreFigures(
        asked=200,
        hits=150,
        late=20,
        bytes_read=20 * MIB,
        bytes_prefetched=12 * MIB,
        prefetched=40,
        prefetch_used=30,
        evicted=8,
        stall_ms=6.5,
    )
    assert (found.hit_rate, found.late_rate, found.prefetch_used_rate) == (0.75, 0.1, 0.75)
    timings = Timings(predicted_n=10, predicted_ms=1000, store=found)
    assert (timings.mib_per_token, timings.stall_ms_per_token) == (2.0, 0.65)
    assert (hits(timings), late(timings), prefetch_used(timings)) == ("75%", "10%", "75%")
    assert (read_per_token(timings), stall_per_token(timings)) == ("2.0 MiB/tok", "0.7 ms/tok")
    assert foot("eos", "ar", timings).endswith("hit 75% · 2.0 MiB/tok")


def test_an_answer_of_a_lossy_mode_is_marked_as_one() -> None:
    timings = Timings(predicted_n=10, predicted_ms=1000)
    assert "s2 ≈lossy ·" in foot("eos", "s2", timings)
    assert "s2-exact ≈ ·" in foot("eos", "s2-exact", timings, exact=False), "as on a GPU"
    for mode in ("ar", "s2-exact", "auto", "of another version"):
        assert "lossy" not in foot("eos", mode, timings)


@pytest.mark.parametrize("timings", [None, Timings(), Timings(store=StoreFigures())], ids=str)
def test_what_did_not_happen_is_a_dash(timings: Timings | None) -> None:
    assert hits(timings) == late(timings) == prefetch_used(timings) == "–"
    assert (read_per_token(timings), stall_per_token(timings)) == ("– MiB/tok", "– ms/tok")


def test_without_a_store_there_are_no_figures() -> None:
    assert figures_since(ZERO, None) is None
    assert figures_since(None, Store(ZERO)) is None  # type: ignore[arg-type]
    timings = Timings(predicted_n=10, predicted_ms=1000)
    assert "store" not in timings.as_json()
    assert "hit" not in foot("eos", "ar", timings)


@pytest.mark.parametrize(
    "store", [None, StoreFigures(), StoreFigures(asked=3, hits=1, bytes_read=MIB, stall_ms=1.5)]
)
def test_they_travel_and_are_stored_whole(store: StoreFigures | None) -> None:
    timings = Timings(prompt_n=3, predicted_n=4, predicted_ms=100.0, store=store)
    assert timings_from_json(timings.as_json()) == stored_timings(timings.as_json()) == timings


def test_the_json_says_what_follows_from_the_counts() -> None:
    timings = Timings(predicted_n=4, store=StoreFigures(asked=3, hits=1, bytes_read=MIB, stall_ms=1.5))
    found = timings.as_json()["store"]
    assert (found["hit_rate"], found["late_rate"], found["prefetch_used_rate"]) == (0.3333, 0.0, None)
    assert (found["mib_per_token"], found["stall_ms_per_token"]) == (0.25, 0.375)
