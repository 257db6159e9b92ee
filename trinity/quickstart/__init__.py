"""The quickstart: a tiny model trained in two minutes, and its summary.

It writes a folder with data, the model and a YAML file.
"""
