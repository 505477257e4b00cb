"""Figures of Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026 (arXiv:2510.04902)."""
