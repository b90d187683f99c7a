"""Says what conversion does with every key of the files beside config.json and the weights: one table per file.

A key is used, or known to change nothing (always, or with some values); any other key is an error that names it.
"""
