"""The decision ledger of GridProbe: nearly all of it is settled by the paper's abstract, figures and released code."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="d1", what="Which frames are sampled", chosen="round(linspace(0, n - 1, K^2)), in rows by time",
        source=Source.CODE, why="as released", knob="sampling",
    ),
    Decision(
        id="d2", what="Side of the grid", chosen="12", source=Source.PAPER,
        why="the headline's; the released script for one model has 8", alternatives=("8", "6 to 32 in the paper"),
        knob="k",
    ),
    Decision(
        id="d3", what="Confidence of a probe",
        chosen="probability of its likeliest option, renormalised over the options",
        source=Source.CODE, why="as released; the right answer plays no part", knob="confidence",
    ),
    Decision(
        id="d4", what="Importance of a cell", chosen="row confidence times column confidence", source=Source.PAPER,
        why="the pipeline's figure", alternatives=("sum: a plot of the release",), knob="combine",
    ),
    Decision(
        id="d5", what="Moments", chosen="of the population", source=Source.CODE, why="as released", knob="moments",
    ),
    Decision(
        id="d6", what="Shape of a map", chosen="|skew| + max(0, excess kurtosis) / 2", source=Source.CODE,
        why="as released; the paper names both moments", knob="statistic",
    ),
    Decision(
        id="d7", what="Budget", chosen="ceil(K^2 / (1 + 3 shape))", source=Source.CODE,
        why="as released; a figure of the paper has the form",
        alternatives=("alpha", "participation ratio", "cells above the mean", "cells above Otsu's threshold"),
        knob="alpha",
    ),
    Decision(
        id="d8", what="Fewest frames", chosen="2", source=Source.CODE,
        why="the command line's; the function's own default is 1", knob="min_frames",
    ),
    Decision(
        id="d9", what="A map that tells nothing", chosen="spread below 1e-6 of the mean: all frames",
        source=Source.RECON,
        why="the released bound of 1e-10 is below the rounding of float32, whose shape is arbitrary",
        alternatives=("strict: 1e-10",), knob="strict",
    ),
    Decision(
        id="d10", what="Cells of equal importance", chosen="the earlier one", source=Source.RECON,
        why="the release sorts unstably and takes later ones", knob="ties",
    ),
    Decision(
        id="d11", what="Resolution of probes",
        chosen="an argument without default; a quarter of the tokens in the bench",
        source=Source.RECON,
        why="it decides whether anything is saved, and the release does not say which one made its "
        "figure", alternatives=("as fine as the answer",), knob="probe_pixels",
    ),
    Decision(
        id="d12", what="Resizing", chosen="keeps the sides' ratio", source=Source.RECON,
        why="the release makes frames square, which changes posteriors", knob="resize",
    ),
    Decision(
        id="d13", what="How probes are read", chosen="in one batch", source=Source.RECON,
        why="the same figures, faster",
        alternatives=("one by one, as released",), knob="batch_probes",
    ),
    Decision(
        id="d14", what="Operations of a pass",
        chosen="full attention, output matrix at every position, no vision encoder",
        source=Source.CODE, why="the released formula", alternatives=("output matrix at the last position",),
        knob="head",
    ),
    Decision(
        id="d15", what="Bias of option order", chosen="left alone", source=Source.RECON, why="as released",
        alternatives=("permute: averaged over rotations of the options",), knob="debias",
    ),
    Decision(
        id="d16", what="Videos shorter than the grid",
        chosen="the last frame is repeated in probes, once in the answer",
        source=Source.RECON, why="doubles would inflate cells and cost tokens", knob="short_videos",
    ),
    Decision(
        id="d17", what="Ensemble of probes", chosen="mean of log-posteriors", source=Source.CODE, why="as released",
        alternatives=("six other rules of the release",), knob="merge",
    ),
    Decision(
        id="d18", what="Probes", chosen="rows and columns", source=Source.PAPER, why="the pipeline's figure",
        knob="axes",
    ),
    Decision(
        id="d19", what="How the small model answers", chosen="by the options' own tokens", source=Source.RECON,
        why="bound to letters it stays at chance at this size", knob="options",
    ),
    Decision(
        id="d20", what="Training of the small model", chosen="parts of videos at low and at full resolution, up to all "
        "frames, in equal shares", source=Source.RECON,
        why="a model that never saw all frames at full resolution would "
        "handicap the pass over all of them", knob="training",
    ),
)  # fmt: skip
