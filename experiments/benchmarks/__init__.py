"""Benchmarks: every ratio is of calls measured alternately in one process."""
