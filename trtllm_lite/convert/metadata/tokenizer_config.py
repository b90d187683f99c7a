"""The keys of tokenizer_config.json, special_tokens_map.json and added_tokens.json, which add to the tokenizer itself.

Source: PreTrainedTokenizerBase and the tokenizer classes of transformers. tokenizer.json has the vocabulary and how
text is cut; ``tokenizer_settings`` and ``tokenizer_text`` apply what these files change of it.
"""

from trtllm_lite.common.vocabulary import PROMPT_SETTING
from trtllm_lite.convert.metadata.key_table import KeyTable

TOKEN_KEYS = r"(?!add_)\w+_token"
"""Keys of a token's string or object, by the name of its role: bos_token, image_token, …"""

EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")
"""Keys of further special tokens, as a list or an object by role; the first key that exists counts."""

FLAGS = (
    *("add_bos_token", "add_eos_token", "add_prefix_space", "legacy"),  # ``legacy`` says where a space is put
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
)
"""Keys that are true or false."""

TOKENIZER_CONFIG = KeyTable(
    "tokenizer_config",
    used=(
        *("added_tokens_decoder", *EXTRA_TOKENS, "model_specific_special_tokens"),
        *(*FLAGS, "chat_template"),
        PROMPT_SETTING,  # written by checkpoints of this project
    ),
    changes_nothing={
        "which class of transformers reads the files, whose code is not run here": (
            "tokenizer_class tokenizer_type processor_class image_processor_type auto_map backend use_fast "
            "from_slow init_inputs"
        ),
        "where the author had the files": (
            "name_or_path tokenizer_file vocab_file merges_file special_tokens_map_file files_loaded is_local "
            "local_files_only trust_remote_code verbose device_map unsloth_version"
        ),
        "nothing is truncated, texts that are too long are refused": (
            "model_max_length max_length max_len stride truncation truncation_side truncation_strategy"
        ),
        "nothing is padded": "padding padding_side pad_to_multiple_of pad_token_type_id mask_padding",
        "inputs that the engine makes itself": (
            "model_input_names return_token_type_ids return_attention_mask token_type_ids_pattern"
        ),
        "clean-up of decoded texts, by which byte-level and SentencePiece models lose spaces": (
            "clean_up_tokenization_spaces spaces_between_special_tokens "
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        ),
        "for tokenizers in Python, which tokenizer.json replaced": ("errors do_basic_tokenize never_split"),
        "offsets in the text, which nothing requests": "trim_offsets offset_mapping",
        "used when tokenizer.json or the vocabulary was made": (
            "remove_space keep_accents vocab_size vocab_type extra_ids wordpieces_prefix do_split_by_punct "
            "split_by_punct do_word_tokenize max_input_chars_per_word"
        ),
        "for chats, of which the chat template alone counts": (
            "use_default_system_prompt grounded_generation_template tool_use_template "
            "response_schema response_template chat_control_tokens"
        ),
    },
    only_as={
        "split_special_tokens": (),
        "encode_special_tokens": (),
        "sp_model_kwargs": (),
        "fix_mistral_regex": (),
    },
    patterns=(TOKEN_KEYS, r"\w+_ids?"),  # keys of tokens' ids, which the vocabulary has as well
)

SPECIAL_TOKENS_MAP = KeyTable("special_tokens_map", used=EXTRA_TOKENS, patterns=(TOKEN_KEYS,))
"""The keys of a file that is read only if tokenizer_config.json has no added_tokens_decoder, as in transformers."""
