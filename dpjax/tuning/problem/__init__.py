"""What is tuned: the task, the space of hyperparameters, the shape of a run."""
