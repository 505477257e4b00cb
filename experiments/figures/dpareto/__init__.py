"""Figures of Avent et al., Automatic Discovery of Privacy-Utility Pareto Fronts, 2020 (DPareto)."""
