"""Command-line programs: the main job, the price of tuning, figures and benchmarks."""
