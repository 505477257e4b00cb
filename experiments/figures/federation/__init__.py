"""Figures of ours about federations; no paper's."""
