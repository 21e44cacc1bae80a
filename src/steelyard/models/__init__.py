"""Models that the benches and commands read: files of weights, and small models that ship in Python packages.

This floor lies below the rooms, beside :mod:`steelyard.data`. Each module is imported by its own name.
"""
