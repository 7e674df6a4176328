"""Turns a device, a model and a person's wishes into a Plan; every number with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine import seeds
from engine.budget import Allowance, allow, allow_free, parse_budget, reserve_bytes
from engine.device import Device
from engine.errors import BadRequest
from engine.forecast import Forecast, forecast
from engine.model import ModelInfo
from engine.need import GROWTH_BYTES, Need, need_of
from engine.need import cell_bytes as cell_bytes_of
from engine.placement import ALL, place
from engine.request import CACHE_TYPES, MODES, Speculation
from engine.seeds import Measured
from engine.size import size
from engine.timeline import ROWS_EXACT

CONTEXT_DEFAULT = 8192
CONTEXT_MIN = 64
CONTEXT_MAX = 1 << 30  # positions are 32-bit numbers
UBATCH = 512
DRAFT_LENGTH = 8
ASKED_FOR = "asked for"  # a reason
_CONTEXT_LEAST = 512  # that a chat is of any use with


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asked for; None leaves it to the plan.

    `budget`: bytes, or text as `parse_budget` reads it. `store`: keep experts in the store, or do not.
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    threads_fixed: bool = False
    cache_type: str | None = None
    mode: str | None = None
    draft_experts: int | None = None
    draft_length: int | None = None
    cap: int | None = None
    resident_only: bool | None = None
    prefetch: bool | None = None
    budget: int | str | None = None
    store: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is loaded and decoded here.

    `n_outputs`: rows of a pass that may keep their logits, at most; room for them is set aside.
    `cache_type`: a key of CACHE_TYPES, for keys and values alike. `threads_fixed`: the number stays when
    others crowd the machine, which can make decode twenty times slower. `repack`: some weights are kept in a
    faster layout, in a second copy unless there is a store. `budget_bytes`: what the whole process may take,
    0 for no limit. `store`: experts are read from disk as they are needed, all other weights stay in memory
    that is no file's; without a budget every expert has its place. `resident_bytes`: weights outside the
    routed experts, `expert_bytes`: those of the experts, as the files have them. `other_bytes`: what the
    process takes beside experts, an estimate. `gpu_layers`: layers on the GPU, -1 to leave it to the
    library. `obstacle`: why the model does not
    run well, and the smallest thing that would change that.
    """

    n_ctx: int
    n_threads: int
    threads_fixed: bool
    n_ubatch: int
    cache_type: str
    repack: bool
    budget_bytes: int
    store: bool
    resident_bytes: int
    expert_bytes: int
    other_bytes: int
    speculation: Speculation
    n_outputs: int = ROWS_EXACT
    gpu_layers: int = ALL
    forecast: Forecast | None = None
    obstacle: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def held_bytes(self) -> int:
        """Of the experts, in memory."""
        if not self.budget_bytes:
            return 0 if self.obstacle else self.expert_bytes
        return max(0, min(self.expert_bytes, self.budget_bytes - self.other_bytes))

    @property
    def total_bytes(self) -> int:
        """What the process is going to take, an estimate; with a budget no more than that."""
        copies = self.resident_bytes + self.expert_bytes if self.repack and not self.store else 0
        total = self.other_bytes + self.held_bytes + copies
        return min(total, self.budget_bytes) if self.budget_bytes else total


def make_plan(device: Device, model: ModelInfo, wishes: Wishes, measured: Measured | None = None) -> Plan:
    """`measured`: what a calibration found for this model here; the paper's figures stand in for it.

    Raises BadRequest when a wish makes no sense for this model.
    """
    reasons: dict[str, str] = {}
    notices: list[str] = []
    cache_type = _cache_type(wishes, reasons)
    cell_bytes = cell_bytes_of(model, cache_type)
    n_ctx = _context(device, model, cell_bytes, wishes, reasons, notices)
    need = _need(model, n_ctx, cell_bytes)
    placement = place(device, need, can_store=model.expert_bytes > 0 and wishes.store is not False)
    reasons["gpu_layers"] = placement.reason
    if placement.gpu_layers != ALL:
        notices.append(placement.reason)
    device = placement.device
    allowance = _allowance(device, model, need, wishes, reasons, notices)
    obstacle = _obstacle(device, model, allowance, n_ctx, cache_type) if allowance.lacking else ""
    plan = Plan(
        n_ctx=n_ctx,
        n_threads=_threads(device, wishes, reasons),
        threads_fixed=wishes.threads_fixed,
        n_ubatch=UBATCH,
        cache_type=cache_type,
        repack=_repack(device, model, need, allowance, reasons, notices),
        budget_bytes=allowance.count_bytes,
        store=allowance.store,
        resident_bytes=model.size_bytes - model.expert_bytes,
        expert_bytes=model.expert_bytes,
        other_bytes=need.base + GROWTH_BYTES if allowance.count_bytes else need.whole - need.experts,
        speculation=_speculation(device, model, wishes, measured, reasons, notices),
        gpu_layers=placement.gpu_layers,
        obstacle=obstacle,
        reasons=reasons,
        notices=(*notices, obstacle) if obstacle else tuple(notices),
    )
    return replace(plan, forecast=_forecast(device, model, plan))


def _need(model: ModelInfo, n_ctx: int, cell_bytes: int) -> Need:
    return need_of(model, n_ctx=n_ctx, cell_bytes=cell_bytes, n_ubatch=UBATCH, n_outputs=ROWS_EXACT)


def _forecast(device: Device, model: ModelInfo, plan: Plan) -> Forecast:
    return forecast(
        device,
        model,
        held_bytes=plan.held_bytes,
        n_ctx=plan.n_ctx,
        n_ubatch=plan.n_ubatch,
        on_gpu=device.gpu,
        mapped=not plan.store,
    )


def _cache_type(wishes: Wishes, reasons: dict[str, str]) -> str:
    reasons["cache_type"] = (
        "full precision; q8_0 takes nearly half" if wishes.cache_type is None else "asked for"
    )
    cache_type = wishes.cache_type or "f16"
    if cache_type not in CACHE_TYPES:
        raise BadRequest(f"unknown cache type {cache_type!r}", hint="one of " + ", ".join(CACHE_TYPES))
    return cache_type


def _context(
    device: Device,
    model: ModelInfo,
    cell_bytes: int,
    wishes: Wishes,
    reasons: dict[str, str],
    notices: list[str],
) -> int:
    trained = model.n_ctx_train or CONTEXT_DEFAULT
    if wishes.n_ctx:
        _check_context(device, cell_bytes, wishes.n_ctx, notices)
        if wishes.n_ctx > trained:
            notices.append(
                f"the model was trained for {trained} tokens; a context of {wishes.n_ctx} may ramble"
            )
        reasons["n_ctx"] = "asked for"
        return wishes.n_ctx
    # An eighth of what is free: the weights, the user interface and the rest of the machine need theirs.
    free = device.gpu_free_bytes if device.gpu and device.gpu_free_bytes else device.available_bytes
    if wishes.budget is not None:
        free = min(free, parse_budget(wishes.budget).bytes_for(model.size_bytes) or free)
    room = free // 8 // max(1, cell_bytes)
    n_ctx = max(CONTEXT_MIN, min(trained, CONTEXT_DEFAULT, max(CONTEXT_MIN * 8, room // 256 * 256)))
    reasons["n_ctx"] = (
        "the model's own"
        if n_ctx == trained
        else "enough for a long chat"
        if n_ctx == CONTEXT_DEFAULT
        else f"an eighth of the {size(free)} that are free"
    )
    return n_ctx


def _check_context(device: Device, cell_bytes: int, n_ctx: int, notices: list[str]) -> None:
    if not CONTEXT_MIN <= n_ctx <= CONTEXT_MAX:
        raise BadRequest(
            f"a context of {n_ctx} tokens makes no sense", hint=f"from {CONTEXT_MIN} to {CONTEXT_MAX}"
        )
    # Not refused: layers that keep less than a full KV cache make this an upper bound.
    needed = n_ctx * cell_bytes
    if needed > device.available_bytes:
        notices.append(
            f"a context of {n_ctx} tokens needs up to {needed / 1e9:.1f} GB, "
            f"{device.available_bytes / 1e9:.1f} GB are free: try a smaller -c"
        )


def _threads(device: Device, wishes: Wishes, reasons: dict[str, str]) -> int:
    if wishes.n_threads:
        if not 1 <= wishes.n_threads <= 512:
            raise BadRequest(f"{wishes.n_threads} threads make no sense", hint="1 or more, best one per core")
        reasons["n_threads"] = "asked for"
        return wishes.n_threads
    reasons["n_threads"] = "one per core this process may use, fewer while others need them"
    return device.cores


def _allowance(
    device: Device,
    model: ModelInfo,
    need: Need,
    wishes: Wishes,
    reasons: dict[str, str],
    notices: list[str],
) -> Allowance:
    """The budget, and whether experts are read as they are needed."""
    able = model.expert_bytes > 0 and not device.gpu
    can_store = able and wishes.store is not False
    free, reserve = device.available_bytes, reserve_bytes(device)
    if device.gpu and device.gpu_free_bytes:  # placed there because it fits
        free, reserve = device.gpu_free_bytes, 0
    if wishes.budget is None or device.gpu:
        allowance = allow_free(need, available=free, reserve=reserve, can_store=can_store)
        if wishes.budget is not None:
            notices.append("a budget is kept on the CPU only: this model runs without one")
    else:
        budget = parse_budget(wishes.budget)
        allowance = allow(
            budget,
            need,
            model.name,
            model_bytes=model.size_bytes,
            available=free,
            reserve=reserve,
            can_store=can_store,
        )
    if allowance.notice:
        notices.append(allowance.notice)
    reasons["budget_bytes"] = allowance.reason
    if wishes.store is not None:
        reasons["store"] = (
            "asked for" if able or not wishes.store else "no experts that can be read one by one"
        )
        return replace(allowance, store=able and wishes.store)
    reasons["store"] = (
        "no experts that can be read one by one, or no memory for them"
        if not allowance.store
        else "experts share a budget"
        if allowance.count_bytes
        else "every expert has its place"
    )
    return allowance


def _obstacle(device: Device, model: ModelInfo, allowance: Allowance, n_ctx: int, cache_type: str) -> str:
    """That the model does not run well, and the smallest change with which it would."""
    can_store = model.expert_bytes > 0 and not device.gpu

    def lacks(n_ctx: int, cache_type: str) -> int:
        need = _need(model, n_ctx, cell_bytes_of(model, cache_type))
        free, reserve = device.available_bytes, reserve_bytes(device)
        return allow_free(need, available=free, reserve=reserve, can_store=can_store).lacking

    return f"{allowance.reason}: {_remedy(lacks, allowance.lacking, n_ctx, cache_type)}"


def _remedy(lacks: Callable[[int, str], int], lacking: int, n_ctx: int, cache_type: str) -> str:
    """`lacks`: bytes that are missing with this context and this type of its cache."""
    smaller = [n_ctx >> halvings for halvings in range(1, 32) if n_ctx >> halvings >= _CONTEXT_LEAST]
    kinds = [] if cache_type == "q8_0" else ["q8_0"]
    choices = [(n_ctx, kind) for kind in kinds]
    choices += [(count, cache_type) for count in smaller] + [
        (count, kind) for count in smaller for kind in kinds
    ]
    for count, kind in choices:
        if not lacks(count, kind):
            flags = [f"-c {count}"] if count != n_ctx else []
            flags += [f"--cache-type {kind}"] if kind != cache_type else []
            return f"it would run with {' '.join(flags)}"
    least = min([lacking, *(lacks(count, kind) for count, kind in choices)])
    with_flags = f" and --cache-type q8_0 -c {min([n_ctx, *smaller])}" if least < lacking else ""
    return f"{size(least)} more of free memory{with_flags} would do, or a smaller quantisation"


def _repack(
    device: Device,
    model: ModelInfo,
    need: Need,
    allowance: Allowance,
    reasons: dict[str, str],
    notices: list[str],
) -> bool:
    if device.gpu:
        reasons["repack"] = "no: the GPU reads weights as the file has them"
        return False
    if allowance.store:
        reasons["repack"] = "weights beside the experts, read into the faster layout: no second copy"
        return True
    # Without a store, repacked weights are a copy beside the file's pages: twice the model in the worst case.
    limit = allowance.count_bytes
    if model.size_bytes * 2 < device.available_bytes and (
        not limit or need.whole + model.size_bytes <= limit
    ):
        reasons["repack"] = "memory for a faster copy of the weights"
        return True
    reasons["repack"] = "no memory for a second copy of the weights"
    if model.size_bytes > device.available_bytes:
        notices.append(
            "the model is larger than the free memory: it is read from disk again and again, slowly"
        )
    return False


def _cap(device: Device, model: ModelInfo, wishes: Wishes, reasons: dict[str, str]) -> int:
    choice = seeds.cap(model, device.slowed)
    if wishes.cap is not None and model.is_moe and wishes.cap > model.n_expert:
        raise BadRequest(
            f"a cap of {wishes.cap} experts, but {model.name} has {model.n_expert} per layer",
            hint=f"{model.n_expert_used} to {model.n_expert}",
        )
    if model.is_moe:
        reasons["cap"] = choice.reason if wishes.cap is None else "asked for"
    return max(1, choice.value) if wishes.cap is None else wishes.cap


def _speculation(
    device: Device,
    model: ModelInfo,
    wishes: Wishes,
    measured: Measured | None,
    reasons: dict[str, str],
    notices: list[str],
) -> Speculation:
    mode = wishes.mode or ("ar" if device.gpu else "auto")
    reasons["mode"] = (
        "asked for"
        if wishes.mode
        else "kernels of a GPU differ by width: drafting could change the text"
        if device.gpu
        else "each block by the way that is fastest here; the text is that of ar"
    )
    if mode in MODES and MODES[mode].drafters == ("self",) and not model.is_moe:
        reasons["mode"] = "a dense model has no experts to draft with"
        notices.append(f"{model.name} is a dense model: nothing to draft with, it runs in ar")
        mode = "ar"
    asked = wishes.draft_experts
    choice = seeds.draft_experts(model, device.slowed, measured)
    experts = choice.value if asked is None else asked
    if model.is_moe and experts > model.n_expert_used:
        raise BadRequest(
            f"{experts} draft experts, but {model.name} uses {model.n_expert_used} per token",
            hint=f"1 to {model.n_expert_used}",
        )
    reasons["draft_experts"] = choice.reason if asked is None else ASKED_FOR
    length = DRAFT_LENGTH if wishes.draft_length is None else wishes.draft_length
    why = "short: a draft step costs nearly a full one" if wishes.draft_length is None else "asked for"
    reasons["draft_length"] = why
    cap = _cap(device, model, wishes, reasons)
    return Speculation(
        mode=mode,
        draft_experts=experts,
        draft_length=length,
        cap=cap,
        resident_only=wishes.resident_only is not False,
        prefetch=wishes.prefetch is not False,
    )
