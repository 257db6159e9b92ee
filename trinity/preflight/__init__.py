"""Checks of machine, models and data before anything starts.

The checks import neither torch nor transformers. They yield `Finding`s at keys of the configuration.
`machine.check_machine` runs all of them and adds where in the file each key is.
"""
