"""Benchmarks of speed and memory against other implementations and the machine's roofline."""
