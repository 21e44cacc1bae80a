"""A recurrent convolutional lattice whose breadth, depth and time are paid for and learned.

After "Growing a Neural Network in Breadth, Depth, and Time" (arXiv 2605.25174). ``core`` holds the pure functions
(halting, costs, multiply-add counts, occlusion), ``torch_nn`` the network and its costs, ``training`` the recipe,
``inference`` real early exits, ``resources`` and ``shrinking`` what is used and its physical removal,
``sklearn`` a classifier, ``reaction_time`` the comparison with human times.
"""
