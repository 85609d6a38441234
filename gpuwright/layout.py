"""Where everything of ours lives on a node: one place that names each path."""

from dataclasses import dataclass

USER = "gpuwright"

# Where systemd makes the directories that a unit's RuntimeDirectory= and CacheDirectory= name.
RUN = "/run"
CACHE = "/var/cache"

# Gone with every boot: locks of programs at work, and units that are being looked at.
RUNTIME = f"{RUN}/gpuwright"

ARCHIVES, SYSTEM = f"{CACHE}/apt/archives", "/usr"
"""Where packages are fetched to, and where they are unpacked."""

TOOLKIT = "cuda"
"""The CUDA toolkit below an environment that brings one."""
DRIVER_LIBRARIES = tuple(
    f"{place}/libcuda.so.1"
    for place in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
    )
)
"""Where drivers put it: Debian and Ubuntu, the vendor's own installer, containers, WSL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Absolute paths on a node; only the model store is the operator's to move."""

    model_store: str = "/var/lib/gpuwright/models"
    engines: str = "/opt/gpuwright/engines"
    state: str = "/var/lib/gpuwright"
    cache: str = "/var/cache/gpuwright"
    config: str = "/etc/gpuwright"
    units: str = "/etc/systemd/system"

    @property
    def plans(self) -> str:
        """Records of what was applied, one JSON file per service."""
        return f"{self.state}/plans"

    @property
    def environments(self) -> str:
        """Environment files with secrets; the directory and its files are root's alone."""
        return f"{self.config}/services"

    def kernels(self, engine: str, release: str) -> str:
        """What a release compiles while it serves, kept for its next start. Not the operator's to
        move: systemd makes it, and gives it to the service's user."""
        return f"{CACHE}/gpuwright/{engine}-{release}"

    @property
    def toolkits(self) -> str:
        """CUDA toolkits that were unpacked from wheels."""
        return f"{self.engines.rsplit('/', 1)[0]}/toolkits"

    @property
    def pythons(self) -> str:
        """Pythons that were brought to the node."""
        return f"{self.engines.rsplit('/', 1)[0]}/pythons"

    def unit_name(self, service: str) -> str:
        """The systemd unit that runs `service`."""
        return f"gpuwright-{service}.service"

    def unit_path(self, service: str) -> str:
        return f"{self.units}/{self.unit_name(service)}"

    def environment_path(self, service: str) -> str:
        return f"{self.environments}/{service}.env"

    def plan_path(self, service: str) -> str:
        return f"{self.plans}/{service}.json"

    def engine_dir(self, engine: str, release: str, key: str) -> str:
        """A build or environment of one content key; a directory that exists is complete."""
        return f"{self.engines}/{engine}-{release}-{key}"

    def toolkit_dir(self, toolkit: str, key: str) -> str:
        """A CUDA toolkit that builds use; a directory that exists is complete."""
        return f"{self.toolkits}/{toolkit}-{key}"

    def checkpoint_dir(self, checkpoint: str) -> str:
        return f"{self.model_store}/{checkpoint}"
