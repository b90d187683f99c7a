"""Gathers statistics of the inputs of products while an engine reads a text."""
