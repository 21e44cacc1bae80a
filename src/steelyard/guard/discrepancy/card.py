"""What the embedding discrepancy does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.guard.discrepancy.claims import CLAIMS
from steelyard.guard.discrepancy.config import Config
from steelyard.guard.discrepancy.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="discrepancy",
    name="Embedding discrepancy",
    summary="Scores an answer by how little its question changes what the model makes of it: one pass, no labels.",
    does=(
        "The hidden states at an answer's tokens are taken twice: behind the question, as the model wrote them, and "
        "alone. Where they hardly differ, the answer would have read much the same without the question and is likely "
        "made up; where they differ much, the question shaped it. The score is minus the distance of the two means, "
        "higher for likely hallucinated answers. It needs no labelled examples and no further samples, says which "
        "tokens ignore the question, and costs one pass over the answer when the first states are kept from generation."
    ),
    use_when=(
        "You run the model yourself (hidden states are needed) and want a cheap score to rank answers for review.",
        "Answers should come from a passage that is given: what ignores the passage stands out, per token.",
        "Drawing five or ten more answers per question is out of the question.",
    ),
    avoid_when=(
        "The model is small and its token likelihoods are at hand: they cost nothing; weigh both on your questions.",
        "Answers differ much in length: mean-pooled D measures length as well; use pool='token' or length_adjust.",
        "A yes or no on single answers is needed: scores rank, and thresholds hold for one model and one layer only.",
        "The model is behind an endpoint without hidden states: BlackBoxDiscrepancy uses a sentence encoder instead.",
    ),
    cost=(
        "One forward pass over the answer's tokens and a prefix of one to five when states are kept from generation; "
        "with both passes also the prompt once more. No decoding, no output head. Drawing K answers costs K times the "
        "answer's tokens in decoding steps."
    ),
    paper=Paper(
        title="not known (unsupervised hallucination detection by the embedding discrepancy of a response with and "
        "without its question)",
        authors="not known",
        identifier="not known",
        venue="NeurIPS 2026",
        basis="The abstract only, without title, tables or code: the idea, its sign, and that it needs neither labels "
        "nor several responses are the paper's; layer, pooling, distance and prefix are reconstructions.",
    ),
    usage=(
        "from steelyard.guard import EmbeddingDiscrepancy\n"
        "from steelyard.models.tiny import tiny_random_lm\n"
        "lm = tiny_random_lm(seed=0)  # in earnest: TransformersLM.from_pretrained(folder) or load_default_lm()\n"
        "detector = EmbeddingDiscrepancy(lm, layer='0.75', pool='mean', dist='cosine')\n"
        "questions = ['Who built the lighthouse?', 'Who built the lighthouse?']\n"
        "answers = ['Marta Dunning', 'In 1902']\n"
        "contexts = ['The lighthouse was built by Marta Dunning.'] * 2\n"
        "print(detector.score(questions, answers, contexts))  # higher = more likely hallucinated\n"
    ),
    claims=CLAIMS,
    limits=(
        "The model weighed here, SmolLM2, has 135 million parameters, and its weights come from a 4-bit file; the "
        "paper's are presumably 7 billion and up. What does not show here may show there; the gpu profile is a recipe.",
        "Subsets of a data set are disjoint in questions, but questions of one passage may lie in several of them.",
        "XQuAD is asked on paragraphs of 700 letters or less (half of them); P(True) and length-normalised entropy, "
        "which read every prompt once more, are left to the long profile: the full one has to fit ten minutes.",
        "Claims and settings were fixed before a score on an evaluation subset of a data set was seen; cells were "
        "timed on a part that no seed has. Of the own questions all answers, and the scores on ten, had been seen.",
        "Which answers are right is decided by text, not by people: an answer may hold the gold text and be wrong, or "
        "be right in other words. Two rules are reported; they share that weakness.",
        "In made-up pairs (HaluEval) right answers are short and wrong ones sentences: length alone separates them. "
        "That task is shown with its controls and is no evidence for any detector.",
        "The reference figures that made .75 of the depth the default were taken on 60 HaluEval questions with answers "
        "of the same model; the tasks on HaluEval may hold them.",
        "Semantic entropy and SelfCheckGPT run without an entailment model here, on sentence embeddings: weaker than "
        "in their papers. Rivals draw 5 answers (10 on one data set of the long profile) where their papers draw 10 or "
        "more, which weakens them too; only costs are scaled to ten.",
        "The probe learns from 30 answers in cross-validation, so it is a low ceiling; the best layer with labels is "
        "chosen on the answers that it is judged by, so it is too high a one. Both are marked.",
        "Costs leave out what the answer itself costs. Likelihoods count as free: generation has computed them. So do "
        "states, though an answer that is cut by its length takes one more step for that of its last token.",
        "An answer that repeats the question is changed by it little or much depending on pooling.",
        "The black box (a sentence encoder in the model's place) told wrong answers worse than chance on the answers "
        "weighed here: its sign is the other way round there, so do not use its score without labels of your own.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "Made-up pairs of HaluEval give this kind of score spectacular figures; on the same pairs the number of tokens "
        "alone does as well, so they are reported as a task with controls only.",
        "A last-token score at layer 0 that is far from .5 is a residue of rounding in the cosine, which tells which "
        "token an answer ends on: layer 0 is refused, and the distance is computed so that equal states give 0.",
    ),
    config=Config,
)
