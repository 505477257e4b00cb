"""Prices selections: the best of K runs, stopping at a threshold, tuning on a secret part."""
