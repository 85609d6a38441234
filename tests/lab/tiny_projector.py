"""A tiny random projector as one GGUF file: what makes words of images for `tiny_gguf`'s model.

A LLaVA projector (llama.cpp's `mlp`) over patches without an encoder's layer: of the encoder's
layers the last is loaded and never computed.
"""

import random
import struct
import zlib

from tests.lab.tiny_gguf import BOOL, F32, HIDDEN, STRING, U32, uniform, written

FILE = "tiny-mmproj-f16.gguf"
SIZE, PATCH, EMBEDDING, INNER = 32, 8, 16, 24
TOKENS = (SIZE // PATCH) ** 2
"""What an image takes of a prompt."""


def content() -> bytes:
    """The file."""
    chance = random.Random(7)
    shapes = {
        "v.patch_embd.weight": (PATCH, PATCH, 3, EMBEDDING),
        "v.position_embd.weight": (EMBEDDING, TOKENS),
        "v.blk.0.attn_out.weight": (EMBEDDING, EMBEDDING),
        "v.blk.0.ffn_up.weight": (EMBEDDING, INNER),
        "v.blk.0.ffn_down.weight": (INNER, EMBEDDING),
        "mm.0.weight": (EMBEDDING, HIDDEN),
        "mm.0.bias": (HIDDEN,),
        "mm.2.weight": (HIDDEN, HIDDEN),
        "mm.2.bias": (HIDDEN,),
    }
    keys = {
        "general.architecture": (STRING, "clip"),
        "general.name": (STRING, "tiny-projector"),
        "general.file_type": (U32, 1),
        "clip.has_vision_encoder": (BOOL, True),
        "clip.projector_type": (STRING, "mlp"),
        "clip.use_gelu": (BOOL, True),
        "clip.vision.embedding_length": (U32, EMBEDDING),
        "clip.vision.feed_forward_length": (U32, INNER),
        "clip.vision.block_count": (U32, 1),
        "clip.vision.attention.head_count": (U32, 2),
        "clip.vision.attention.layer_norm_epsilon": (F32, 1e-5),
        "clip.vision.projection_dim": (U32, HIDDEN),
        "clip.vision.image_size": (U32, SIZE),
        "clip.vision.patch_size": (U32, PATCH),
        "clip.vision.image_mean": (F32, [0.5, 0.5, 0.5]),
        "clip.vision.image_std": (F32, [0.5, 0.5, 0.5]),
    }
    tensors = {}
    for name, shape in shapes.items():
        count = 1
        for columns in shape:
            count *= columns
        tensors[name] = (shape, uniform(chance, count))
    return written(keys, tensors)


def picture(colour: tuple[int, int, int]) -> bytes:
    """A PNG of one colour."""
    lines = (b"\0" + bytes(colour) * SIZE) * SIZE
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
