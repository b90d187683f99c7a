"""What conversion does with every key of the files beside config.json and the weights: one table for each file.

A key is used, or it is known to change nothing (always, or with some values), or it is an error that names it.
"""
