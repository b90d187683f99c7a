"""Keys of GGUF files beside those of the model's architecture, which ``gguf_config`` maps or hands to the family.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes them, gguf/constants.py of llama.cpp lists them.
"""

from trtllm_lite.convert.metadata.key_table import KeyTable
from trtllm_lite.request_fields.draws import NUMBERS

_TOKENIZER = "tokenizer.ggml."
SAMPLING = {f"general.sampling.{number.gguf}": name for name, number in NUMBERS.items() if number.gguf is not None}
"""Generation defaults, and the keys of generation_config.json that llama.cpp's converter takes them from."""

_USED = (
    *("general.architecture", "general.alignment", "general.license", "split.no", "split.count"),
    *SAMPLING,
    *("tokenizer.chat_template", "tokenizer.chat_templates"),
    *(
        _TOKENIZER + name
        for name in (
            *("model", "pre", "tokens", "token_type", "token_type_count", "scores", "merges"),
            *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"),
            *("unknown_token_id", "padding_token_id", "seperator_token_id", "cls_token_id"),
            *("add_bos_token", "add_eos_token", "add_space_prefix"),
            *("remove_extra_whitespaces", "precompiled_charsmap"),
        )
    ),
)

GGUF = KeyTable(
    "",
    used=_USED,
    changes_nothing={
        "for prompts that fill a gap, which the client writes": (
            "tokenizer.ggml.prefix_token_id tokenizer.ggml.suffix_token_id tokenizer.ggml.middle_token_id "
            "tokenizer.ggml.fim_pre_token_id tokenizer.ggml.fim_suf_token_id tokenizer.ggml.fim_mid_token_id "
            "tokenizer.ggml.fim_pad_token_id tokenizer.ggml.fim_rep_token_id tokenizer.ggml.fim_sep_token_id"
        ),
        "the token's type says how it is found in text": "tokenizer.ggml.mask_token_id",
        "repeats the list of tokens and their types": "tokenizer.ggml.added_tokens tokenizer.huggingface.json",
        "authorship": (
            "general.type general.name general.author general.version general.organization general.finetune "
            "general.basename general.description general.quantized_by general.size_label general.parameter_count "
            "general.url general.doi general.uuid general.repo_url general.tags general.languages "
            "general.datasets general.license.name general.license.link"
        ),
        "tensors have types of their own": "general.file_type general.quantization_version split.tensors.count",
        "for mirostat only": "general.sampling.mirostat_tau general.sampling.mirostat_eta",
        "for XTC only": "general.sampling.xtc_threshold",
        "for a penalty, and checked with it": "general.sampling.penalty_last_n",
    },
    only_as={
        f"{_TOKENIZER}add_sep_token": (True,),
        "general.sampling.mirostat": (),
        "general.sampling.xtc_probability": (),
        "general.sampling.sequence": (),
    },
    patterns=(
        r"GGUF\..*",  # facts about the header, from the package that reads the file
        r"tokenizer\.chat_template\..+",
        r"general\.(source|base_model|dataset)\..*",
        r"(quantize\.)?imatrix\..*",  # statistics by which blocks were chosen
        r"(mradermacher|llamafile|unsloth)\..*",  # who quantized the file and when
    ),
)
