"""Figures and table of Ding & Wu, "Revisiting Hyperparameter Tuning with Differential Privacy"."""
