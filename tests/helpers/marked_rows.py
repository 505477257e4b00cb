"""Rows changed by hand: what stands in a folder is not made again if the change is still there."""

from experiments.figures.rows import read_rows, write_rows


def marked(path, column, value=0.0123456789):
    """Changes a number of the first row of a file; returns the rows that it holds now."""
    rows = read_rows(path)
    rows[0][column] = value
    write_rows(path, list(rows[0]), rows)
    return read_rows(path)
