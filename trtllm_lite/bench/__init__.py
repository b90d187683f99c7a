"""Measures engines: latency, throughput, memory, and how close they come to the limits of the machine."""
