"""The household tasks of ALFWorld.

Source: Shridhar et al. 2020, arXiv:2010.03768.
"""
