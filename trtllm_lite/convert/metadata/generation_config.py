"""The keys of generation_config.json, and of the same names in config.json of models without that file.

Source: GenerationConfig of transformers. Used keys become the defaults of requests (``generation_fields``) and the
tokens that end a text.
"""

from trtllm_lite.convert.metadata.key_table import KeyTable
from trtllm_lite.request_fields.draws import NUMBERS

GENERATION_CONFIG = KeyTable(
    "generation_config",
    used=(
        "do_sample",
        *(name for name, number in NUMBERS.items() if number.in_checkpoints),
        *("eos_token_id", "bos_token_id", "pad_token_id"),
    ),
    changes_nothing={
        "bookkeeping, which sampling in transformers does not read": (
            "transformers_version trust_remote_code chat_format max_window_size user_token_id assistant_token_id"
        ),
        "requests say how long their texts may get": "max_length max_new_tokens",
        "how it is computed, not what": (
            "use_cache cache_implementation cache_config max_cache_len use_mtp compile_config disable_compile "
            "low_memory prefill_chunk_size continuous_batching_config"
        ),
        "drafts change no result": (
            "is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
            "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind "
            "target_lookbehind speculation_type"
        ),
        "further outputs of transformers": (
            "output_attentions output_hidden_states output_scores output_logits return_dict_in_generate"
        ),
        "for beam search, which num_beams enables": ("early_stopping length_penalty num_beam_groups diversity_penalty"),
        "the sampler draws from a normalised distribution of finite logits": (
            "renormalize_logits remove_invalid_values"
        ),
        "for encoder-decoder models": "decoder_start_token_id",
    },
    only_as={
        "num_beams": (1,),
        "num_return_sequences": (1,),
        "typical_p": (1.0,),
        "top_h": (),
        "epsilon_cutoff": (),
        "eta_cutoff": (),
        "min_length": (),
        "min_new_tokens": (),
        "encoder_repetition_penalty": (1.0,),
        "no_repeat_ngram_size": (),
        "encoder_no_repeat_ngram_size": (),
        "guidance_scale": (1.0,),
        "penalty_alpha": (),
        "dola_layers": (),
        "max_time": (),
        "stop_strings": (),
        "bad_words_ids": (),
        "force_words_ids": (),
        "constraints": (),
        "forced_bos_token_id": (),
        "forced_eos_token_id": (),
        "exponential_decay_length_penalty": (),
        "suppress_tokens": (),
        "begin_suppress_tokens": (),
        "sequence_bias": (),
        "token_healing": (),
        "watermarking_config": (),
        "assistant_ensemble_weight": (),
    },
)
