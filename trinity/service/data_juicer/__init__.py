"""Data-Juicer as a service.

`server.py` runs in the environment that has Data-Juicer, everything else in that of the run.
"""
