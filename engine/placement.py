"""Where a model runs: on the GPU when its memory holds all of it, else on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.budget import reserve_bytes
from engine.device import Device
from engine.need import Need
from engine.size import size

_GPU_RESERVE = 384 << 20  # the CUDA context and a desktop's windows
ALL, NONE = -1, 0


@dataclass(frozen=True, slots=True)
class Placement:
    """`device` as the rest of the plan sees it: with `gpu` only if the model runs there.

    `gpu_layers`: ALL, or NONE where the library would use a GPU and must not.
    """

    device: Device
    gpu_layers: int
    reason: str

    @property
    def on_gpu(self) -> bool:
        return self.device.gpu


def place(device: Device, need: Need, *, can_store: bool) -> Placement:
    """Experts are read from disk on the CPU only, so a GPU takes a model whole or not at all."""
    if not device.gpu:
        return Placement(device, ALL, "no GPU that the library computes on")
    room = gpu_room(device)
    whose = "the GPU's own memory" if device.gpu_free_bytes else "the memory that GPU and CPU share"
    if need.whole <= room:
        return Placement(device, ALL, f"all of it fits into {whose}, {size(room)}")
    cpu = replace(device, gpu=False)
    if can_store or need.whole <= device.available_bytes - reserve_bytes(device):
        why = f"{size(need.whole)} do not fit into {whose}, {size(room)}"
        return Placement(cpu, NONE, f"{why}: it runs on the CPU")
    return Placement(device, ALL, f"it fits nowhere; {size(room)} of {whose}")


def gpu_room(device: Device) -> int:
    """Bytes a model may take on the GPU. Memory that CPU and GPU share is counted once, as the machine's."""
    if device.gpu_free_bytes:
        return max(0, device.gpu_free_bytes - _GPU_RESERVE)
    return device.available_bytes - reserve_bytes(device)
