"""Embedding discrepancy: how much the question changes what the model makes of its own answer."""
