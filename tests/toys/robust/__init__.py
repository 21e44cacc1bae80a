"""Median of means: a method small enough to be checked, and broken, in a millisecond."""
