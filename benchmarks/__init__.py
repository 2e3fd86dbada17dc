"""Benchmarks: `python -m benchmarks [name ...]`. Each prints what it measured and appends one JSON line to a file."""
