"""Stores engines in OCI registries, as artifacts beside container images: pushed, pulled, checked by digest."""

from trtllm_lite.registry.pull import Pulled, pull_engine
from trtllm_lite.registry.push import push_engine
from trtllm_lite.registry.reference import Reference, parse_reference

__all__ = ["Pulled", "Reference", "parse_reference", "pull_engine", "push_engine"]
