"""Writes a tiny random model of the family: ``make_model.py DIRECTORY``. Its tokenizer knows numbers."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

CONFIG = {
    "architectures": ["DynamicTanhForCausalLM"],
    "model_type": "dynamic_tanh",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    hidden, wide, vocabulary = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    queries, keys = (CONFIG[f"num_{kind}_heads"] * CONFIG["head_dim"] for kind in ("attention", "key_value"))
    products = {"self_attn.q": (queries, hidden), "self_attn.k": (keys, hidden), "self_attn.v": (keys, hidden)}
    products |= {"self_attn.o": (hidden, queries), "mlp.gate": (wide, hidden), "mlp.up": (wide, hidden)}
    products |= {"mlp.down": (hidden, wide)}
    layers = [f"model.layers.{number}" for number in range(CONFIG["num_hidden_layers"])]
    norms = ["model.norm", *(f"{at}.{name}_layernorm" for at in layers for name in ("input", "post_attention"))]
    found = {f"{at}.{name}_proj.weight": shape for at in layers for name, shape in products.items()}
    found |= {f"{norm}.{name}": (hidden,) for norm in norms for name in ("weight", "bias")}
    found |= {f"{norm}.alpha": (1,) for norm in norms}
    return found | {"model.embed_tokens.weight": (vocabulary, hidden)}


def main() -> None:
    """Write config.json, model.safetensors and tokenizer.json."""
    directory, random = Path(sys.argv[1]), np.random.default_rng(0)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))
    tensors = {name: random.normal(0, shape[-1] ** -0.5, shape) for name, shape in shapes().items()}
    tensors |= {name: np.full(1, 0.5) for name in tensors if name.endswith(".alpha")}
    stored = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    numbers = Tokenizer(WordLevel({str(number): number for number in range(CONFIG["vocab_size"])}, unk_token="0"))
    numbers.pre_tokenizer = Whitespace()
    numbers.save(str(directory / "tokenizer.json"))


if __name__ == "__main__":
    main()
