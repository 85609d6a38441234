"""From a plan to a command line: with its neighbours of the same name, the only place that spells
engines' flags and words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpuwright.features import filled
from gpuwright.launch_environment import CudaCompiler, card_environment, python_environment
from gpuwright.launch_files import (
    ik_llama_cpp_files,
    runtime_directory,
    sglang_files,
    tensorrt_llm_files,
)
from gpuwright.launch_llama import ik_llama_cpp_arguments, llama_cpp_arguments
from gpuwright.launch_tensorrt_llm import (
    linked_model,
    tensorrt_llm_arguments,
    tensorrt_llm_settings,
)
from gpuwright.launch_words import backend_word, cache_word, named_by_directory
from gpuwright.layout import RUN, Layout
from gpuwright.plan import Plan, PlannedCheckpoint
from gpuwright.versions import at_least

GGUF_ENGINES = ("llama.cpp", "ik_llama.cpp")
"""They are given a file, not a checkpoint's directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """How a service starts. No secret stands in it: `secret_names` come from the environment
    file, under these names."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """A command that runs before each start, as the service: it writes files into the service's
    own directory below /run."""
    compiles: bool = False
    """Whether it writes machine code as it runs, and keeps it in `Layout.kernels`."""


def model_path_of(plan: Plan, layout: Layout) -> str:
    """What its engine is told of the plan's model."""
    return _weights_path(layout, plan.checkpoints[0], plan.engine)


def _paths_beside(plan: Plan, layout: Layout) -> dict[str, str]:
    """The same of its drafter and its projector."""
    paths = {each.id: _weights_path(layout, each, plan.engine) for each in plan.beside}
    drafter = plan.speculation.drafter if plan.speculation is not None else None
    named = {"drafter": drafter, "projector": plan.projector}
    return {word: paths[name] for word, name in named.items() if name is not None}


def _weights_path(layout: Layout, checkpoint: PlannedCheckpoint, engine: str) -> str:
    """What `engine` is told of a checkpoint: its directory, or its GGUF file, of several parts
    the first; its row has no other. MODEL.gguf stands for one that nobody has pinned."""
    directory = layout.checkpoint_dir(checkpoint.id)
    if engine not in GGUF_ENGINES:
        return directory
    parts = [file.path for file in checkpoint.files if file.path.endswith(".gguf")]
    return f"{directory}/{min(parts, default='MODEL.gguf')}"


def launch(
    plan: Plan,
    layout: Layout,
    model_path: str,
    engine_dir: str,
    serve: tuple[str, ...] = (),
    compiler: CudaCompiler | None = None,
) -> Launch:
    """The command of `plan`. `model_path` is where its model is (see `model_path_of`); `engine_dir`
    is the finished build or environment; `serve` the command below it, of a release that has one of
    its own, and `compiler` what kernels are compiled with there. Empty for engines that only
    decide."""
    if plan.engine not in ENGINES:
        return Launch(argv=())
    start = ENGINES[plan.engine](plan, layout, model_path, engine_dir)
    argv, paths = start.argv, _paths_beside(plan, layout)
    if serve:
        # Up to the model's path, which every engine that has an environment is given behind its
        # command; what it is called by is a link to it.
        first = next(at for at, word in enumerate(argv) if word in (model_path, linked_model(plan)))
        argv = (f"{engine_dir}/{serve[0]}", *serve[1:], *argv[first:])
    environment = start.environment
    if compiler is not None:
        environment = environment | compiler.variables(environment)
    return replace(
        start, argv=filled(argv, paths), before=filled(start.before, paths), environment=environment
    )


def _llama_cpp(plan: Plan, layout: Layout, model_path: str, engine_dir: str) -> Launch:
    return Launch(
        argv=(f"{engine_dir}/bin/llama-server", *llama_cpp_arguments(plan, model_path)),
        environment=card_environment(plan),
        secret_names=("LLAMA_API_KEY",),
    )


def _ik_llama_cpp(plan: Plan, layout: Layout, model_path: str, engine_dir: str) -> Launch:
    """It takes its keys as arguments, which everybody could read, or from a file."""
    key_file = f"{RUN}/{runtime_directory(plan)}/keys"
    return Launch(
        argv=(
            f"{engine_dir}/bin/llama-server",
            *ik_llama_cpp_arguments(plan, model_path, key_file),
        ),
        environment=card_environment(plan),
        secret_names=("LLAMA_API_KEY",),
        before=ik_llama_cpp_files(),
    )


def _vllm(plan: Plan, layout: Layout, model_path: str, engine_dir: str) -> Launch:
    parameters = plan.parameters
    argv = [
        f"{engine_dir}/bin/vllm",
        "serve",
        model_path,
        "--host",
        plan.bind,
        "--port",
        str(plan.port),
        "--served-model-name",
        plan.served_model_name,
        "--tensor-parallel-size",
        str(plan.tensor_parallel_size),
        "--max-model-len",
        str(plan.max_model_len),
        "--max-num-seqs",
        str(plan.max_num_seqs),
        "--max-num-batched-tokens",
        str(parameters["max_num_batched_tokens"]),
        *_vllm_memory(plan),
        "--attention-backend",
        backend_word(plan.engine, plan.attention_backend),
    ]
    argv += _dtype_flag(plan)
    if parameters.get("eager"):
        argv.append("--enforce-eager")
    argv += _python_flags(plan)
    kernels = layout.kernels(plan.engine, plan.release)
    environment = python_environment(plan, layout, engine_dir) | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": f"{kernels}/vllm",
        "VLLM_CONFIG_ROOT": f"{kernels}/config/vllm",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    if parameters.get("flashinfer_sampler") is False:
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if parameters.get("flashinfer_fp8_gemm") is False:
        environment["VLLM_DISABLED_KERNELS"] = "FlashInferFP8ScaledMMLinearKernel"
    return Launch(
        argv=tuple(argv),
        environment=environment,
        secret_names=("VLLM_API_KEY",),
        compiles=True,
    )


def _vllm_memory(plan: Plan) -> tuple[str, ...]:
    """The pool: a share of each card, or bytes of RAM, whose cache is of the model's own type."""
    parameters = plan.parameters
    if not plan.gpus:
        size = str(parameters["kv_cache_memory_bytes"])
        return ("--kv-cache-memory-bytes", size, "--kv-cache-dtype", "auto")
    return (
        "--gpu-memory-utilization",
        str(parameters["gpu_memory_utilization"]),
        "--kv-cache-dtype",
        cache_word(plan.engine, plan.kv_cache_dtype),
    )


def _sglang(plan: Plan, layout: Layout, model_path: str, engine_dir: str) -> Launch:
    parameters = plan.parameters
    argv = [
        f"{engine_dir}/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        model_path,
        "--host",
        plan.bind,
        "--port",
        str(plan.port),
        "--served-model-name",
        plan.served_model_name,
        "--tp-size",
        str(plan.tensor_parallel_size),
        "--context-length",
        str(plan.max_model_len),
        "--max-running-requests",
        str(plan.max_num_seqs),
        "--chunked-prefill-size",
        str(parameters["chunked_prefill_tokens"]),
        "--mem-fraction-static",
        str(parameters["mem_fraction_static"]),
        "--kv-cache-dtype",
        cache_word(plan.engine, plan.kv_cache_dtype),
        "--attention-backend",
        plan.attention_backend,
        "--enable-metrics",
    ]
    argv += _dtype_flag(plan)
    if "graph_batch_cap" in parameters:
        by_phase = at_least(plan.release, "0.5.23")
        flag = "--cuda-graph-max-bs-decode" if by_phase else "--cuda-graph-max-bs"
        argv += [flag, str(parameters["graph_batch_cap"])]
    if parameters.get("linear_state_slots"):
        argv += ["--max-mamba-cache-size", str(parameters["linear_state_slots"])]
    argv += _python_flags(plan)
    directory = f"{RUN}/{runtime_directory(plan)}"
    # It takes its key as an argument, which everybody could read, or from this file.
    argv += ["--config", f"{directory}/arguments.yaml"]
    environment = python_environment(plan, layout, engine_dir) | {
        "SGLANG_CACHE_DIR": layout.kernels(plan.engine, plan.release),
        "SGLANG_HOST_IP": "127.0.0.1",
        "SGLANG_LOGGING_CONFIG_PATH": f"{directory}/logging.json",
    }
    return Launch(
        argv=tuple(argv),
        environment=environment,
        secret_names=("SGLANG_API_KEY",),
        before=sglang_files(plan.release),
        compiles=True,
    )


def _tensorrt_llm(plan: Plan, layout: Layout, model_path: str, engine_dir: str) -> Launch:
    """It knows no key: `want_rules.guarded` lets a plan bind it to loopback alone."""
    named = named_by_directory(plan.engine, plan.release)
    linked = (model_path, plan.served_model_name) if named else ()
    return Launch(
        argv=(f"{engine_dir}/bin/trtllm-serve", *tensorrt_llm_arguments(plan, model_path)),
        environment=python_environment(plan, layout, engine_dir),
        before=tensorrt_llm_files(tensorrt_llm_settings(plan), linked),
        compiles=True,
    )


def _dtype_flag(plan: Plan) -> tuple[str, ...]:
    """What is computed in, beside a cache of 16 bits: where a checkpoint says the other float, vLLM
    reads the bits of one as the other (vllm-project/vllm pull request 54338)."""
    word = {"bf16": "bfloat16", "f16": "float16"}.get(plan.kv_cache_dtype)
    return () if word is None else ("--dtype", word)


def _python_flags(plan: Plan) -> list[str]:
    """Flags that vLLM and SGLang spell alike."""
    parameters, flags = plan.parameters, []
    if parameters.get("custom_all_reduce") is False:
        flags.append("--disable-custom-all-reduce")
    return [*flags, *plan.feature_arguments]


ENGINES: dict[str, Callable[[Plan, Layout, str, str], Launch]] = {
    "llama.cpp": _llama_cpp,
    "ik_llama.cpp": _ik_llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
}
"""Engines whose command is known."""
