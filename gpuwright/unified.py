"""Cards whose memory is the node's RAM: the driver gives no size of it, so the RAM's is theirs."""

from __future__ import annotations

from dataclasses import replace

from gpuwright.cards import Gpu
from gpuwright.catalogue import Matrix
from gpuwright.host import Host


def shares_ram(gpu: Gpu, matrix: Matrix) -> bool:
    row = matrix.gpu(gpu)
    return row is not None and row.unified_memory


def with_ram_as_memory(host: Host, matrix: Matrix) -> Host:
    """`host` with what it has of RAM as the memory of such cards, where that is all that is told:
    NVML answers "not supported" there, and nvidia-smi prints [N/A]."""
    gpus = tuple(
        replace(gpu, total_bytes=host.memory_total_bytes)
        if gpu.total_bytes is None and shares_ram(gpu, matrix)
        else gpu
        for gpu in host.gpus
    )
    return host if gpus == host.gpus else replace(host, gpus=gpus)
