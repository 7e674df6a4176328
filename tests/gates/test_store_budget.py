"""G8: the whole process stays inside its budget, and the kernel agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bench.cgroup import MemoryGroup, NotPermitted
from engine.model import read_model_info
from engine.need import need_of
from engine.paths import EMBEDDED_MODEL
from engine.plan import UBATCH
from engine.timeline import ROWS_EXACT

MIB = 1 << 20
N_CTX = 1024
SECOND = 64  # MiB: more than a second context of as many cells takes

# A process of its own: what this one has read and kept would count as well.
_WORK = """
import json, sys
from pathlib import Path
from decoding import PASSAGE, prompt_of, request
import engine.server
from engine.cards import peak_bytes
from engine.device import detect
from engine.errors import S2Error
from engine.events import Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.model import read_model_info
from engine.plan import Wishes, make_plan
from engine.session import Session

path, budget, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
wishes = Wishes(n_ctx=int(sys.argv[4]), n_threads=1, budget=budget, store=True)
try:
    session = Session.load(path, make_plan(detect(), read_model_info(path), wishes))
except S2Error as error:
    sys.exit(error.line())
asked = request(prompt_of(session, PASSAGE.read_text(), 700), mode=mode, tokens=24)
try:
    blocks = [event for event in generate(session, asked, CancelFlag()) if isinstance(event, Tokens)]
except S2Error as error:
    sys.exit(error.line())
print(json.dumps({
    "ids": [id for block in blocks for id in block.ids],
    "peak": peak_bytes(),
    "slots": session.store.stats().n_slots,
    "reads": session.store.stats().reads,
}))
"""


def work(budget: int, mode: str = "ar", group: MemoryGroup | None = None) -> subprocess.CompletedProcess[str]:
    gates = Path(__file__).parent
    arguments = [str(EMBEDDED_MODEL), str(budget), mode, str(N_CTX)]
    program = f"import sys; sys.path.insert(0, {str(gates)!r})\n{_WORK}"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        group.entering(command) if group else command, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def least() -> int:
    """What the engine itself says it needs, in MiB."""
    info = read_model_info(EMBEDDED_MODEL)
    need = need_of(
        info, n_ctx=N_CTX, cell_bytes=info.kv_bytes_per_token, n_ubatch=UBATCH, n_outputs=ROWS_EXACT
    )
    refused = work(need.certain(whole=False) + MIB)  # not refused before the load, which only guesses
    assert refused.returncode == 1
    said = refused.stderr.strip().splitlines()[-1]
    assert "too small for this model" in said
    return int(said.partition("at least ")[2].partition("M")[0])


@pytest.fixture(scope="module")
def whole() -> list[int]:
    """The answer without a limit that could be felt."""
    return list(json.loads(work(4096 * MIB).stdout)["ids"])


@pytest.fixture
def group(request: pytest.FixtureRequest, least: int) -> Iterator[MemoryGroup]:
    try:
        made = MemoryGroup.make(int((least + request.param) * MIB * 1.02))
    except NotPermitted as error:
        pytest.skip(error.line())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("mode", "group", "more"),
    [
        *((mode, more, more) for mode in ("ar", "s2-exact") for more in (1, 8, 24)),
        ("es", SECOND + 8, SECOND + 8),
    ],
    indirect=["group"],
)
def test_the_process_stays_inside_its_budget(
    group: MemoryGroup, more: int, least: int, whole: list[int], mode: str
) -> None:
    budget = (least + more) * MIB
    done = work(budget, mode, group)
    assert not group.killed()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ids"] == whole
    assert found["reads"] > found["slots"], "it read nothing twice: the budget was none"
    assert found["peak"] <= budget
    assert (group.peak() or 0) <= group.limit


def test_a_second_context_is_refused_where_the_budget_has_no_room(least: int) -> None:
    done = work((least + 1) * MIB, "es")
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert "a second context for drafts takes" in said
    assert f"a budget of {least + 1} MiB has no room" in said
