"""The files of sentence-transformers: sentence_bert_config.json, config_sentence_transformers.json and modules.json.

Source: sentence_transformers/models/Transformer.py and SentenceTransformer.py, up to version 6. The keys of a pooling's
config.json are all modes of pooling, of which ``sentence_transformers`` reads the one that is asked for.
"""

from trtllm_lite.convert.metadata.key_table import KeyTable

_TRANSFORMER_USED = ("max_seq_length", "do_lower_case")
_TRANSFORMER_NOTHING = {"how it is computed, not what": "unpad_inputs"}
_TRANSFORMER_ONLY = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
}
TRANSFORMER_FILES = tuple(
    KeyTable(f"sentence_{kind}_config", _TRANSFORMER_USED, _TRANSFORMER_NOTHING, _TRANSFORMER_ONLY)
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The settings of the transformer, under one of the names that the file has had: the first that is there counts."""

MODEL_FILE = KeyTable(
    "config_sentence_transformers",
    used=("prompts", "default_prompt_name"),
    changes_nothing={"how whoever asks compares embeddings": "similarity_fn_name"},
    only_as={"model_type": ("SentenceTransformer",)},
)

MODULE = KeyTable("modules", used=("idx", "name", "path", "type"))
