"""Model families, one file each; every module here with a ``FAMILY`` is found by itself (see ``convert/family.py``)."""
