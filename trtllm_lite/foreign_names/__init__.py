"""Maps names that users of other engines type to their meaning here: ``table`` lists them by the place where they are
typed.

``entry`` describes a name, ``remedies`` are the sentences that several names share. ``engine`` has names that are both
arguments and options of servers, ``commands``, ``serving`` and ``llama_cpp`` names of options and commands, ``calls``
names of arguments, ``classes`` names of classes, and ``environment`` those of variables. The command line reads the
options in ``trtllm_lite/cli/foreign_options.py``; ``arguments`` reads those of calls.
"""
