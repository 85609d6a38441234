"""What must stand on a node for one service: the plan spelled out in paths, texts and modes."""

import hashlib
import json
from dataclasses import dataclass

from gpuwright.layout import Layout
from gpuwright.plan import Plan, PlannedCheckpoint

STAMP = "gpuwright.json"
PLAN_VARIABLE = "GPUWRIGHT_PLAN"


@dataclass(frozen=True, kw_only=True, slots=True)
class Directory:
    """A directory that must exist with this owner and mode (octal text, as `stat` prints it)."""

    path: str
    mode: str = "0755"
    owner: str = "root"
    group: str = "root"
    kept: bool = False
    """One that is there already stays as it is: the operator named the path, and the decision has
    looked at what stands there (node_rules)."""
    whole: bool = False
    """Where it belongs to another, all below may: all of it is given back to root."""


def directories(layout: Layout) -> tuple[Directory, ...]:
    """Every directory of ours on a node, parents first."""
    default = Layout()
    moved = layout.model_store != default.model_store
    return (
        Directory(path=layout.engines.rsplit("/", 1)[0], whole=True),
        Directory(path=layout.engines),
        Directory(path=layout.state),
        Directory(path=layout.plans),
        Directory(path=layout.cache, kept=layout.cache != default.cache),
        Directory(path=f"{layout.cache}/sources"),
        Directory(path=f"{layout.cache}/ccache"),
        Directory(path=layout.model_store, kept=moved, whole=not moved),
        Directory(path=layout.config),
        Directory(path=layout.environments, mode="0700"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Everything that must stand on the node for one service."""

    layout: Layout
    plan: Plan
    engine_dir: str
    engine_files: tuple[str, ...]
    """Paths below `engine_dir` that the service runs, named in the engine's stamp."""
    unit: str
    """The unit file's whole text; its digest stands in it (see `digest_of`)."""
    secret_names: tuple[str, ...]
    build_packages: tuple[str, ...]
    """Needed while the engine is built, not afterwards."""
    runtime_packages: tuple[str, ...]
    start_timeout_seconds: int
    """How long a start may take that compiles nothing large."""
    compiler_seconds: int = 0
    """How much longer while compilers are at work."""
    repository: str | None = None
    """What the node's package sources must have beside what every node's have."""
    named_files: tuple[str, ...] = ()
    """The operator's own, that the service reads at its start."""
    installed: bool = False
    """Whether the engine is installed from a lock, not built."""

    @property
    def unit_name(self) -> str:
        return self.layout.unit_name(self.plan.service)

    @property
    def unit_path(self) -> str:
        return self.layout.unit_path(self.plan.service)

    @property
    def record_path(self) -> str:
        return self.layout.plan_path(self.plan.service)

    @property
    def environment_path(self) -> str:
        return self.layout.environment_path(self.plan.service)

    @property
    def checkpoints(self) -> tuple[tuple[str, PlannedCheckpoint], ...]:
        """Each with its directory, the model's own first."""
        return tuple((self.layout.checkpoint_dir(each.id), each) for each in self.plan.checkpoints)

    @property
    def record(self) -> str:
        """What is served, as it is stored on the node.

        No secret, and no figure that moves by itself (free memory, reasons that quote it), so that
        the text changes only when the decision does.
        """
        plan = self.plan
        stored = {
            "schema": 1,
            "service": plan.service,
            "bind": plan.bind,
            "port": plan.port,
            "model": plan.model,
            "checkpoint": plan.checkpoint,
            "served_model_name": plan.served_model_name,
            "quantization": plan.quantization,
            "engine": plan.engine,
            "release": plan.release,
            "build_tag": plan.build_tag,
            "attention_backend": plan.attention_backend,
            "kv_cache_dtype": plan.kv_cache_dtype,
            "gpus": [gpu.uuid for gpu in plan.gpus],
            "tensor_parallel_size": plan.tensor_parallel_size,
            "max_model_len": plan.max_model_len,
            "max_num_seqs": plan.max_num_seqs,
            "engine_dir": self.engine_dir,
            "files": {file.path: file.sha256 for file in plan.files},
            "beside": {
                each.id: {file.path: file.sha256 for file in each.files} for each in plan.beside
            },
            "environment_file": self.environment_path,
            "secret_names": list(self.secret_names),
        }
        return json.dumps(stored, indent=1, sort_keys=True) + "\n"


def digest_of(text: str) -> str:
    """Sixteen hex digits that name a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
