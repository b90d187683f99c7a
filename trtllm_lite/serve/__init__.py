"""The server of OpenAI's and Anthropic's APIs: HTTP in http/, endpoints in endpoints/, answers' parsers in parsers/."""
