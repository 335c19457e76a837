#!/usr/bin/env python3
"""Makes tests/data/tiny: small random models as GGUF files, and what transformers says of them.

Each model shows something that the real models of the golden tests lack. The weights are rounded to
the file's type first, so both sides compute with the same numbers; the expected logits come from
transformers' own modeling code on the CPU. Needs torch, transformers and gguf:

    python3 tests/data/make_tiny_models.py
"""

import json
import math
import pathlib
import zlib

import gguf
import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / "tiny"
VOCAB = 288
TOKENS = 100
POSITIONS = [0, 1, 15, 16, 31, 33, 64, 99]  # around the page size and the window
TOP = 20

LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

COMMON = dict(vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5,
              pad_token_id=None, bos_token_id=None, eos_token_id=None)

# name: (configuration class, model class, type of the matrices, arguments)
MODELS = {
    # Three query heads to a KV head, an output matrix of its own.
    "llama-gqa3": ("LlamaConfig", "LlamaForCausalLM", "F16", dict(
        hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Llama-3 RoPE scaling, as a tensor of divisors; five query heads to a KV head.
    "llama-rope3": ("LlamaConfig", "LlamaForCausalLM", "F16", dict(
        hidden_size=80, intermediate_size=96, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters={**LLAMA3_SCALING, "rope_theta": 10000.0})),
    # Linear RoPE scaling, a head length that isn't hidden / heads, float32, as many KV heads.
    "llama-linear": ("LlamaConfig", "LlamaForCausalLM", "F32", dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0})),
    # Biases of queries, keys and values; seven query heads to a KV head.
    "qwen2-gqa7": ("Qwen2Config", "Qwen2ForCausalLM", "F16", dict(
        hidden_size=112, intermediate_size=48, num_hidden_layers=2, num_attention_heads=7,
        num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    # Norms of queries and keys, heads wider than hidden / heads, an output matrix of its own.
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", "F16", dict(
        hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    # Windows shorter than the text, two global layers, post norms; RoPE scaled in the global layers
    # alone, with a base of its own in the others.
    "gemma3-scaled": ("Gemma3TextConfig", "Gemma3ForCausalLM", "F16", dict(
        hidden_size=32, intermediate_size=48, num_hidden_layers=12, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=32, query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})),
    # The last layer slides, groups of one layer, no scaling, the default base of sliding layers.
    "gemma3-plain": ("Gemma3TextConfig", "Gemma3ForCausalLM", "F16", dict(
        hidden_size=32, intermediate_size=32, num_hidden_layers=7, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, sliding_window=20, query_pre_attn_scalar=32,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
}

NAMES = {  # transformers -> GGUF, inside a layer
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {**NAMES, "post_attention_layernorm": "post_attention_norm",
               "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}


def fill(model, generator, matrix_type):
    """Random weights, large enough that attention is sharp and every feature shows."""
    gemma = "gemma" in model.config.model_type
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            if weight.dim() == 1 and name.endswith("bias"):
                values *= 0.5
            elif weight.dim() == 1:
                values = values * 0.3 + (0 if gemma else 1)
            elif "embed_tokens" in name or "lm_head" in name:
                values *= 0.5
            else:
                values *= 1.4 / math.sqrt(weight.shape[1])
            if weight.dim() == 2 and matrix_type == "F16":
                values = values.half().float()
            weight.copy_(values)


def gguf_name(name, arch):
    name = name.removeprefix("model.")
    whole = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(GEMMA_NAMES if arch == 'gemma3' else NAMES)[part]}.{kind}"


def permute(weight, heads):
    """llama's rows as GGUF wants them: the two halves of every head interleaved."""
    rows = weight.shape[0]
    return (weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2)
            .reshape(weight.shape))


def rope_factors(head_dim, theta, scaling):
    """The divisors of rope_freqs.weight (Llama 3.1)."""
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wave = 2 * np.pi / frequency
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    length, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    smooth = (length / wave - low) / (high - low)
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < length / high, 1, np.where(wave > length / low, factor, middle))


def add_rope(writer, config, arch, head_dim):
    rope = config.rope_parameters
    if arch == "gemma3":
        local = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        if local != 10000:
            writer.add_float32("gemma3.rope.freq_base_swa", local)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        factors = rope_factors(head_dim, rope["rope_theta"], rope)
        assert (factors == 1).any() and (factors == rope["factor"]).any() and len(set(factors)) > 2
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))


def write_gguf(path, model, arch):
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if head_dim != c.hidden_size // c.num_attention_heads or arch in ("qwen3", "gemma3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
    if arch == "gemma3":
        writer.add_sliding_window(c.sliding_window)
    add_rope(writer, c, arch, head_dim)
    matrix_type = MODELS[path.stem][2]
    for name, weight in model.named_parameters():
        values = weight.detach().float().numpy()
        if arch == "llama" and "q_proj" in name:
            values = permute(values, c.num_attention_heads)
        if arch == "llama" and "k_proj" in name:
            values = permute(values, c.num_key_value_heads)
        if arch == "gemma3" and values.ndim == 1:
            values = values + 1
        is_half = values.ndim == 2 and matrix_type == "F16"
        writer.add_tensor(gguf_name(name, arch), values.astype(np.float16 if is_half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def expected(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    rows = []
    for position in POSITIONS:
        values, top = logits[position].topk(TOP)
        rows.append({"position": position, "ids": top.tolist(),
                     "logits": [round(x, 6) for x in values.tolist()]})
    return {"tokens": ids, "rows": rows, "last": [round(x, 6) for x in logits[-1].tolist()]}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (config_class, model_class, matrix_type, arguments) in MODELS.items():
        config = getattr(transformers, config_class)(**COMMON, **arguments)
        config._attn_implementation = "eager"
        model = getattr(transformers, model_class)(config).eval().float()
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        fill(model, generator, matrix_type)
        ids = torch.randint(VOCAB, (TOKENS,), generator=generator).tolist()
        path = FOLDER / f"{name}.gguf"
        write_gguf(path, model, name.split("-")[0])
        result = expected(model, ids)
        text = json.dumps(result, indent=None, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text.replace('{"position"', '\n{"position"') + "\n")
        spread = float(np.std(result["last"]))
        print(f"{name}: {path.stat().st_size} bytes, logits of spread {spread:.2f}")


if __name__ == "__main__":
    main()
