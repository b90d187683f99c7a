"""Model families, one file each; ``convert/family.py`` finds every module here that has a ``FAMILY``."""
