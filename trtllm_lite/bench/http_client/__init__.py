"""A client of HTTP/1.1 that costs little for each chunk of a stream, and processes that make a load with it.

The data flow: ``server`` (whom to ask) and ``bodies`` (what to ask) make requests; ``client`` sends them over
``connection``, whose bytes ``response`` takes apart and ``events`` counts; ``answer`` judges what came. ``load`` sends
the requests of one process at their instants, ``processes`` runs several such processes.
"""
