"""Numerical feature inflation: why long low-precision training spikes, and how not to.

Softmax cross-entropy in float32 rounds the true class's gradient to exactly zero once a sample is confident enough,
while the wrong classes keep theirs. The classifier's mean row and the feature mean then push each other up
exponentially until the loss spikes (a "slingshot"). Here: a cross-entropy whose gradient never loses that term,
light guards for training that keeps its own loss, and a monitor that says when the inflation is on.
"""
