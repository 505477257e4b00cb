"""Sums of clipped per-example gradients, without the gradients where a norm is cheaper."""
