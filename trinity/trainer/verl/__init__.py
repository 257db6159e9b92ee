"""A PyTorch trainer with the settings and checkpoint layout of veRL."""
