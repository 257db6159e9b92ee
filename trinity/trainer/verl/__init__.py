"""Our own PyTorch trainer: reads the settings of veRL and writes its checkpoint layout."""
