"""What `benchmark.py` measures, and how."""
