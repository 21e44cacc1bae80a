"""What GridProbe does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.vision.gridprobe.claims import CLAIMS
from steelyard.vision.gridprobe.config import Config
from steelyard.vision.gridprobe.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="gridprobe",
    name="GridProbe",
    summary="Frame selection for long video: the model itself reads rows and columns of a grid of frames, and where it "
    "is sure says which frames to read and how many.",
    does=(
        "K^2 frames lie on a grid in time order. The model reads each row and each column, K frames at low resolution, "
        "and how sure it is of its likeliest option is that probe's confidence. Rows times columns is a map of "
        "importance; its skew and kurtosis set how many frames are read once more at full resolution. No training, no "
        "labels; the right answer plays no part."
    ),
    use_when=(
        "Long videos, questions with a finite set of options, and access to the options' probabilities.",
        "Frames can be read at a lower resolution in the probes.",
        "You want to see which parts of a video an answer rests on.",
    ),
    avoid_when=(
        "A low resolution answers as well: read all frames at it, which here was better and cheaper than anything.",
        "Few frames, or probes as fine as the answer: nothing is saved.",
        "Open answers, or a server without log-probabilities.",
        "Counting, ordering and what never appears: a map of where the model is sure favours frames that show things.",
    ),
    cost="2K passes of K frames at the probes' resolution, in one batch, and one pass on the frames selected.",
    paper=Paper(
        title="GridProbe: Posterior-Probing for Adaptive Test-Time Compute in Long-Video VLMs",
        authors="Eltahir, Ayash, Habibullah, Hussain, Khan",
        identifier="arXiv 2605.10762",
        venue="NeurIPS 2026",
        basis="Abstract, three figures and facts of the released evaluation code (mohammad2012191/GridProbe, without a "
        "licence). Written anew; the body of the paper was not at hand.",
    ),
    usage=(
        "import numpy as np\n"
        "from steelyard.models import TinyVLM, tiny_videos\n"
        "from steelyard.vision import GridProbe\n"
        "video = tiny_videos(np.random.default_rng(0), 1, 64)[0]\n"
        "probe = GridProbe(TinyVLM.load_default(), k=8, probe_pixels=64)\n"
        "found = probe.answer(video.frames, video.question, video.options, timestamps=video.timestamps)\n"
        "print(video.question, video.options[found.answer], found.frame_ids, found.cost.ratio)\n"
    ),
    claims=CLAIMS,
    limits=(
        "What is weighed is a model of 190 thousand weights on made-up videos; no number of the paper is tested by it.",
        "The small model answers at least as well from a frame's low resolution as from its full one, at a quarter of "
        "the tokens: all frames at low resolution is an arm of its own, beside the paper's comparison.",
        "The frames that carry the evidence are no ceiling here: counts and orders are read better from all frames.",
        "Operations count the language model, not the vision encoder, and attention in full; the detector's and the "
        "similarity's own cost is not counted.",
        "Rows times columns light up cells without evidence where evidence lies in several rows and columns. m frames "
        "light m^2 cells; the automatic budget covers them for one and two frames, not always for more. ghost_cells "
        "says how many.",
        "The supervised detector and the similarity encoder are heads of the answering model itself, trained on its "
        "world: stronger than an encoder of the shelf would be.",
        "MDP3, AKS, BOLT: written from their descriptions. On these videos the best frames always stand out, so that "
        "AKS mostly takes the top ones.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "The headline of 3.36 times fewer operations cannot be had with probes at full resolution: at K = 12 they cost "
        "470 TFLOP alone, more than the 245 of the whole. The release does not say which resolution was used.",
        "The released script for one model runs its uniform control on all K^2 frames, not on as many as it selected.",
    ),
    config=Config,
)
