"""What PyTorch computes on here, and with which numbers."""

from __future__ import annotations

import os

import torch


def choose(name: str, threads: int = 0) -> tuple[torch.device, torch.dtype]:
    """The device called `name` (auto, cpu, cuda) and the type of its matrix products: bf16 where it is fast.

    `threads` of the CPU, 0 for every core this process may use.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu":
        return torch.device(name), torch.bfloat16
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    return torch.device("cpu"), torch.bfloat16 if _has_bf16() else torch.float32


def _has_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def gflops(device: torch.device, dtype: torch.dtype) -> float:
    """10^9 operations per second of a product of the model's shapes, measured for half a second."""
    from time import perf_counter

    left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((1536, 576), (576, 1536)))
    for _ in range(3):
        left @ right
    count, started = 0, perf_counter()
    while perf_counter() - started < 0.5:
        (left @ right)[0, 0].item()
        count += 1
    return count * 2 * 1536 * 576 * 1536 / (perf_counter() - started) / 1e9
