"""Who waits for whom, and how weights travel from the trainer to the explorer."""
