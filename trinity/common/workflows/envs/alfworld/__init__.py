"""The household tasks of ALFWorld (Shridhar et al. 2020, arXiv:2010.03768)."""
