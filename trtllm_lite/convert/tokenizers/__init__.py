"""Reads a tokenizer from whichever files a model has, as the tokenizer.json that engines carry."""
