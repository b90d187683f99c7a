"""Runs the stages of an engine as Ray actors, on one machine or several. This package needs the extra ``ray``."""
