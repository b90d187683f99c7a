"""Maps names that users of other engines type to their meaning here: one table for each place to type them.

``entry`` describes a name, ``remedies`` are the sentences that several names share, ``commands`` and ``serving`` have
names of options and commands, ``calls`` names of arguments, and ``imports`` names of classes. The command line reads
the options in ``trtllm_lite/cli/framework.py``; ``arguments`` reads those of calls.
"""
