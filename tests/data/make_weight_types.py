"""Writes weight_types.json: random blocks of every weight type, and their values as computed by the
Python package `gguf`, an implementation that shares no code with ours.

    python tests/data/make_weight_types.py

Each entry holds the block bytes and the float32 bit patterns of the values, both as little-endian
hex. All bytes are random except the float16 scales, which are drawn from [-2, 2].
"""

import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# Byte offsets of the float16 scales inside a block.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def plain(name: str, rng: np.random.Generator) -> np.ndarray:
    """64 values of a type without blocks, as bytes."""
    values = rng.normal(size=64).astype(np.float32)
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        values[:4] = [6e-8, -3e-5, 65504, 0]  # two subnormal values, the largest, zero
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    block_values, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = 2 if block_values == 32 else 1
    data = rng.integers(0, 256, size=(count, block_bytes), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = rng.uniform(-2, 2, size=(count, 1)).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8)
    return data.reshape(-1)


def main() -> None:
    rng = np.random.default_rng(20240607)
    entries = []
    for name in ["F32", "F16", "BF16", *SCALES]:
        data = blocks(name, rng) if name in SCALES else plain(name, rng)
        ggml_type = GGMLQuantizationType[name]
        values = quants.dequantize(data, ggml_type).astype("<f4").reshape(-1)
        entries.append(
            {
                "type": name,
                "ggml_id": int(ggml_type),
                "block_values": GGML_QUANT_SIZES[ggml_type][0],
                "block_bytes": GGML_QUANT_SIZES[ggml_type][1],
                "blocks": data.tobytes().hex(),
                "values": values.tobytes().hex(),
            }
        )
    path = pathlib.Path(__file__).with_name("weight_types.json")
    path.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
