"""A Qwen3 folder as a GGUF file for llama.cpp: the same bf16 matrices, no vocabulary."""

import json
import os
from pathlib import Path

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_of(folder: str) -> str:
    """The file's path; written the first time."""
    home = Path(os.environ["GGUF_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{Path(folder).resolve().name}.gguf"
    weights = Path(folder) / "model.safetensors"
    if not path.exists() or path.stat().st_mtime < weights.stat().st_mtime:
        partial = path.with_suffix(".partial")
        write(Path(folder), partial)
        partial.rename(path)
    return str(path)


def write(folder: Path, path: Path):
    config = json.loads((folder / "config.json").read_text())
    out = gguf.GGUFWriter(path, "qwen3")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("none")
    for name, shape, data in tensors(folder / "model.safetensors"):
        if len(shape) == 1:  # norms, which llama.cpp wants in f32
            out.add_tensor(translate(name), (data.astype(np.uint32) << 16).view(np.float32))
        else:
            out.add_tensor(translate(name), data.view(np.uint8).reshape(shape[0], 2 * shape[1]),
                           raw_dtype=gguf.GGMLQuantizationType.BF16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def tensors(path: Path):
    """Name, shape and bf16 bits of each tensor."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int(data[:8].view(np.uint64)[0])
    for name, entry in json.loads(bytes(data[8 : 8 + length])).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, not BF16")
        first, end = (8 + length + offset for offset in entry["data_offsets"])
        yield name, entry["shape"], np.frombuffer(data[first:end], dtype=np.uint16)


def translate(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
