"""Poisson lots and lots of a fixed size, drawn on the device."""
