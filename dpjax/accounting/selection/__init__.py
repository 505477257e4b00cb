"""What choosing the best of a random number of runs, or stopping at a threshold, costs."""
