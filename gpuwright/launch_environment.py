"""What a service finds in its environment: its cards, its programs, and where it keeps what it
compiles. No secret stands here."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwright.layout import Layout
from gpuwright.plan import Plan


def card_environment(plan: Plan) -> dict[str, str]:
    """Cards by UUID, since their order differs between tools and boots; by their index on the bus
    for what reads nothing else, where the gate still asks for their UUIDs."""
    if not plan.gpus:
        return {}
    by_index = plan.parameters.get("cards_by_index") is True
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(
            str(gpu.index) if by_index else gpu.uuid for gpu in plan.gpus
        ),
    }
    if plan.parameters.get("nccl_peer_access") is False:
        environment["NCCL_P2P_DISABLE"] = "1"
    return environment


def python_environment(plan: Plan, layout: Layout, engine_dir: str) -> dict[str, str]:
    """For engines that are Python programs and compile kernels as they run."""
    return (
        card_environment(plan)
        | _kept_kernels(layout.kernels(plan.engine, plan.release))
        | {
            # ninja is a Python package in the environment, and is looked for on PATH alone.
            "PATH": f"{engine_dir}/bin:/usr/local/bin:/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            # Ranks talk to one another on this node alone. Left to themselves the libraries take
            # the first network card, whose packets a service on loopback may not send; NCCL takes
            # lo only where it is named
            # (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaCompiler:
    """The CUDA compiler that an engine's kernels are compiled with, and how many of it may run at
    once."""

    toolkit: str
    """Its directory on the node."""
    jobs: int
    host: str | None = None
    """The C++ compiler that it takes; None: that of the name c++."""

    def variables(self, environment: dict[str, str]) -> dict[str, str]:
        """What a service finds it by; `environment` is the rest of what the service has."""
        found, path = f"{self.toolkit}/bin", environment["PATH"]
        variables = {
            "CUDA_HOME": self.toolkit,
            "PATH": path if found in path.split(":") else f"{found}:{path}",
            "MAX_JOBS": str(self.jobs),
        }
        if self.host is not None:
            # A compiler reads it by itself, whoever calls it.
            variables["NVCC_PREPEND_FLAGS"] = f"-ccbin={self.host}"
        return variables


def _kept_kernels(directory: str) -> dict[str, str]:
    """Every compiler's cache below one directory that outlives the process: the service's user has
    no home, and what is compiled anew at each start takes minutes."""
    return {
        "HOME": directory,
        "PYTHONPYCACHEPREFIX": f"{directory}/python",
        "XDG_CACHE_HOME": f"{directory}/cache",
        "XDG_CONFIG_HOME": f"{directory}/config",
        "CUDA_CACHE_PATH": f"{directory}/cuda",
        "TRITON_CACHE_DIR": f"{directory}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor",
        "TORCH_EXTENSIONS_DIR": f"{directory}/torch_extensions",
        # FlashInfer adds `.cache/flashinfer` to it by itself.
        "FLASHINFER_WORKSPACE_BASE": directory,
    }
