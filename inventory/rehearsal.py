"""Rigs that do not exist, answering from what tests/hosts knows: try a deploy without a node.

    pyinfra inventory/rehearsal.py deploys/explain.py --dry

Rigs of your own: docs/want.md.
"""

from inventory.rigs import fake_rig

_WANTS = {
    "1x3090": {"model": "Qwen3.6-27B"},
    "2x3090-nvlink": {"model": "Qwen3.6-35B-A3B", "workload": "agents"},
    "4090": {"model": "gemma-4-26B-A4B-it"},
    "5090": {"model": "Qwen3.6-27B", "workload": "throughput"},
    "cpu-debian12": {"model": "auto"},
}

hosts = [fake_rig(rig, want) for rig, want in _WANTS.items()]
