from steelyard.card import Card, Claim, Decision, Frozen, Paper, Source, knob


class Config(Frozen):
    bias: float = knob("C1", 0.5)


CARD = Card(
    id="toys.coin",
    name="Biased coin",
    summary="A coin with a known bias.",
    does="Adds a known bias to noise that all arms share.",
    use_when=("testing the engine",),
    avoid_when=("anything else",),
    cost="nothing",
    paper=Paper(title="None", authors="nobody", identifier="none", venue="none", basis="made up for tests"),
    usage="steelyard.weigh('toys.coin')",
    claims=(
        Claim(id="better", text="biased beats fair", metric="score", arm="biased", versus="fair", direction="higher"),
        Claim(
            id="far",
            text="biased beats fair by 9",
            metric="score",
            arm="biased",
            versus="fair",
            direction="higher",
            offset=9.0,
        ),
        Claim(id="oracle", text="below the oracle", metric="score", arm="biased", versus="oracle", direction="lower"),
        Claim(
            id="big",
            text="at paper scale",
            metric="score",
            arm="biased",
            versus="fair",
            direction="higher",
            paper_scale_only=True,
        ),
    ),
    limits=(),
    decisions=(Decision(id="C1", what="bias", chosen="1", source=Source.DEFAULT, why="a test", knob="bias"),),
    config=Config,
)
