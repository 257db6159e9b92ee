"""Speaks the protocol of AgentScope's chat models and of its tuner's outputs."""
