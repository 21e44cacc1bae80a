"""Dynamic momentum by greedy alignment: SGD and AdamW that carry a few momentum candidates and use the best one.

``core`` holds the scores, the selection rule and the theory (alignment curve, optimal momentum of two gradient models),
``torch_optim`` the drop-in optimizers and the estimator of the gradient autocorrelation, ``baselines`` what they are
weighed against, ``bench`` the weighing, ``card`` the claims and the decision ledger. Import the public names from
``steelyard.optim``.
"""
