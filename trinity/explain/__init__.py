"""Explanations of a configuration.

They cover functions and formulas, the effective loss and step, and the gradient probe.
"""
