"""A client of HTTP/1.1 with little work per chunk of a stream, and processes that generate load with it.

The data flow: ``server`` (the address) and ``bodies`` (the content) make requests; ``client`` sends them over
``connection``, whose bytes ``response`` parses and ``events`` counts; ``answer`` checks the result. ``load`` sends the
requests of one process at their times, ``processes`` runs several such processes.
"""
