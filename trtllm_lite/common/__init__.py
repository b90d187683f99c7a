"""What all rooms share: files, units, messages, and the vocabulary of engines. It imports nothing else but errors."""
