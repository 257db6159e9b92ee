"""What is checked of machine, models and data before anything starts. Imports neither torch nor transformers.

A check yields `Finding`s at keys of the configuration; `machine.check_machine` asks all of them and says where in the
file each key stands.
"""
