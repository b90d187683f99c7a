"""Workflows that build an engine and run it: calibration, and the accuracy cost of quantization."""
