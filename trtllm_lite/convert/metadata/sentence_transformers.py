"""The keys of sentence_bert_config.json, config_sentence_transformers.json and modules.json (sentence-transformers).

Source: sentence_transformers/models/Transformer.py and SentenceTransformer.py, up to version 6. The keys of a pooling's
config.json are modes of pooling; ``sentence_transformers`` reads the one that is switched on.
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
"""The names that the file with the transformer's settings has had; the first file that exists counts."""

MODEL_FILE = KeyTable(
    "config_sentence_transformers",
    used=("prompts", "default_prompt_name"),
    changes_nothing={"how clients compare embeddings": "similarity_fn_name"},
    only_as={"model_type": ("SentenceTransformer",)},
)

MODULE = KeyTable("modules", used=("idx", "name", "path", "type"))
