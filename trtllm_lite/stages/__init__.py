"""Stages that build an engine and run it: calibration of a checkpoint, and the proof of what quantization costs."""
