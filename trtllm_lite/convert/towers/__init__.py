"""Vision towers beside decoders, a file each: every module has a ``TOWER``."""
