"""Tiny random multimodal models of transformers, with tokenizers that know their placeholders."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from tests.models import BOS, EOS, EOS_ID, PAD, PAD_ID, tiny_tokenizer

_TEMPLATE = (
    "{% for message in messages %}<|user|>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ eos_token }}{% endfor %}"
)
SMOLVLM_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>")
SMOLVLM_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "SmolVLMImageProcessor",
    "size": {"longest_edge": 64},
    "max_image_size": {"longest_edge": 32},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.3, 0.25, 0.5],
}
LLAVA_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.3, 0.25, 0.5],
}
VOCAB_SIZE = 432
_TEXT = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB_SIZE, "pad_token_id": PAD_ID},
    **{"eos_token_id": EOS_ID, "max_position_embeddings": 512},
}


def save_smolvlm(directory: Path, dtype: torch.dtype = torch.float32, **vision: Any) -> SmolVLMForConditionalGeneration:
    """A SmolVLM of two layers each, whose tiles have 64 patches and 16 rows; ``vision`` are fields of its tower."""
    places = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer = _tokenizer(*SMOLVLM_TOKENS, *places)
    tower = {
        **{"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"image_size": 32, "patch_size": 4},
        **vision,
    }
    config = SmolVLMConfig(
        text_config=_TEXT, vision_config=tower, scale_factor=2, image_token_id=tokenizer.token_to_id("<image>")
    )
    torch.manual_seed(0)
    model = SmolVLMForConditionalGeneration(config).eval()
    _save(model, dtype, tokenizer, SMOLVLM_PROCESSOR, directory)
    return model


def save_llava(directory: Path, **config: Any) -> LlavaForConditionalGeneration:
    """A LLaVA 1.5 whose images have 16 patches; ``config`` are fields of its config."""
    tokenizer = _tokenizer("<image>")
    tower = {
        **{"model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3},
        **{"num_attention_heads": 4, "image_size": 32, "patch_size": 8, "projection_dim": 32},
    }
    image_id = tokenizer.token_to_id("<image>")
    torch.manual_seed(0)
    whole = LlavaConfig(text_config=_TEXT, vision_config=tower, image_token_index=image_id, **config)
    model = LlavaForConditionalGeneration(whole).eval()
    _save(model, torch.float32, tokenizer, LLAVA_PROCESSOR, directory)
    return model


def _tokenizer(*tokens: str) -> Tokenizer:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    return tokenizer


def _save(
    model: PreTrainedModel, dtype: torch.dtype, tokenizer: Tokenizer, processor: dict[str, Any], directory: Path
) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
    model.to(dtype)
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    )
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))
