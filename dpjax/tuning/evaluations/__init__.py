"""What is trained and scored before anything is chosen: private runs, or partitions' models."""
