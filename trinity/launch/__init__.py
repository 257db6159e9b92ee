"""Runs what a YAML file describes: stages, modes, resume, exit status."""
