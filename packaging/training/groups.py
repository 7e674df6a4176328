"""Which neurons of a layer belong together: those that matter always, and groups that fire together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.geometry import Geometry

Floats = npt.NDArray[np.float32]
_ROUNDS = 12


@dataclass(frozen=True)
class Groups:
    """`shared` [s] neurons of the shared expert, `members` [experts, width] those of each routed one; a
    neuron may be in several groups."""

    shared: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]


def grouped(strength: Floats, geometry: Geometry, seed: int) -> Groups:
    """Groups for one layer from `strength` [tokens, 1536]: |activation| times the length of its down
    column."""
    order = np.argsort(-np.sqrt(np.square(strength).mean(0)), kind="stable")
    shared, rest = np.sort(order[: geometry.shared]), np.sort(order[geometry.shared :])
    likeness = _likeness(strength[:, rest])
    label = _balanced(likeness, geometry.experts, np.random.default_rng(seed))
    return Groups(shared, rest[_filled(likeness, label, geometry)])


def _likeness(strength: Floats) -> Floats:
    """Cosine of the square roots of what neurons contribute [n, n]: the root keeps a few loud tokens from
    ruling."""
    root = np.sqrt(strength)
    root /= np.linalg.norm(root, axis=0, keepdims=True) + 1e-9
    likeness: Floats = root.T @ root
    likeness -= likeness.mean()
    return likeness


def _balanced(likeness: Floats, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """A group for each neuron, groups of equal size within one: k-means where the best matches choose
    first."""
    n = len(likeness)
    room = np.full(count, n // count)
    room[: n % count] += 1
    label = random.permutation(np.repeat(np.arange(count), room))
    seeds = [int(random.integers(n))]
    for _ in range(count - 1):  # each next seed is what is least like those before it
        seeds.append(int(likeness[:, seeds].max(1).argmin()))
    near = likeness[:, seeds]
    for _ in range(_ROUNDS):
        before, label = label, _assigned(near, room)
        member = np.zeros((n, count), dtype=np.float32)
        member[np.arange(n), label] = 1.0
        # How like a neuron is to each group's others; it does not count itself.
        own = np.diagonal(likeness)[:, None] * member
        near = (likeness @ member - own) / np.maximum(member.sum(0) - member, 1.0)
        if (before == label).all():
            break
    return label


def _assigned(near: Floats, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    n, count = near.shape
    label, left = np.full(n, -1), room.copy()
    for pair in np.argsort(-near, axis=None, kind="stable").tolist():
        neuron, group = divmod(pair, count)
        if label[neuron] < 0 and left[group]:
            label[neuron] = group
            left[group] -= 1
    return label


def _filled(likeness: Floats, label: npt.NDArray[np.int64], geometry: Geometry) -> npt.NDArray[np.int64]:
    """Places in `likeness` [experts, width]: each group's own, then those that fire most with it."""
    rows = []
    for group in range(geometry.experts):
        own = np.flatnonzero(label == group)[: geometry.width]
        near = likeness[:, own].mean(1)
        near[own] = -np.inf
        guests = np.argsort(-near, kind="stable")[: geometry.width - len(own)]
        rows.append(np.concatenate([own, guests]))
    return np.stack(rows)
