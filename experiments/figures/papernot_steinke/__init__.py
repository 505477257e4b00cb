"""Figures of Papernot & Steinke, Hyperparameter Tuning with Renyi Differential Privacy, 2022."""
