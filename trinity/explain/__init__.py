"""Explanations of a configuration.

They cover components and formulas, the effective loss and step, and the gradient probe.
"""
