"""Workflows in which an environment answers the model.

Each imports its environment's package in the one function that needs it.
"""
