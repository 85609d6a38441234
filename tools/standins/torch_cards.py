"""Imported before an engine that asks torch about the card: torch is given a stand-in's answers."""

import os
from types import SimpleNamespace

import torch

CAPABILITY = tuple(int(part) for part in os.environ["STANDIN_CAPABILITY"].split("."))
CARDS = int(os.environ["STANDIN_CARDS"])
MEMORY = int(os.environ["STANDIN_MEMORY_GIB"]) * 2**30


def card(_device=None):
    return SimpleNamespace(
        name=f"Stand-in {CAPABILITY[0]}.{CAPABILITY[1]}",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        multi_processor_count=64,
        total_memory=MEMORY,
        warp_size=32,
        is_integrated=False,
        shared_memory_per_block_optin=101376,
    )


for name, value in {
    "is_available": lambda: True,
    "device_count": lambda: CARDS,
    "get_device_capability": lambda device=None: CAPABILITY,
    "get_device_properties": card,
    "get_device_name": lambda device=None: card().name,
    "current_device": lambda: 0,
    "mem_get_info": lambda device=None: (MEMORY, MEMORY),
    "set_device": lambda device: None,
    "empty_cache": lambda: None,
}.items():
    setattr(torch.cuda, name, value)
