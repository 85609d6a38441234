"""Runs inside the engine's own environment: starts it once per shape and says what it settled on.

Called with a file of shapes and a scratch directory. The engine's own log goes to standard error;
lines of ours there begin with `==`, with the shape's name or, after it, a JSON value.
"""

import gc
import json
import sys
import traceback
from pathlib import Path

import tokenizers
import torch
import transformers
import vllm
import vllm.logger
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"])
    words.train_from_iterator(["a request takes whole blocks of the pool"], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def save(path: Path, config: dict) -> str:
    values = dict(config)
    transformers.AutoConfig.for_model(values.pop("model_type"), **values).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


def adapters_bytes(worker: object) -> int:
    """What the engine keeps for LoRA adapters, over all its layers."""
    total = 0
    layers = worker.model_runner.lora_manager._adapter_manager.modules.values()
    for layer in {id(layer): layer for layer in layers}.values():
        kept = {name: value for name, value in vars(layer).items() if name.endswith("_stacked")}
        if "w13_lora_a_stacked" in kept:
            # Views of the same tensors, one for each expert.
            del kept["lora_a_stacked"], kept["lora_b_stacked"]
        for value in kept.values():
            tensors = value if isinstance(value, (tuple, list)) else [value]
            total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return total


def boot(shape: dict, scratch: Path) -> dict:
    arguments = shape["arguments"]
    if shape["drafter"] is not None:
        draft = save(scratch / f"{shape['name']}-draft", shape["drafter"])
        arguments["speculative_config"] |= {"model": draft}
    # The engine prints a line once a process: each of ours is to have its own.
    vllm.logger._print_info_once.cache_clear()
    engine = vllm.LLM(
        save(scratch / shape["name"], shape["config"]),
        dtype="bfloat16",
        enforce_eager=True,
        load_format="dummy",
        **arguments,
    )
    generated = None
    if shape["generate"]:
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0)
        (answer,) = engine.generate(["a request takes"], sampling, use_tqdm=False)
        generated = len(answer.outputs[0].token_ids)
    cache = engine.llm_engine.vllm_config.cache_config
    adapted = arguments.get("enable_lora", False)
    return {
        "adapters_bytes": engine.collective_rpc(adapters_bytes)[0] if adapted else None,
        "block_tokens": cache.block_size,
        "blocks": cache.num_gpu_blocks,
        "generated": generated,
        "amx": torch.cpu._is_amx_tile_supported(),
    }


def main() -> None:
    shapes, scratch = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for shape in shapes:
        print(f"== {shape['name']}", file=sys.stderr, flush=True)
        try:
            answer = boot(shape, scratch)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(f"== {json.dumps(answer)}", file=sys.stderr, flush=True)
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
