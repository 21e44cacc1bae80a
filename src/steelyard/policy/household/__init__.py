"""The ALFWorld household games in Python: rules, texts, goals, and games of the same rules made here."""
