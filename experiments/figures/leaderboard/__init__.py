"""Tuners at equal total epsilon, the untuned rule first; and where that rule comes from."""
