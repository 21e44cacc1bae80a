"""``steelyard agents``: group memory, skills and debate from the command line."""

from __future__ import annotations

import typer

from steelyard.cli import agents_debate, agents_memory, agents_skills
from steelyard.cli.command import quiet_libraries

app = typer.Typer(no_args_is_help=True, help="Parts for teams of people and models: group memory, skills, debate.")
app.callback()(quiet_libraries)
app.add_typer(agents_memory.app, name="memory")
app.add_typer(agents_skills.app, name="skills")
app.add_typer(agents_debate.app, name="debate")
