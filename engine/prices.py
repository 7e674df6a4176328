"""What full passes cost here, measured while they run: plain decode, and verify passes.

They follow the form of S2-MoE's section 4.1 with a price for each thing, a + b·positions + c_mem·(experts in
memory) + c_late·(on their way) + c_io·(on disk): least squares over passes that count the less the longer ago
they were, none of the prices below zero, refitted after each wide pass and now and then after narrow ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import mul

import numpy as np
import numpy.typing as npt

_FORGET = 0.985  # what a pass is worth in the fit after the next one: some 70 passes are remembered
_SWEEPS = 20  # through the prices in a fit: the last one is near
_FIT_EACH = 8  # passes of one row, which say little that is new
_NEW = 0.1  # weight of the newest value in a running mean
_WILD = 4.0  # a pass this many times dearer or cheaper than expected says little about the next one
_WARM_UP = 6  # passes until a prediction is trusted
#: Plain passes in a row after which memory holds what plain decode keeps there, not what drafts left.
_SETTLED = 3


@dataclass(frozen=True, slots=True)
class Load:
    """What a pass works on: `positions` rows, and distinct experts over all layers by where they are."""

    positions: int
    resident: float = 0.0
    late: float = 0.0
    missing: float = 0.0

    @property
    def experts(self) -> float:
        return self.resident + self.late + self.missing

    def scaled(self, share: float) -> Load:
        """With `share` of the experts."""
        return replace(
            self, resident=share * self.resident, late=share * self.late, missing=share * self.missing
        )


class PassPrice:
    """Milliseconds of a full pass as a linear function of its Load."""

    #: 1, positions, experts in memory, on their way, on disk: about what one of each costs in passes.
    _SCALE = np.array([1.0, 1.0, 100.0, 10.0, 10.0])

    def __init__(self) -> None:
        self._weights = [0.0] * 5
        self._squares: npt.NDArray[np.float64] = np.zeros((5, 5))  # of the features, summed over passes
        self._products: npt.NDArray[np.float64] = np.zeros(5)  # of features and milliseconds
        self.count = 0

    @property
    def known(self) -> bool:
        return self.count >= _WARM_UP

    def predict(self, load: Load) -> float:
        """Milliseconds."""
        return float(self._features(load) @ self._weights)

    def observe(self, load: Load, ms: float) -> None:
        """A pass of `load` took `ms`."""
        features = self._features(load)
        if self.known:
            expected = max(self.predict(load), 1e-3)
            ms = min(max(ms, expected / _WILD), expected * _WILD)
        self._squares = _FORGET * self._squares + np.outer(features, features)
        self._products = _FORGET * self._products + features * ms
        self.count += 1
        if load.positions > 1 or self.count <= _FIT_EACH or self.count % _FIT_EACH == 0:
            self._fit()

    def _fit(self) -> None:
        """Least squares, one price after the other. Positions and experts come together: without the bound at
        nothing, one looked cheaper than that at the other's expense."""
        squares, products, weights = self._squares.tolist(), self._products.tolist(), self._weights
        for _ in range(_SWEEPS):
            for i, row in enumerate(squares):
                if row[i] > 0:
                    rest = products[i] - sum(map(mul, row, weights))
                    weights[i] = max(0.0, weights[i] + rest / row[i])

    @property
    def coefficients(self) -> dict[str, float]:
        """Milliseconds per pass, position, and expert in memory, on its way and on disk."""
        values = np.array(self._weights) / self._SCALE
        return dict(zip(("pass", "position", "resident", "late", "missing"), map(float, values), strict=True))

    def _features(self, load: Load) -> npt.NDArray[np.float64]:
        raw = np.array([1.0, load.positions, load.resident, load.late, load.missing])
        scaled: npt.NDArray[np.float64] = raw / self._SCALE
        return scaled


class Mean:
    """A running mean that follows; None until there is a value.

    The first ones count alike: one of them may have found everything cold.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._count = 0

    def add(self, value: float) -> None:
        self._count += 1
        before = value if self.value is None else self.value
        self.value = before + max(_NEW, 1 / self._count) * (value - before)

    def __call__(self, default: float = 0.0) -> float:
        return default if self.value is None else self.value


class Prices:
    """All that is known of one session's costs. They outlive a request: the machine is the same."""

    def __init__(self) -> None:
        self.full = PassPrice()
        self._plain_ms = Mean()
        self._plain_load = [Mean() for _ in range(3)]  # resident, late, missing of a plain pass
        self._more = [Mean() for _ in range(3)]  # the same for each position beyond the first
        self._wide_count = 0  # passes of several rows
        self._plain_run = 0  # passes of plain decode in a row
        self._after_draft = False
        self.last = Load(0)  # of the latest pass

    @property
    def known(self) -> bool:
        """Whether plain decode has been measured at all."""
        return self._plain_ms.value is not None and self.full.known

    @property
    def plain_ms(self) -> float:
        """T_AR: a token by plain decode."""
        return self._plain_ms()

    @property
    def plain_load(self) -> Load:
        """What a pass of one row usually works on."""
        return Load(1, *(mean() for mean in self._plain_load))

    def more_ms(self) -> float:
        """E[ΔC]: one more position whose experts are not known."""
        return self.news_ms(Load(1, *(mean() for mean in self._more)))

    def news_ms(self, news: Load) -> float:
        """ΔC(i|S): one more position that brings experts new to the pass.

        Nothing until passes of several rows were measured: only they tell what a position costs, and who
        thinks them dear makes none.
        """
        if self._wide_count < _WARM_UP:
            return 0.0
        part = self.full.coefficients
        costs = (part["position"], part["resident"], part["late"], part["missing"])
        counts = (news.positions, news.resident, news.late, news.missing)
        return sum(cost * count for cost, count in zip(costs, counts, strict=True))

    def passed(self, load: Load, ms: float) -> None:
        """A full pass was run: plain decode when it had one row and no draft had read ahead for it. What that
        costs counts where it has gone on for a while: right after drafts it finds other experts in memory."""
        self.full.observe(load, ms)
        self.last = load
        parts = (load.resident, load.late, load.missing)
        after_draft, self._after_draft = self._after_draft, False
        self._plain_run = 0 if after_draft or load.positions > 1 else self._plain_run + 1
        if self._plain_run > _SETTLED:
            self._plain_ms.add(ms)
            for mean, value in zip(self._plain_load, parts, strict=True):
                mean.add(value)
        if load.positions == 1:
            return
        self._wide_count += 1
        plain = self.plain_load
        before = (plain.resident, plain.late, plain.missing)
        for mean, value, one in zip(self._more, parts, before, strict=True):
            mean.add(max(0.0, (value - one) / (load.positions - 1)))

    def drafted(self) -> None:
        """A draft step was run, for the pass that comes next."""
        self._after_draft = True
