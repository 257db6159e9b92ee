"""The science experiments of ScienceWorld (Wang et al. 2022, arXiv:2203.07540)."""
