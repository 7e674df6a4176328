"""`s2chat plan` and `s2chat models info`: what the engine would do here, or on a device one does not own."""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import exits
from app.flags import fields_for
from app.numbers import Number, numbers_of, speed_words
from app.text import one_line
from engine.device import Device
from engine.errors import ModelError
from engine.geometry import by_name, known
from engine.machine.inventory import this_machine
from engine.measured import measured_file, read_measured
from engine.model import ModelInfo, read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.plan import Plan, Wishes, make_plan
from engine.profiles import read_profile
from engine.size import size


@dataclass(frozen=True, slots=True)
class Where:
    """The device a plan is for. `made_from`: what is known of it rests on this, "" for this machine."""

    device: Device
    title: str
    made_from: str = ""


def plan(arguments: Namespace) -> int:
    """Exit code 1 when the model would not run well."""
    model = model_named(arguments.model)
    where = where_of(arguments.device, _place(model))
    found = _plan(where.device, model, Wishes(**_wishes(arguments)))
    numbers = numbers_of(found, model)
    if arguments.json:
        print(json.dumps(_as_json(where, model, found, numbers)))
    else:
        print("\n".join([*_lines(where, model, found, numbers), "", *_table(where)]))
    return exits.ERROR if found.obstacle else exits.OK


def info(arguments: Namespace) -> int:
    """What a model is, and what would become of it on this machine."""
    model = model_named(arguments.model)
    where = where_of(arguments.device, _place(model))
    found = _plan(where.device, model, Wishes())
    if arguments.json:
        print(json.dumps({**_model(model), "plan": _as_json(where, model, found, numbers_of(found, model))}))
        return exits.OK
    print(one_line(model.name))
    for name, value in _model(model).items():
        words = size(value) if "bytes" in name else value
        print(f"  {name.replace('_', ' '):<26} {one_line(str(words), 1000)}")
    print("\n".join(["", *_lines(where, model, found, numbers_of(found, model))]))
    return exits.OK


def _plan(device: Device, model: ModelInfo, wishes: Wishes) -> Plan:
    """As an engine would make it: with what a calibration has found here."""
    return make_plan(device, model, wishes, read_measured(measured_file(model, device), model))


def model_named(words: Path | None) -> ModelInfo:
    """The model in a file, or a known one by its name. Raises ModelError with the names there are."""
    if words is None:
        return read_model_info(EMBEDDED_MODEL)
    path = words.expanduser()
    if not path.exists() and (model := by_name(str(words))) is not None:
        return model
    try:
        return read_model_info(path.absolute())
    except ModelError as error:
        if path.exists():
            raise
        raise ModelError(error.message, hint="a GGUF file, or one of " + ", ".join(known())) from error


def where_of(profile: str | None, place: Path) -> Where:
    """This machine, or a profile of another."""
    if profile is not None:
        found = read_profile(profile)
        return Where(found.device, found.title, found.made_from)
    device, _ = this_machine(place, gpu=_library_has_gpu(), thorough=True)
    return Where(device, device.name or "this machine")


def _library_has_gpu() -> bool:
    """Whether the native library was built for one, told by its files: loading it takes seconds."""
    import importlib.util

    spec = importlib.util.find_spec("llama_cpp")
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or ())] if spec else []
    return any(any(folder.glob("*ggml-cuda*")) for folder in folders)


def _place(model: ModelInfo) -> Path:
    """A file whose disk the experts would be read from."""
    return model.path if model.path.exists() else EMBEDDED_MODEL


def _wishes(arguments: Namespace) -> dict[str, Any]:
    speculation = fields_for("request", arguments)
    return {**fields_for("load", arguments), **speculation}


def _lines(where: Where, model: ModelInfo, found: Plan, numbers: list[Number]) -> list[str]:
    source = f" ({where.made_from})" if where.made_from else ""
    lines = [f"{one_line(model.name)} on {one_line(where.title)}{source}"]
    wide = max(len(number.words) for number in numbers)
    lines += [f"  {number.label:<18} {number.words:<{wide}}  {number.reason}" for number in numbers]
    lines += [f"▲ {one_line(notice, 1000)}" for notice in found.notices]
    return lines


def _table(where: Where) -> list[str]:
    """Known models on this device, with size and predicted speed."""
    lines = ["Known models on this device, in the usual quantisation; -m NAME shows one"]
    for name, words, _ in _known(where):
        lines.append(f"  {name:<20} {words}")
    return lines


def _known(where: Where) -> list[tuple[str, str, dict[str, Any]]]:
    rows = []
    for name, geometry in known().items():
        quant = geometry.quants[0]
        model = geometry.info(quant)
        found = make_plan(where.device, model, Wishes())
        how = _verdict(found)
        words = f"{quant:<7} {size(model.size_bytes):>9}  {how:<10} {speed_words(found)} tok/s"
        speed = found.forecast
        rows.append(
            (
                name,
                words if not found.obstacle else f"{quant:<7} {size(model.size_bytes):>9}  {how}",
                {
                    "name": name,
                    "quant": quant,
                    "size_bytes": model.size_bytes,
                    "suits": how,
                    "tokens_per_s": [speed.tokens_per_s.low, speed.tokens_per_s.high] if speed else None,
                    "obstacle": found.obstacle,
                },
            )
        )
    return rows


def _verdict(found: Plan) -> str:
    if found.obstacle:
        return "too large"
    return "from disk" if found.budget_bytes else "in memory"


def _as_json(where: Where, model: ModelInfo, found: Plan, numbers: list[Number]) -> dict[str, Any]:
    return {
        "device": {**dataclasses.asdict(where.device), "title": where.title, "made_from": where.made_from},
        "model": _model(model),
        "budget_bytes": numbers[0].value,
        "limited": bool(found.budget_bytes),
        "numbers": {
            number.name: {"value": number.value, "unit": number.unit, "reason": number.reason}
            for number in numbers
        },
        "runs_well": not found.obstacle,
        "obstacle": found.obstacle,
        "notices": list(found.notices),
        "known_models": [row for _, _, row in _known(where)],
    }


def _model(model: ModelInfo) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.path),
        "architecture": model.arch,
        "size_bytes": model.size_bytes,
        "weights": model.n_weights,
        "layers": model.n_layer,
        "experts": model.n_expert,
        "experts_per_token": model.n_expert_used,
        "experts_bytes": model.expert_bytes,
        "bytes_of_one_expert": model.largest_expert_bytes,
        "bytes_of_cache_per_token": model.kv_bytes_per_token,
        "trained_context": model.n_ctx_train,
    }
