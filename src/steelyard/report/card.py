"""A card as Markdown: the one text that the command line shows and the documentation pages are made of."""

from __future__ import annotations

from steelyard.card import Card, Claim, Decision


def card_markdown(card: Card) -> str:
    """Return the whole card, sections always in the same order."""
    paper = card.paper
    parts = [
        f"# {card.name}\n\n{card.summary}",
        f"## What it does\n\n{card.does}",
        "## Use it\n\n```python\n" + card.usage.strip() + "\n```",
        "## Use when\n\n" + _bullets(card.use_when),
        "## Avoid when\n\n" + _bullets(card.avoid_when),
        f"## Cost\n\n{card.cost}",
        f"## Paper\n\n*{paper.title}*, {paper.authors}, {paper.venue}, {paper.identifier}. {paper.basis}",
        "## Claims\n\n" + _table(("claim", "what is compared", "bar", "in the paper"), map(_claim, card.claims)),
        "## Decisions\n\n" + _table(("id", "what", "chosen", "source", "why", "knob"), map(_decision, card.decisions)),
        "## Limits\n\n" + _bullets(card.limits),
    ]
    if card.contradictions:
        parts.append("## What did not check out\n\n" + _bullets(card.contradictions))
    return "\n\n".join(parts) + "\n"


def _bullets(lines: tuple[str, ...]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "- nothing known"


def _table(head: tuple[str, ...], rows: object) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]  # type: ignore[attr-defined]
    return "\n".join(lines)


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


def _claim(claim: Claim) -> tuple[str, ...]:
    against = claim.versus if isinstance(claim.versus, str) else f"{claim.versus:g}"
    tasks = f" ({', '.join(claim.tasks)})" if claim.tasks else ""
    compared = f"`{claim.metric}` of `{claim.arm}` {claim.direction} than `{against}`{tasks}"
    bar = (
        f"{'log-ratio' if claim.scale == 'log_ratio' else 'difference'} {claim.offset:+.3g}, margin {claim.margin:.3g}"
    )
    return claim.text, compared, "paper scale only" if claim.paper_scale_only else bar, claim.paper


def _decision(decision: Decision) -> tuple[str, ...]:
    why = decision.why.rstrip(".") + "."
    if decision.alternatives:
        why += f" Alternatives: {'; '.join(decision.alternatives)}."
    knob = f"`{decision.knob}`" if decision.knob else ""
    return decision.id, decision.what, decision.chosen, str(decision.source), why, knob
