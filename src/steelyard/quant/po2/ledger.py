"""The decision ledger: every choice that the paper does not settle, and the setting that changes it."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="N1", what="Family by default", chosen="mpo2", source=Source.DEFAULT,
        why="the lowest weight error of those without learning; sfp4 or grids learned on inputs for activations",
        alternatives=("any registered family", "learned", "q4_0, q4_1, none in the bench"), knob="family",
    ),
    Decision(
        id="N2", what="How a group's grid is chosen", chosen="the one with the least error", source=Source.PAPER,
        why="it is the method; the alternatives are controls", alternatives=("first", "random"), knob="selector",
    ),
    Decision(
        id="N3", what="Group size", chosen="16 (MXFP4: 32)", source=Source.SECOND_HAND,
        why="NVFP4's; the gain of a choice falls with the root of it", alternatives=("any",), knob="group_size",
    ),
    Decision(
        id="Q1", what="Number of grids", chosen="2 by default, up to 4 in a byte, up to 8 with fp16 or fp32 scales",
        source=Source.PAPER, why="one or more bits in the scale value (abstract)", alternatives=("1 to 8",),
        knob="n_grids",
    ),
    Decision(
        id="Q2", what="Where the selector of two grids lives", chosen="the sign bit of the E4M3 scale",
        source=Source.SECOND_HAND, why="block scales are never negative, so the bit is free: 4.5 bits a weight stay",
        alternatives=("e4m3_side: a bit beside the scale, whose bytes then are plain E4M3, 4.5625 bits a weight",),
        knob="scale",
    ),
    Decision(
        id="Q3", what="Where the selector of three or four grids lives", chosen="two bits beside an E3M3 scale",
        source=Source.RECON,
        why="E3M3 codes Gaussian values as well as E4M3 to four digits; a dropped mantissa bit costs 6 to 9 %",
        alternatives=("e4m3 with a side bit: 4.5625 bits a weight", "e4m2", "fp16", "fp32"), knob="scale",
    ),
    Decision(
        id="Q4", what="Selector of MX-style scales", chosen="the top bits of E8M0 after an offset of the tensor",
        source=Source.RECON, why="E8M0 has no sign, but a tensor uses only five or six of its eight bits",
        alternatives=("any other scale format",), knob="scale",
    ),
    Decision(
        id="Q5", what="Scale rule", chosen="largest magnitude for learned pairs, tightest cover of both ends for "
        "asymmetric and shifted grids", source=Source.RECON,
        why="scales that do not depend on the grids keep Lloyd monotone; shifted grids waste range otherwise",
        alternatives=("absmax", "fit"), knob="rule",
    ),
    Decision(
        id="Q6", what="Scale of the tensor", chosen="largest group scale to 448 (four over six: 256), lower where a "
        "larger factor or fit needs room", source=Source.RECON, why="NVFP4's rule, with headroom so nothing saturates",
        alternatives=("any cap up to 448",), knob="cap",
    ),
    Decision(
        id="Q7", what="Scale search", chosen="off; the sweep tries 15 factors from .72 to 1.5", source=Source.RECON,
        why="it costs about ten times the encoding, and every baseline can have it too", alternatives=("4o6", "sweep",
        "window: the nine nearest codes of a byte scale", "field candidates of a family: any factors"),
        knob="search",
    ),
    Decision(
        id="Q8", what="What the choice minimises", chosen="squared error in the weights' own units",
        source=Source.RECON, why="the simplest; scales differ between grids, so errors are compared after scaling",
        alternatives=("weighed by the mean square of the inputs", "criterion: mean or largest absolute error"),
        knob="importance",
    ),
    Decision(
        id="Q9", what="Ties", chosen="lowest grid, then first factor; inside E2M1 to the even code, else downwards",
        source=Source.DEFAULT, why="equal results on every machine and in every path",
    ),
    Decision(
        id="Q10", what="Companion of NF4 in PO2(NF4)", chosen="a near-uniform grid for flat groups, NF4 frozen",
        source=Source.SECOND_HAND, why="readers of the full paper tell of Lloyd on what NF4 codes badly; these values "
        "are behind the reference figures, those of the literal recipe are a family of their own",
        alternatives=("po2_nf4_residual", "companion='learned' with any init"), knob="init",
    ),
    Decision(
        id="Q11", what="Start of learned grids", chosen="mirrored NF4 first, three starts, best kept",
        source=Source.RECON, why="the other starts end 4 to 8 % worse at groups of 16",
        alternatives=("nf4-uniform", "tight-uniform", "uniform", "residual", "n_restarts"), knob="init",
    ),
    Decision(
        id="Q12", what="Storage of a mirror pair", chosen="two grids; one grid with a signed scale on request",
        source=Source.RECON, why="on symmetric data the best pair is a mirror pair, and a signed scale needs no change "
        "of the decoder", alternatives=("one grid, signed scale",), knob="mirror",
    ),
    Decision(
        id="Q13", what="Outer values of learned grids", chosen="free; the heavy-tail pair is pinned to -1 and +1",
        source=Source.RECON, why="free ends clip the largest value by up to 2 %: good on light tails only",
        alternatives=("pinned",), knob="pin_ends",
    ),
    Decision(
        id="Q14", what="Zero in MPO2", chosen="none", source=Source.RECON,
        why="an exact 0 costs about 2 % on Gaussian values; groups of zeros only are coded exactly anyway",
        alternatives=("the value nearest to 0 stays at 0",), knob="explicit_zero",
    ),
    Decision(
        id="Q15", what="Constants of PO2(Split87)", chosen="own Lloyd grid with a zero, and its mirror image",
        source=Source.RECON, why="the published constants could not be found", alternatives=("a learned companion",),
        knob="companion",
    ),
    Decision(
        id="Q16", what="Shift of SFP4", chosen="c = .5, in units where the top of E2M1 is 6", source=Source.RECON,
        why="exact in E2M1 and keeps an exact 0 in every grid; .375 has a slightly lower error and neither property",
        alternatives=(".375", ".625", "sfp4_pair: without the middle grid"), knob="shift",
    ),
    Decision(
        id="Q17", what="Weights of the centroids", chosen="scale squared, every tensor divided by its RMS",
        source=Source.RECON, why="minimises the error in original units, and tensors count equally",
        alternatives=("times the mean square of the inputs: argument weights of fit_grids",), knob="importance",
    ),
    Decision(
        id="Q18", what="When learning stops", chosen="relative decrease below 1e-4", source=Source.RECON,
        why="further rounds moved the error in the fourth digit only", alternatives=("any tol",), knob="tol",
    ),
    Decision(
        id="Q19", what="Layers that are quantised", chosen="linear layers but the output layer; no embeddings, norms",
        source=Source.RECON, why="the custom of the field; the output layer is often tied to the embeddings",
        alternatives=("all: the output layer too", "filter_fn in quantize_model"), knob="layers",
    ),
    Decision(
        id="Q20", what="Scale of inputs", chosen="groups per token, FP32 scale of the tensor at hand",
        source=Source.RECON, why="nothing to calibrate", alternatives=("calibrated: fixed on tuning data",),
        knob="activation_scale",
    ),
    Decision(
        id="Q21", what="Pre-training", chosen="straight-through gradient, frozen grids, no rotation, backward float32",
        source=Source.RECON, why="related work of the same laboratory; bfloat16 products are slow on a CPU",
        alternatives=("a 16-point Hadamard rotation of weights and inputs", "stochastic_gradients: gradients of "
        "outputs on NVFP4 by stochastic rounding"), knob="hadamard",
    ),
    Decision(
        id="Q22", what="Direction of the divergence", chosen="from the reference to the quantised model",
        source=Source.DEFAULT, why="weighs what the reference thinks likely; the paper's direction is not known",
    ),
    Decision(
        id="Q23", what="Damping of GPTQ", chosen=".01 of the mean diagonal", source=Source.SECOND_HAND,
        why="GPTQ's own; the choice of grids does not depend on it",
        alternatives=("argument damping, 0 for none", "no GPTQ"),
    ),
)  # fmt: skip
