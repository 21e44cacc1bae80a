"""Disrupt-and-rectify smoothing: many damaged and repaired copies of a prompt, one vote."""
