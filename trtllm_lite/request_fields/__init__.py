"""The one schema of what a request may ask for: ``fields`` declares each field once, in the words of ``field``.

SamplingParams, the bodies of HTTP requests and their OpenAPI description, ModelRunner's arguments, options of the
command line, the defaults that checkpoints bring, names of other engines, the C++ struct with its checks and bindings,
and the record by which GPUs draw follow from it. It needs the standard library alone, because CMake reads it.
"""
