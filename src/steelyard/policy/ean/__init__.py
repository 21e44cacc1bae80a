"""EAN: negatives that a model draws for itself from images whose evidence is masked, in a reconstruction."""
