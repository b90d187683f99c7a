"""The keys of tekken.json, the tokenizer of Mistral's models: one table for each kind of object in it.

Source: ``Tekkenizer.from_file`` of mistral-common. ``tekken_file`` reads what is used.
"""

from trtllm_lite.convert.metadata.key_table import KeyTable

TEKKEN = KeyTable(
    "tekken",
    used=("config", "vocab", "special_tokens"),
    changes_nothing={
        "the engine takes texts alone": "image multimodal audio",
        "for chats, which the chat template formats": "model_settings_builder",
        "mistral-common leaves them unread": "version type",
    },
)

TEKKEN_CONFIG = KeyTable(
    "tekken.config",
    used=("pattern", "default_vocab_size", "default_num_special_tokens"),
    changes_nothing={"the length of the list, which default_vocab_size limits": "num_vocab_tokens"},
    # Versions decide how chats are written; the last is the newest that mistral-common 1.13 reads.
    only_as={"version": ("v1", "v2", "v3", "v7", "v11", "v13", "v15")},
)

TEKKEN_TOKEN = KeyTable(
    "tekken.vocab",
    used=("rank", "token_bytes"),
    changes_nothing={"the same bytes as text": "token_str"},
)

TEKKEN_SPECIAL_TOKEN = KeyTable(
    "tekken.special_tokens",
    used=("rank", "token_str"),
    changes_nothing={"all special tokens are found in prompts, and left out of answers": "is_control"},
)
