"""Names that users of other engines type, and what each of them means here: one table for each place to type them.

``entry`` says what is known of a name, ``remedies`` are the sentences that several names share, ``commands`` and
``serving`` have names of options and commands, ``calls`` names of arguments, and ``imports`` names of classes. The
command line reads the options in ``trtllm_lite/cli/framework.py``; ``arguments`` reads those of calls.
"""
