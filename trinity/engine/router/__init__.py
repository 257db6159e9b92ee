"""Several engines as one model: which engine gets a request, who is alive, who has the current weights."""
