"""Declares the one schema of requests: ``fields`` declares each field once, in terms of ``field``.

SamplingParams, the bodies of HTTP requests and their OpenAPI description, ModelRunner's arguments, options of the
command line, the defaults that checkpoints bring, names of other engines, the C++ struct with its checks and bindings,
and the record by which GPUs sample follow from it. This package imports only the standard library, because CMake reads
it.
"""
