"""What a model is estimated to take, against what a process with it really takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engine.model import read_model_info
from engine.need import need_of
from engine.paths import EMBEDDED_MODEL
from engine.plan import UBATCH
from engine.timeline import ROWS_EXACT

# Without the faster copy of the weights, as under a budget; the server's own modules count too.
_WORK = """
import json, sys
from dataclasses import replace
from pathlib import Path
import engine.server
from engine.cards import peak_bytes
from engine.device import detect
from engine.model import read_model_info
from engine.plan import Wishes, make_plan
from engine.session import Session

path, n_ctx = Path(sys.argv[1]), int(sys.argv[2])
plan = make_plan(detect(), read_model_info(path), Wishes(n_ctx=n_ctx, n_threads=1, store=False))
session = Session.load(path, replace(plan, repack=False))
session.extend(range(1, 1 + min(n_ctx // 2, plan.n_ubatch)), all_logits=False)
session.extend(range(1, 9), all_logits=True)
print(json.dumps(peak_bytes()))
"""


@pytest.mark.parametrize("n_ctx", [256, 4096])
def test_the_estimate_covers_what_is_taken_and_little_more(n_ctx: int) -> None:
    info = read_model_info(EMBEDDED_MODEL)
    need = need_of(
        info, n_ctx=n_ctx, cell_bytes=info.kv_bytes_per_token, n_ubatch=UBATCH, n_outputs=ROWS_EXACT
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", _WORK, str(EMBEDDED_MODEL), str(n_ctx)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    taken = json.loads(done.stdout.splitlines()[-1])
    # Buffers are set aside for a pass that wants every row's logits, and reads have not begun.
    untouched = need.compute + need.process // 2
    assert need.whole - untouched < taken <= need.whole, f"{taken:,} of {need}"
