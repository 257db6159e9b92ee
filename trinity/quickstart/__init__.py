"""The quickstart: a folder with data, a tiny model and a YAML file that trains it in two minutes, and its summary."""
