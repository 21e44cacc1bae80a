"""The decision ledger of the lattice, its limits, and what did not check out."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="L-1", what="Edges and delays", chosen="bottom-up, lateral, top-down, one step each; image clamped",
        source=Source.SECOND_HAND,
        why="The digest names the three kinds of edges; one step each lets depth itself cost time.",
    ),
    Decision(
        id="L-2", what="Kernel and nonlinearity", chosen="3x3 'same' convolutions, ReLU, stride 1", source=Source.RECON,
        why="The usual choice in recurrent convolutional models of vision.", knob="stride",
        alternatives=("a stride per layer, with nearest upsampling for top-down edges",),
    ),
    Decision(
        id="L-3", what="Readout", chosen="the sum over all layers, states averaged over 2x2 regions, scaled by 3",
        source=Source.RECON, knob="pool",
        why="Every layer must be able to die; with few channels a global average is far too weak.",
        alternatives=("another number of regions", "readout_scale"),
    ),
    Decision(
        id="L-4", what="Choice of time", chosen="adaptive: hazards that rise with the readout's certainty",
        source=Source.RECON, knob="time_selection",
        why="The digest has a fixed and an adaptive choice, but no formula.",
        alternatives=("fixed: softmax of one vector", "state_term: a linear function of pooled states"),
    ),
    Decision(
        id="L-5", what="Bound and start of the hazards", chosen="6 tanh(z / 6), b_t = -1.5, kappa = 0",
        source=Source.RECON, why="Without the bound hazards saturate and the time stays at its maximum.",
        alternatives=("None: no bound", "any start, by halting_start"), knob="halting_bound",
    ),
    Decision(
        id="L-6", what="Prices of ranks", chosen="r / C on sorted norms", source=Source.RECON, knob="breadth_weight",
        why="Rank-dependent weight decay is second hand, its weights are not given.",
        alternatives=("uniform",),
    ),
    Decision(
        id="L-7", what="Power of the norms", chosen="q = 1: real zeros", source=Source.RECON, knob="q",
        why="The digest speaks of weight decay (q = 2), which never reaches zero.", alternatives=("2",),
    ),
    Decision(
        id="L-8", what="Prices of layers", chosen="l / L", source=Source.RECON, knob="depth_weight",
        why="Weighting by layer index is second hand, the weights are not given.", alternatives=("uniform",),
    ),
    Decision(
        id="L-9", what="Price of time", chosen="expected number of steps", source=Source.SECOND_HAND,
        why="So says the digest.", alternatives=("a rate: divergence from a geometric prior, PonderNet",),
        knob="time_prior",
    ),
    Decision(
        id="L-10", what="Task loss", chosen="sum_t p_t CE(y_t)", source=Source.RECON, knob="task_loss",
        why="Each readout answers for itself.", alternatives=("mixture: cross-entropy of the mixture",),
    ),
    Decision(
        id="L-11", what="Deep supervision", chosen="0.1 of the mean cross-entropy of all steps", source=Source.RECON,
        why="Without it p settles on one step, the others never learn, and the time is constant.",
        alternatives=("any weight, 0 for none",), knob="deep_supervision",
    ),
    Decision(
        id="L-12", what="Rise of the prices", chosen="linear over the first 40 % of training", source=Source.RECON,
        why="A price of time from the first step makes the network answer before it has learned.",
        alternatives=("any share",), knob="ramp",
    ),
    Decision(
        id="L-13", what="When a channel counts as used", chosen="norm above 5 % of the largest", source=Source.RECON,
        why="A count needs a rule.", alternatives=("any share", "the participation ratio, which needs none"),
        knob="used_threshold",
    ),
    Decision(
        id="L-14", what="Readout in the norms", chosen="its columns count", source=Source.RECON,
        why="Else small incoming and large outgoing weights dodge the price.", knob="readout_in_norms",
        alternatives=("False: incoming weights only", "readout_decay"),
    ),
    Decision(
        id="L-15", what="Occlusion in training", chosen="a square per image, 0 to 8 of 14 pixels, mid-grey",
        source=Source.RECON,
        why="So that waiting is worth something in training; a background-coloured square hides little.",
        alternatives=("another share of the side", "another fill"), knob="occlusion_share",
    ),
    Decision(
        id="L-16", what="Optimizer", chosen="Adam 4e-3, time selection 2e-2, batches of 64, clip 5",
        source=Source.RECON, knob="batch_size",
        why="Rates and clip of the reconstruction's runs. Batches of 64 instead of 100: on a tuning seed 400 updates "
        "of 64 gave the rises under occlusion of 350 updates of 100 in three quarters of the time.",
        alternatives=("any",),
    ),
    Decision(
        id="L-17", what="Data", chosen="MNIST test images at 14x14 (8,000 / 2,000, one split); digits for quick",
        source=Source.DEFAULT,
        why="The paper's sets are unknown. One split for all seeds keeps the 2,000 images out of every tuning run.",
        alternatives=("your own images",),
    ),
    Decision(
        id="L-18", what="Comparison with reaction times", chosen="medians at the six contrasts with accuracy above .45",
        source=Source.RECON, why="Near chance people guess, and guesses are fast.", knob="rt_trials",
        alternatives=("correct trials only", "another least accuracy"),
    ),
    Decision(
        id="L-19", what="The prices", chosen="time .01, .03, .1; breadth and depth .003, .01, .03 at time .03",
        source=Source.RECON, knob="time",
        why="No value is known; the middle levels are those of the reconstruction's first runs.",
        alternatives=("any price of time, breadth or depth",),
    ),
    Decision(
        id="L-20", what="The box", chosen="8 channels, 3 layers, 8 steps (6 on digits)", source=Source.RECON,
        why="What a minute pays for; `box_check` says what is left at its edge.", knob="channels",
        alternatives=("layers", "steps"),
    ),
    Decision(
        id="L-21", what="When a deployed network stops", chosen="halting mass .5, after deleting unused channels",
        source=Source.RECON, why="Deterministic, and what a user would run; E[t] stands beside it.",
        knob="stop_threshold", alternatives=("any mass", "sampling, whose mean is E[t]"),
    ),
)  # fmt: skip

LIMITS = (
    "The reaction-time comparison is weak evidence: six conditions, both series nearly monotone in contrast, digits "
    "against objects, medians of five people. An entropy threshold on a network without costs is run beside it as the "
    "control. It is not the paper's image-level correlation and must not be read as such. On a tuning seed the learned "
    "time and both controls had the same rank correlation, .94.",
    "People's medians are not monotone themselves: 50 % and 30 % contrast differ by half a millisecond, in the "
    "unexpected direction, so a Spearman of 1 is out of reach for a time that rises as contrast falls (.94 at most).",
    "Occlusion: the networks see occluded images in training. That they spend more steps on them is not asked for by "
    "the loss, but neither is it transfer to something unseen.",
    "The hazards read the entropy of the readout: once their weight of it is learned to be positive, whatever makes "
    "the network less certain lengthens the time. On digits it rose with a square by .16 and .24 steps (two seeds) "
    "when training had shown no squares at all, and by .11 and .22 when it had.",
    "How long one trains decides what is seen: the profile `full` makes 280 updates on MNIST, `long` 720. Even then "
    "all 24 channels were in use at a price of depth of .01 on a tuning seed.",
    "On digits the expected time of a single seed proves nothing: the reconstruction saw seeds at 3.9 and 5.7 steps.",
    "A price at one resource moves the others, so a level is read at its own cost term; used channels and layers are "
    "counts that may stay where they are.",
    "Equal compute means multiply-adds executed for inference, counted; training a lattice costs all steps of its "
    "box, so it had several times the training compute of the fixed networks it is compared with.",
    "Fixed networks of equal compute are sized by the steps that the learned one (price of time .1) takes on twelve "
    "tuning seeds; a whole number of steps or channels does not meet them exactly, nor seed by seed, so the multiply-"
    "adds of each arm stand in the report. A first full weighing, which was seen, had sized them by few seeds of a "
    "longer training: the rivals executed 17 and 24 % more on MNIST, and the weighing was taken again.",
    "Multiply-adds are counted by the formula. The one convolution that runs a small box also multiplies its blocks of "
    "zeros (three layers: nine blocks for seven that are edges), which are not counted.",
    "Multiply-adds are not time: small convolutions are bound by overhead, so a shrunken network is faster by less.",
    "All seeds share one split into training and test images, so the intervals speak of weights, batches and "
    "occluders, not of other images.",
    "Task complexity is varied by the number of classes with the training images held equal in number; more classes "
    "also mean fewer images of each, a larger cross-entropy that the prices compete with, and more readout columns, "
    "which count in a channel's norm.",
    "Rates, clip, deep supervision and the start of the hazards are those that worked in the reconstruction's runs on "
    "the same data; its own results suggested the claims' directions, so the verdicts say whether fresh seeds repeat "
    "them.",
    "ACT, PonderNet and pruning are small variants on this library's own network, at one setting each.",
    "Nothing was measured on a GPU or at the paper's scale.",
)

CONTRADICTIONS = (
    "The lattice of the abstract is infinite, so that size is no hyperparameter; this box has edges, and at the "
    "bench's prices its last channels and steps carry weight (`box_check` warns; the edge metrics show how much).",
    "The second-hand source found no rise of the time under occlusion on digits, and gave a reason: fitted images make "
    "waiting worthless. It did not repeat. On two tuning seeds 60 digits learned by heart (all correct, with squares "
    "too) gave rises of .34 and .42 steps at half the side, 1,091 digits after 1,000 updates .35 and .57.",
    "It also named one size of square for a whole batch as a design that failed. On digits it made no difference: "
    "rises of .11 and .25 steps, with a size for each image .11 and .22 (two seeds).",
    "The second-hand source saw a price of depth of .01 cut its third layer to one channel in 720 updates. Here all 24 "
    "channels were still in use after 720 updates on a tuning seed, with and without the readout in the norms; at .03 "
    "five were gone. Batches of 64 instead of 100 may be why, which was not tested.",
    "The digest says weight decay (q = 2) and also that channels are pruned during training: decay never gives zeros. "
    "q = 1 does, and is the default.",
    "The digest's price of time (expected steps) and a mixture of outputs do not save computation by themselves: the "
    "mixture needs every step. Stopping at half the halting mass is added for that.",
)
