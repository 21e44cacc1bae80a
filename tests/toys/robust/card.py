from steelyard.card import Card, Claim, Decision, Frozen, Paper, Source, knob


class Config(Frozen):
    blocks: int = knob("B", 5, ge=1)


CARD = Card(
    id="toys.robust",
    name="Median of means",
    summary="A mean that one outlier does not move.",
    does="Splits the values into blocks and takes the median of their means.",
    use_when=("there are outliers",),
    avoid_when=("there are none",),
    cost="one pass",
    paper=Paper(title="None", authors="nobody", identifier="none", venue="none", basis="a textbook method, for tests"),
    usage="median_of_means(values, blocks=5)",
    claims=(
        Claim(id="better", text="closer than the mean", metric="error", arm="robust", versus="mean", direction="lower"),
        Claim(id="big", text="at scale", metric="x", arm="y", versus="z", direction="lower", paper_scale_only=True),
    ),
    limits=("means only",),
    decisions=(Decision(id="B", what="blocks", chosen="5", source=Source.DEFAULT, why="odd", knob="blocks"),),
    config=Config,
)
