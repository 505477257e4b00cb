"""Loss distributions, privacy profiles, trade-off functions and Renyi curves; rounded up."""
