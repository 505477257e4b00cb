"""What is claimed of tunings against what was seen of one record."""
