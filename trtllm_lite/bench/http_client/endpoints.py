"""Lists the paths that requests are sent to."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (COMPLETIONS, CHAT, EMBEDDINGS)
