"""Serves engines over HTTP, as OpenAI's API."""
