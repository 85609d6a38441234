"""Runs inside an engine's environment, as its service finds compilers: compiles kernels for a card.

Called with the names of kernels; a line of JSON for each on stdout, with the seconds that it took,
those of all processors, and the library where the compiler of it says which.
"""

import json
import resource
import sys
import time

import torch

HALF, INDEX, HEAD = torch.float16, torch.int32, 64


def page():
    from flashinfer.jit.page import gen_page_module

    return built(gen_page_module())


def sampling():
    from flashinfer.jit.sampling import gen_sampling_module

    return built(gen_sampling_module())


def decode():
    from flashinfer.jit.attention import gen_batch_decode_module

    return built(gen_batch_decode_module(HALF, HALF, HALF, INDEX, HEAD, HEAD, 0, False, False))


def prefill():
    from flashinfer.jit.attention import gen_batch_prefill_module

    shape = (HALF, HALF, HALF, INDEX, HEAD, HEAD, 0, False, False, False)
    return built(gen_batch_prefill_module("fa2", *shape))


def positions():
    """What SGLang decodes every batch with, by SGLang's own loader."""
    try:
        from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module
    except ImportError:
        from sglang.jit_kernel.clamp_position import _jit_clamp_position_module
    _jit_clamp_position_module(torch.int64)


def built(module):
    module.build(verbose=True)
    return str(module.get_library_path())


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


for name in sys.argv[1:]:
    began, before = time.monotonic(), spent()
    library = globals()[name]()
    seconds, processors = time.monotonic() - began, spent() - before
    told = {"name": name, "seconds": round(seconds), "processor_seconds": round(processors)}
    print(json.dumps(told | {"library": library}), flush=True)
