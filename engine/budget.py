"""The memory the whole engine process may take: as a person wishes it, and as this machine allows it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from engine.device import Device
from engine.errors import BadRequest
from engine.need import Need
from engine.size import parse_size, size

_SHARE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,9})?) ?%")
_HINT = "write 3G or 1500M, 25% of the model's files, or max for no limit"
_LIMIT_BYTES = 1 << 50

#: What the rest of the machine keeps when nobody names a budget: at least so many bytes, or a part of all.
_RESERVE_DESKTOP = (1536 << 20, 0.10)
_RESERVE_JETSON = (768 << 20, 0.08)  # boards seldom run more than one program
_RESERVE_GROUP = (256 << 20, 0.06)  # of what a cgroup leaves: the group is ours, chat and engine
_RESERVE_MOST_PART = 4  # of what is free, or a small machine would run nothing
_DOUBT = 0.05


@dataclass(frozen=True, slots=True)
class Budget:
    """A wish: `count_bytes`, or a `share` of the model's files, or neither: no limit."""

    count_bytes: int = 0
    share: Fraction = Fraction(0)

    @property
    def wire(self) -> int | str:
        """As it travels in requests: equal budgets look alike, however they were written."""
        if self.share:
            return f"{float(100 * self.share):g}%"
        return self.count_bytes or "max"

    def bytes_for(self, model_bytes: int) -> int:
        """0 for no limit."""
        return int(self.share * model_bytes) if self.share else self.count_bytes


@dataclass(frozen=True, slots=True)
class Allowance:
    """What came of it. `count_bytes` 0: no limit. `store`: experts are read from disk as they are needed.

    `lacking`: bytes that would have to be free for the model to run well, 0 when it does.
    """

    count_bytes: int
    store: bool
    reason: str
    notice: str = ""
    lacking: int = 0


def parse_budget(value: object) -> Budget:
    """Reads "3G", "1500M", "25%", "max", or a number of bytes. Raises BadRequest that says what to write."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked(Budget(value), str(value))
    if not isinstance(value, str):
        raise BadRequest("budget is not a size", hint=_HINT)
    text = value.strip()
    if text.lower() == "max":
        return Budget()
    if match := _SHARE.fullmatch(text):
        return _checked(Budget(share=Fraction(match[1]) / 100), text)
    try:
        return _checked(Budget(parse_size(text)), text)
    except BadRequest:
        raise BadRequest(f"{value!r} is no budget", hint=_HINT) from None


def allow(
    budget: Budget, need: Need, name: str, *, model_bytes: int, available: int, reserve: int, can_store: bool
) -> Allowance:
    """Grants a wish; `reserve` is for others. Raises BadRequest when the model cannot run with so little.

    What is in doubt is granted: once the model is loaded its needs are known, and checked again.
    """
    count = budget.bytes_for(model_bytes)
    if not count:
        return Allowance(0, can_store and need.whole <= available - reserve, "asked for: no limit")
    least = need.least if can_store else need.whole
    if count < need.certain(whole=not can_store):
        held = "" if can_store else ", as it is held whole"
        raise BadRequest(
            f"a budget of {size(count)} is too small: {name} needs about {size(least)}{held}; "
            + need.words(whole=not can_store),
            hint=f"--budget {_rounded_up(least)} or more, or a smaller -c",
        )
    notice = f"a budget of {size(count)}, but {size(available)} are free" if count > available else ""
    return Allowance(count, can_store, "asked for", notice)


def reserve_bytes(device: Device) -> int:
    """What is left to other programs of the memory that is free, where nobody names a budget."""
    free = device.available_bytes
    least, part = _RESERVE_JETSON if device.jetson else _RESERVE_DESKTOP
    whole = device.memory_bytes
    if device.limited:
        (least, part), whole = _RESERVE_GROUP, free
    return min(max(least, int(part * whole)), free // _RESERVE_MOST_PART)


def allow_free(need: Need, *, available: int, reserve: int, can_store: bool) -> Allowance:
    """What is best where nobody asked: no limit if everything fits, else as much as the machine can spare."""
    room = available - reserve
    if need.whole <= room:
        return Allowance(0, can_store, "the whole model fits into memory")
    if not can_store:
        # Pages of its file can go and come back, so the reserve is not at stake.
        lacking = max(0, need.whole - available)
        return Allowance(0, False, "this model cannot be held in parts", lacking=lacking)
    least = int(need.least * (1 + _DOUBT))  # what nobody asked for must not fail for a wrong estimate
    if room < least:
        notice = (
            f"{size(available)} are free, {size(reserve)} of them for the rest of the machine; "
            f"the model needs at least {size(least)} to run well"
        )
        return Allowance(0, False, "too little memory for any budget", notice, least - room)
    notice = (
        f"the model needs {size(need.whole)}, {size(available)} are free: it runs within {size(room)}, "
        "experts are read from disk as they are needed"
    )
    return Allowance(room, True, f"what is free, less {size(reserve)} for the rest of the machine", notice)


def _checked(budget: Budget, text: str) -> Budget:
    if budget.count_bytes < 0 or not (budget.count_bytes or budget.share):
        raise BadRequest(f"a budget of {text} holds nothing", hint=_HINT)
    if budget.count_bytes > _LIMIT_BYTES:
        raise BadRequest(f"a budget of {text} is more than any machine has", hint=_HINT)
    return budget


def _rounded_up(count_bytes: int) -> str:
    """A size to type, no smaller than this one."""
    return f"{-(-count_bytes // (1 << 20))}M"
