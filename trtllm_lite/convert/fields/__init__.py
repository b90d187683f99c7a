"""Reads the values of a model's configuration files, and checks each."""
