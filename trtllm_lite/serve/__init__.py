"""The OpenAI-compatible server: HTTP in http/, the API's endpoints in endpoints/, a model's text in parsers/."""
