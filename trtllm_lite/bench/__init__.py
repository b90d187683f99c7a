"""Measures engines: latency, throughput, memory, and how near they come to what the machine can do."""
