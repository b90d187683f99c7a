"""What all parts of the package share: files, units, messages, the vocabulary of engines. It imports only
``errors``."""
