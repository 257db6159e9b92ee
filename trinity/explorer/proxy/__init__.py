"""Mode serve: the model answers programs outside of the run."""
