"""The web shop of WebShop (Yao et al. 2022, arXiv:2207.01206)."""
