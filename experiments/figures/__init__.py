"""Figures of the papers, each a binary that writes raw rows and the pictures drawn from them."""
