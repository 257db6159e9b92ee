"""The science experiments of ScienceWorld.

Source: Wang et al. 2022, arXiv:2203.07540.
"""
