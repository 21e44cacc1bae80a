"""GridProbe: a vision-language model's own confidence, probed along a grid of frames, says which frames to read."""
