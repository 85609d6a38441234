"""Rules about one card and its condition, whatever the build: None, or the reason why not."""

from __future__ import annotations

from gpuwright.cards import Gpu
from gpuwright.refusals import Needs, Reason


def whole(gpu: Gpu, row: str | None = None) -> Reason | None:
    """The card is not divided: instances are devices of their own, which no plan is made for."""
    if gpu.mig is None:
        return None
    parts = ", ".join(gpu.mig) or "no instance yet"
    return Needs(
        subject=gpu.label,
        needed="a whole card",
        found=f"MIG on ({parts})",
        help=f"MIG off on GPU {gpu.index}: nvidia-smi -i {gpu.index} -mig 0",
        row=row,
    )


def sound(gpu: Gpu, row: str | None = None) -> Reason | None:
    """The card had no error of its hardware since the node booted."""
    if not gpu.failing:
        return None
    logged = f"Xid {', '.join(map(str, gpu.xids))}" if gpu.xids else "memory that failed"
    return Needs(
        subject=gpu.label,
        needed="no error of its hardware since the node booted",
        found=logged,
        help=f"GPU {gpu.index} reset or the node power-cycled, and its power and slot seen to",
        row=row,
    )
