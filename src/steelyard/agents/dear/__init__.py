"""Debate among language models with control of who reads whom, and how each of them answers."""
