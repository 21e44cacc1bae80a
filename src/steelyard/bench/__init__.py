"""Weighing: cells in processes of their own, one SQLite store, paired statistics, verdicts fixed in advance."""
