"""The server of OpenAI's and Anthropic's APIs: HTTP in http/, endpoints in endpoints/, a model's text in parsers/."""
