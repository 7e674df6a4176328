"""Which experts stay in memory: the policy, plain and sanitized, and what it makes of real routing."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from s2build.machine import Compiler, find_compiler
from s2build.problem import SetupError
from s2build.recipe import NATIVE

from engine.bench import main, replay
from engine.bench.replay import DECAYS, Foresight, Frequency, Recency, Trace, load, native_replay
from engine.errors import NativeError

STORE = NATIVE / "s2/store"
POLICY, REPLAY, CHECK = STORE / "s2-policy.cpp", STORE / "s2-replay.cpp", NATIVE / "tests/policy_check.cpp"
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
NAMED = {"qwen3-30b-a3b": 18, "gemma-4-26b-a4b": 21, "gpt-oss-120b": 5.2}  # % of the experts in memory


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return find_compiler()
    except SetupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def library(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The policy and its replay, as the sources are now."""
    path = tmp_path_factory.mktemp("policy") / "policy.so"
    compiled = compile_(compiler, path, "-O2", "-fPIC", "-shared", POLICY, REPLAY)
    assert compiled.returncode == 0, compiled.stderr
    return ctypes.CDLL(str(path))


def compile_(compiler: Compiler, output: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [compiler.cxx, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{STORE}", *words, "-o", output]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-g", *SANITIZED]], ids=["plain", "sanitized"])
def test_promises(flags: list[str], compiler: Compiler, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.cpp"
    nothing.write_text("int main() {}\n")
    if compile_(compiler, tmp_path / "nothing", *flags, nothing).returncode:
        pytest.skip("this compiler has no sanitizers")
    compiled = compile_(compiler, tmp_path / "check", *flags, POLICY, CHECK)
    assert compiled.returncode == 0, compiled.stderr
    run = subprocess.run(
        [tmp_path / "check"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "ASAN_OPTIONS": ""},
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert run.stdout.count(": right\n") == 8


@pytest.mark.parametrize("params", [(0.9, 0.5, 0.5), (0.5, 1.0, 1.0), (1.0, 0.0, 0.25), (0.75, 0.75, 0.0)])
def test_replay_is_the_plain_one(params: tuple[float, float, float], library: ctypes.CDLL) -> None:
    for seed in range(6):
        trace = random_trace(seed, tokens=60, layers=4, used=3, experts=14)
        for slots in (3, 9, 20, 55, 56):
            expected = plainly(trace, slots, *params)
            assert native_replay(trace, slots, params, library) == expected, (seed, slots)
            assert 0 < expected < trace.asked or slots in (3, 56)


def test_everything_fits(library: ctypes.CDLL) -> None:
    trace = random_trace(0, tokens=60, layers=3, used=2, experts=4)
    trace.experts[:2] = [[[0, 1]], [[2, 3]]]
    assert native_replay(trace, 12, library=library) == trace.asked


def test_the_default_is_one_of_the_parameters(library: ctypes.CDLL) -> None:
    trace = load("gpt-oss-120b")
    assert native_replay(trace, 240, library=library) == native_replay(trace, 240, (0.9, 0.5, 0.5), library)
    assert native_replay(trace, 240, library=library) != native_replay(trace, 240, (0.8, 0.5, 0.5), library)


@pytest.mark.parametrize(
    ("slots", "params"), [(1, (0.9, 0.5, 0.5)), (9, (1.1, 0.5, 0.5)), (9, (0.9, -1, 0.5)), (9, (0.9, 0.5, 2))]
)
def test_nonsense_is_refused(slots: int, params: tuple[float, float, float], library: ctypes.CDLL) -> None:
    trace = random_trace(0, tokens=4, layers=2, used=2, experts=8)
    with pytest.raises(NativeError, match="refused"):
        native_replay(trace, slots, params, library)
    unknown = Trace("unknown", trace.experts + 1, trace.n_experts)
    assert unknown.experts.max() == trace.n_experts
    with pytest.raises(NativeError, match="refused"):
        native_replay(unknown, 9, library=library)


@pytest.mark.parametrize(("name", "percent"), NAMED.items())
def test_halfway_to_the_best_there_is(name: str, percent: float, library: ctypes.CDLL) -> None:
    """From LRU, in the second half, the first being history; one set of parameters for all."""
    trace = load(name)
    slots = trace.slots(percent)
    ours = native_replay(trace, slots, library=library)
    lru = replay.replay(trace, slots, Recency(trace))
    best = max(replay.replay(trace, slots, Frequency(trace, decay), per_layer=True) for decay in DECAYS)
    assert lru < best < replay.replay(trace, slots, Foresight(trace))
    assert ours > lru
    assert ours >= (lru + best) / 2


def test_recordings_are_whole() -> None:
    for name, percent in NAMED.items():
        trace = load(name)
        assert trace.n_experts == 128
        assert trace.slots(percent) > trace.experts.shape[1] * trace.experts.shape[2]
        flat = trace.experts.reshape(-1, trace.experts.shape[2])
        assert all(len(set(row)) == len(row) for row in flat.tolist() if row[0] >= 0)


def test_plain_policies_on_a_known_case() -> None:
    """One layer, two slots, counted from the third token: 0 1 | 0 2 0 -> LRU keeps 0, Belady as well."""
    experts = np.array([[[0]], [[1]], [[0]], [[2]], [[0]]], dtype=np.int32)
    trace = Trace("known", experts, 3)
    assert trace.half == 2
    assert trace.asked == 3
    assert replay.replay(trace, 2, Recency(trace)) == 2
    assert replay.replay(trace, 2, Foresight(trace)) == 2
    assert replay.replay(trace, 1, Recency(trace)) == 0
    assert replay.replay(trace, 3, Frequency(trace, 1.0), per_layer=True) == 2


def test_the_bench_prints_a_line_per_share(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "llama", lambda: SimpleNamespace(_lib=library))
    monkeypatch.setattr(replay, "SHARES", {"gpt-oss-120b": (5.2, 18)})
    assert main(["replay", "--json"]) == 0
    few, many = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (few["trace"], few["percent"], few["slots"]) == ("gpt-oss-120b", 5.2, 240)
    for row in (few, many):
        assert all(0 < row[policy] < row["belady"] < 100 for policy in ("lru", "lfu", "layer_lfu", "ours"))
    assert all(few[policy] < many[policy] for policy in ("lru", "lfu", "layer_lfu", "ours", "belady"))


def test_a_library_without_it_is_named() -> None:
    with pytest.raises(NativeError, match="cannot replay"):
        native_replay(load("gpt-oss-120b"), 240, library=SimpleNamespace())


def test_the_installed_library_replays_the_same(library: ctypes.CDLL) -> None:
    for name, percent in NAMED.items():
        trace = load(name)
        slots = trace.slots(percent)
        assert native_replay(trace, slots) == native_replay(trace, slots, library=library)


def random_trace(seed: int, *, tokens: int, layers: int, used: int, experts: int) -> Trace:
    """A few experts are asked for often; here and there a layer asks for nothing."""
    random = np.random.default_rng(seed)
    popularity = random.pareto(1.0, (layers, experts)) + 0.1
    chosen = np.full((tokens, layers, used), -1, dtype=np.int32)
    for token, layer in np.ndindex(tokens, layers):
        if random.random() > 0.05:
            shares = popularity[layer] / popularity[layer].sum()
            chosen[token, layer] = random.choice(experts, used, replace=False, p=shares)
    chosen[0, 0] = range(experts - used, experts)  # the highest number there is occurs
    return Trace(f"random {seed}", chosen, experts)


def plainly(trace: Trace, slots: int, decay: float, floor_share: float, foreign_share: float) -> int:
    """The policy with nothing clever in it; single precision, or equals would not be equal."""
    tokens, layers, _ = trace.experts.shape
    heat = np.zeros((layers, trace.n_experts), dtype=np.float32)
    resident = np.zeros(heat.shape, dtype=bool)
    credit, hits = np.float32(1), 0
    floor = floor_share * slots / layers
    for token in range(tokens):
        worth = heat.copy()  # of this token: what has been asked for counts once more
        for layer in range(layers):
            asked = [expert for expert in trace.experts[token, layer].tolist() if expert >= 0]
            worth[layer, asked] += credit
            pinned = np.zeros(heat.shape, dtype=bool)
            pinned[layer, asked] = True
            for expert in asked:
                if resident[layer, expert]:
                    hits += token >= trace.half
                    continue
                if resident.sum() == slots:
                    resident[victim(worth, resident & ~pinned, resident, layer, floor, foreign_share)] = False
                resident[layer, expert] = True
        for layer in range(layers):
            asked = [expert for expert in trace.experts[token, layer].tolist() if expert >= 0]
            heat[layer, asked] += credit
        credit /= np.float32(decay)
    return hits


def victim(
    worth: np.ndarray,
    may_go: np.ndarray,
    resident: np.ndarray,
    layer: int,
    floor: float,
    foreign_share: float,
) -> tuple[int, int]:
    """Own coldest, unless another layer above its floor has one colder than a share of that."""
    own = [(worth[layer, i], layer, i) for i in np.flatnonzero(may_go[layer])]
    others = [(worth[at], *at) for at in zip(*np.nonzero(may_go), strict=True) if at[0] != layer]
    rich = [other for other in others if resident[other[1]].sum() > floor]
    if own:
        limit = np.float32(foreign_share) * min(own)[0]
        own = [min(own), *(other for other in rich if other[0] < limit)]
    _, row, column = min(own or rich or others)
    return int(row), int(column)
