"""Measures an embedded model beside its dense teacher, both as GGUF through the engine: quality, drafts,
routing."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine.device import detect
from engine.errors import S2Error
from engine.model import files_of, read_model_info
from engine.plan import Wishes, make_plan
from engine.session import Session
from training.answers import RULE, Answer, acceptance, answers, questions
from training.card import Figure, as_json, card, table
from training.figures import hits, read_trace, reuse, shares
from training.reading import Document, Reading, documents, read
from training.shelf import Shelf

_SETS = {"conversations": "held-out-conversations-*.npz", "documentation": "held-out-texts.npz"}


def main() -> int:
    args = _arguments()
    try:
        _measure(args)
    except S2Error as error:
        print(f"measure: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> Namespace:
    parser = ArgumentParser(prog="packaging/training/measure", description=__doc__)
    parser.add_argument("model", type=Path, help="GGUF, the first of a split set")
    parser.add_argument("--teacher", type=Path, required=True, help="the dense model's GGUF")
    parser.add_argument(
        "--sets", type=Path, required=True, help="folder of the held-out sets that build leaves"
    )
    parser.add_argument(
        "--traces", type=Path, help="folder of published routes (*.csv) to compute the same for"
    )
    parser.add_argument("--tokens", type=int, default=16_000, help="of each held-out set")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--times", type=int, default=5, help="how often each is asked, loops are few")
    parser.add_argument("--drafts", type=int, default=20, help="questions that drafts are measured on")
    parser.add_argument("--answer", type=int, default=192, help="tokens of an answer at most")
    parser.add_argument("--draft-experts", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--out", type=Path, default=Path("measured"), help="folder for MODEL_CARD.md and figures.json"
    )
    return parser.parse_args()


def _measure(args: Namespace) -> None:
    sets = {name: list(documents(_shelf(args.sets, pattern), args.tokens)) for name, pattern in _SETS.items()}
    asked = questions(args.questions)
    with _open(args.model, args.threads) as session:
        experts, used = session.info.n_expert, session.info.n_expert_used
        mine = {name: _read(session, name, found) for name, found in sets.items()}
        my_answers = _answers(session, asked, args)
        drafts = {}
        for heat in (0.0, 0.8):
            _say(f"drafts with {args.draft_experts} of {used} experts at temperature {heat}")
            drafts[heat] = acceptance(session, questions(args.drafts), heat, args.draft_experts, args.answer)
    with _open(args.teacher, args.threads) as session:
        theirs = {name: _read(session, name, found) for name, found in sets.items()}
        their_answers = _answers(session, asked, args)

    figures: list[Figure] = []
    for name in sets:
        ratio = mine[name].perplexity / theirs[name].perplexity
        figures += [
            Figure(f"perplexity on {name}, teacher", theirs[name].perplexity),
            Figure(f"perplexity on {name}, model", mine[name].perplexity),
            Figure(f"perplexity on {name}, ratio", ratio, most=1.15),
        ]
    for what in ("loops", "empty"):
        mine_n, theirs_n = (sum(getattr(a, what) for a in found) for found in (my_answers, their_answers))
        name = "that loop" if what == "loops" else "that are empty"
        figures.append(Figure(f"answers {name}, of {len(my_answers)}, teacher", theirs_n))
        figures.append(Figure(f"answers {name}, of {len(my_answers)}, model", mine_n, most=theirs_n))
    for heat, share in drafts.items():
        name = f"acceptance, {args.draft_experts} of {used} experts, temperature {heat:g}"
        figures.append(Figure(name, share, least=0.7, percent=True))
    least, most = shares([run for reading in mine.values() for run in reading.runs], experts)
    runs = mine["conversations"].runs
    figures += [
        Figure("least used expert against a fair share", least, least=0.2),
        Figure("most used expert against a fair share", most, most=4.0),
        Figure("rho(4), decode", reuse(runs), 0.55, 0.8),
        Figure(
            "hits of an LRU cache of 25 % of a layer, decode", hits(runs, experts), 0.6, 0.85, percent=True
        ),
    ]
    traces = list(_traces(args.traces)) if args.traces else []
    _write(args, sets, figures, traces, list(zip(my_answers, their_answers, strict=True)))


def _write(
    args: Namespace, sets: dict[str, list[Document]], figures: list[Figure], traces: list[dict[str, object]],
    pairs: list[tuple[Answer, Answer]],
) -> None:  # fmt: skip
    print(table(figures))
    for row in traces:
        print(" ".join(f"{key}={value}" for key, value in row.items()))
    sizes = [
        f"{sum(len(document.ids) for document in found):,} tokens of {name}" for name, found in sets.items()
    ]
    conditions = [
        f"Perplexity: {' and '.join(sizes)}, held out by prompt and by package; system turns do not count.",
        f"Answers: {args.questions} fixed questions, each asked {args.times} times, the chat's sampling.",
        f"An answer has at most {args.answer} tokens; {RULE}. Shown below are the first of each.",
        f"Acceptance: drafted tokens accepted / verified in s2-exact, 4 drafted, {args.drafts} questions.",
        "Routing: rho(4) and hits on conversations from the first answer on, shares on all tokens.",
        "The cache is empty before a conversation, and its prompt warms it.",
    ]
    sources_at = args.sets / "ids.json"
    sources = json.loads(sources_at.read_text(encoding="utf-8"))["sources"] if sources_at.exists() else []
    transcripts = [(my.question, my.text, their.text) for my, their in pairs[: args.questions]]
    files = files_of(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    text = card(files, figures, traces, transcripts, sources, conditions)
    (args.out / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    (args.out / "figures.json").write_text(as_json(figures, traces) + "\n", encoding="utf-8")
    print(as_json(figures, traces))


@contextmanager
def _open(path: Path, threads: int | None) -> Iterator[Session]:
    _say(f"{path.name}")
    plan = make_plan(detect(), read_model_info(path), Wishes(n_ctx=2048, n_threads=threads))
    with Session.load(path, replace(plan, n_outputs=plan.n_ubatch)) as session:  # perplexity reads every row
        yield session


def _read(session: Session, name: str, found: list[Document]) -> Reading:
    _say(f"perplexity on {name}")
    return read(session, found)


def _answers(session: Session, asked: list[str], args: Namespace) -> list[Answer]:
    _say(f"{len(asked)} questions")
    return answers(session, asked, args.answer, args.times)


def _traces(folder: Path) -> Iterator[dict[str, object]]:
    for path in sorted(folder.glob("*.csv")):
        runs, experts = read_trace(path)
        k = next(iter(runs[0].decode.values())).shape[1]
        yield {
            "trace": path.stem,
            "experts": experts,
            "k": k,
            "rho4": reuse(runs),
            "hits": hits(runs, experts),
        }


def _shelf(folder: Path, pattern: str) -> Shelf:
    found = sorted(folder.glob(pattern))
    if not found:
        raise S2Error(f"{folder} holds no {pattern}", hint="run packaging/training/build --stage data")
    return Shelf.joined([Shelf.load(path) for path in found])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
