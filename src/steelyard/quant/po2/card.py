"""What power-of-two grids do, what they claim, and where each of their choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.quant.po2.claims import CLAIMS
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="po2",
    name="Power-of-two 4-bit grids",
    summary="Quantises to 4 bits with a choice of grid per group of 16, marked by a free bit of the group's scale.",
    does=(
        "Microscaled 4-bit formats code every group of 16 values on one fixed grid, times a scale. Here every group "
        "takes the better of two to four grids, and the choice hides in bits of the scale that carry nothing: the size "
        "stays at 4.5 bits a weight. Families: PO2(NF4) adds a companion to NF4, MPO2 is a learned pair, PO2(Split87) "
        "an asymmetric grid with a zero and its mirror image, SFP4 is NVFP4 with two shifted copies that run as one "
        "FP4 matrix product plus a small correction. Grids can be learned on your own weights and activations."
    ),
    use_when=(
        "You quantise to 4 bits in groups of 8 to 64 and can decode by table: MPO2, or a pair learned on your weights.",
        "Weights and activations go to 4 bits: learn grids on activations too, or take SFP4.",
        "FP4 tensor cores have to be used: SFP4, whose products are FP4 products plus a correction.",
    ),
    avoid_when=(
        "Groups are large (128 and up) and storage is all that counts: one learned grid is nearly as good.",
        "Values have heavy tails and you would use the Gaussian grids: learn on your data or take mpo2_robust or SFP4.",
        "A kernel exists for NVFP4 only, and decoding by table is not an option.",
        "Encoding time does not count: one learned grid with scale search comes close to PO2(NF4) without it.",
    ),
    cost=(
        "Encoding a pair takes about twice the time of one grid, three grids three times, scale search 8 to 11 times "
        "(processor time, 2048 x 2048 weights, one thread of a shared machine). Decoding is one table look-up per "
        "value, the same as with one grid."
    ),
    paper=Paper(
        title="Grid Games: The Power of Multiple Grids for Quantizing Large Language Models",
        authors="Egiazarian, Schultheis, Panferov, Killian, Hoefler, Alistarh",
        identifier="arXiv 2605.12327v1",
        venue="NeurIPS 2026",
        basis="The abstract and opening lines only; some inner details second hand from readers of the full text; the "
        "authors' repository held no code, so shift, grids, theorems and hyper-parameters are reconstructions.",
    ),
    usage=(
        "import torch\n"
        "from steelyard.quant import fit_grid_pair, quantize, quantize_model\n"
        "weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))\n"
        "for family in ('nvfp4', 'lloyd1', 'mpo2'):\n"
        "    q = quantize(weight, family)\n"
        "    print(family, q.bits_per_weight, q.mse(weight))\n"
        "pair = fit_grid_pair(weight).family  # grids learned on your own tensor\n"
        "print(quantize(weight, pair).selector_histogram())\n"
        "model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))\n"
        "quantize_model(model, pair, activations='sfp4')\n"
        "print(model(weight).shape)\n"
    ),
    claims=CLAIMS,
    limits=(
        "SmolLM2's reference is not an unquantised model: its weights come from a Q4_1 file (5 bits, groups of 32) and "
        "lie on that lattice. Divergences there are real, but they flatter or harm a format by how it meets the "
        "lattice; GGUF Q4_1 itself would come out near perfect, so it is no arm there in the full profile.",
        "Squared error does not rank tasks: NF4 diverges less than IF4 and four over six on SmolLM2 at a higher error, "
        "and scale search can lower the error and raise the drift of embeddings.",
        "Learned grids of the families are Gaussian; on heavy tails (Student t3) they can lose to NVFP4, and how often "
        "depends on the sample. The claim about it is kept.",
        "Formats are compared at their nominal bits: MXFP4 has 4.25, Q4_1 has 5. Padding, grid tables and the tensor's "
        "FP32 scale are not in the figure (metric bits); stored_bits_per_weight counts all that is stored.",
        "Seeds of real models are disjoint texts, sentences or rows, of one model each: intervals speak of these data, "
        "not of other models.",
        "Arms marked as learned on the data see tuning draws, other rows or tuning text, never what a verdict is read "
        "from; of a model's own weights they see some rows, as anyone who quantises it would.",
        "Margins (2 % of an error, 5 % of a divergence) were set by what would be worth a change of format; one "
        "evaluation seed of the stories task had been seen by then, while cells were timed. Digits networks were made "
        "less sure of themselves (label smoothing) after a first quick weighing had shown wide intervals; how much was "
        "chosen by the spread alone, in a trial without receipt, so networks of evaluation may have been seen. "
        "The three claims on the order of families name an order that the reference figures gave and that other draws "
        "of the same distributions had shown.",
        "In the full profile SmolLM2 reads windows of 256 tokens and MiniLM 8 sentences a seed, to fit ten minutes on "
        "two cores; the long profile reads 512 tokens.",
        "In the bench, weights are quantised and put back as float32; a test shows that packed layers give the same "
        "numbers. No timing of kernels is weighed here.",
        "The bits saved by a mirror pair as one signed grid, and GPTQ, are not weighed; both are orthogonal to it.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "A shorter circulating abstract names three families, without Split87; the listing names four. All are here.",
        "The stories model's loss on its own samples was expected near 1.2968, its published loss on held-out text; "
        "measured, it is 1.20: the entropy of what it writes, which is another quantity. That the loader is right is "
        "shown by an independent forward pass instead.",
        "A scale with one more mantissa bit instead of a selector is called E3M4, which leaves the sign bit unused all "
        "the same: it trades an exponent bit. The arm has that format.",
        "E1M2 normalised to its largest value holds the values of INT4, so MixFP4 as described is IF4 by another name.",
        "The companion given for PO2(NF4) does not come out of the recipe given with it (Lloyd on the groups that NF4 "
        "codes worst, monotone); both are families, po2_nf4 and po2_nf4_residual.",
        "For heavy tails one sample of MPO2 above NVFP4 was reported and six in which it was below: both directions "
        "occur, so the claim gives the interval over seeds.",
    ),
    config=Config,
)
