"""Image processors: a module for each processor of transformers, and ``read`` to make one of a checkpoint's files."""
