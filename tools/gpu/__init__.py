"""`make gpu`: what only a CUDA device can show, in at most nine minutes, as one report."""
