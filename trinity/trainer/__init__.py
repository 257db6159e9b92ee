"""Learning: the training loop and its back ends."""
